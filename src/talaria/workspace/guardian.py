"""A program of its own: ends the commands of shells when the leash of their place ends (`cluster.leash`).

The gateway would end them itself, but not while it is stopped or its event loop is held. The program reads
records from a pipe: `+` or `-`, a signal, a pid, and the start time of that process. A command that is begun
while the leash has ended is ended at once. When the gateway dies the pipe ends, and the program with it: the
commands have died with their parent.

It imports little and nothing of the package; `shim`, from the same folder, is given to `main`.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from types import ModuleType
else:
    import _signal as signal  # without the enums, as in the shim

START = "import sys; sys.path.append(sys.argv[1]); import guardian, shim; guardian.main(shim, *sys.argv[2:])"
RECORD = 18
_LOOK_SECONDS = 10.0  # as in the shim
_PATIENCE = 2.0  # seconds until a launcher that does not end its command is killed with it


class Guarded:
    """A command: the process that stands for it, and the signal that ends it all."""

    def __init__(self, pid: int, start: int, ends_all: int) -> None:
        self.pid = pid
        self.start = start
        self.ends_all = ends_all
        self.told_at = 0.0

    def end(self, shim: ModuleType) -> None:
        if shim.start_time(self.pid) != self.start:
            return
        now = time.monotonic()
        if self.ends_all == signal.SIGKILL or (self.told_at and now - self.told_at > _PATIENCE):
            for pid in (*shim.below(self.pid), -self.pid):
                shim.kill(pid, signal.SIGKILL)
        elif not self.told_at:
            shim.kill(self.pid, self.ends_all)
        self.told_at = self.told_at or now


def make_record(sign: bytes, pid: int, start: int, ends_all: int) -> bytes:
    return sign + ends_all.to_bytes(1, "little") + pid.to_bytes(8, "little") + start.to_bytes(8, "little")


def main(shim: ModuleType, link: str, leash: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its gateway
    pipe, poll, rest = int(link), select.poll(), b""
    poll.register(pipe, select.POLLIN)
    commands: dict[tuple[int, int], Guarded] = {}
    while True:
        seconds = shim.left_on_leash(leash, shim.COMMANDS_AT)
        if seconds <= 0:
            for command in commands.values():
                command.end(shim)
        pause = min(max(seconds, 0.1), _LOOK_SECONDS) * 1000 if commands else None
        if not poll.poll(pause):
            continue
        if not (heard := os.read(pipe, 64 * RECORD)):
            return
        rest += heard
        while len(rest) >= RECORD:
            record, rest = rest[:RECORD], rest[RECORD:]
            pid, start = int.from_bytes(record[2:10], "little"), int.from_bytes(record[10:], "little")
            commands.pop((pid, start), None)
            if record[:1] == b"+":
                commands[pid, start] = Guarded(pid, start, record[1])
