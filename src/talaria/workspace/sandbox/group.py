"""The processes of one command as the spawner and the shim see them: how they are started, ended and reaped.

Imports little, because it is part of these programs. They are subreapers, so every process that a command
leaves behind becomes their child.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

NOT_RUN = 125
PDEATHSIG, SUBREAPER = 1, 36
# By Python, the spawner or the shim.
_CHANGED = (
    *(signal.SIGPIPE, signal.SIGXFSZ),
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1),
)
_PATIENCE = 2.0  # seconds until a supervisor that does not end its command is killed


class ProcessGroup:
    """A command that this process has started. Its launcher leads a process group: bubblewrap, or the
    supervisor of `launcher`.

    A signal reaches a group as a whole, also a process that is being made. bubblewrap needs that: killed
    while it starts, it leaves its second process, which waits for it for ever or runs the command
    (`--die-with-parent` takes effect later). The supervisor ends its command upon SIGTERM.
    """

    def __init__(
        self,
        order: dict[str, Any],
        stdio: Sequence[int],
        given: Sequence[int],
        waits: int = -1,
        go: int = -1,
    ) -> None:
        """Start it. The order has the `argv` of bubblewrap or what is `confined`, and the `numbers` that the
        descriptors `given` have in the launcher. It starts when the pipe from `go` to `waits` has a byte,
        if there is one; at its end, never. Raises `OSError`."""
        here = os.getpid()
        self._has_supervisor = order["confined"] is not None
        self._ended_at = 0.0
        self.code: int | None = None
        # This process ignores SIGTERM or has its own use of it. To the child it means that it has to end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.pid = os.fork()
        if self.pid == 0:
            if go >= 0:
                os.close(go)
            _become_launcher(order, stdio, given, waits, here)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    @property
    def is_ending(self) -> bool:
        return self._ended_at > 0

    def end(self) -> None:
        """Tell all processes to end. Call it again from time to time until `reap` returns True."""
        now = time.monotonic()
        if self._has_supervisor and not self._ended_at:
            kill(self.pid, signal.SIGTERM)
        elif not self._has_supervisor or now - self._ended_at > _PATIENCE:
            self._kill()
        self._ended_at = self._ended_at or now

    def reap(self) -> bool:
        """Reap what has ended. Return whether no process of the group is left; `code` is that of the launcher
        then, as a shell tells it."""
        if self.code is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            # bubblewrap does not wait until its namespace is empty. Until it is reaped, nobody else has its
            # number.
            kill(-self.pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.code = code if code >= 0 else 128 - code
        try:
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False

    def _kill(self) -> None:
        while self.code is None and not kill(-self.pid, signal.SIGKILL):
            time.sleep(0.0005)  # the child has not made its group yet
            self.reap()


def _become_launcher(
    order: dict[str, Any], stdio: Sequence[int], given: Sequence[int], waits: int, parent: int
) -> NoReturn:
    try:
        os.setsid()
        confined = order["confined"]
        prctl(PDEATHSIG, signal.SIGKILL if confined is None else signal.SIGTERM)
        if os.getppid() != parent or (waits >= 0 and not os.read(waits, 1)):
            os._exit(NOT_RUN)
        reset_signals()
        _place(stdio, given, order["numbers"], is_inherited=confined is None)
        if confined is not None:
            from talaria.workspace.sandbox import launcher  # noqa: PLC0415 - the gateway does not need it

            os._exit(launcher.supervise(confined, parent))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with open("/proc/self/oom_score_adj", "w") as file:  # the kernel ends commands before the gateway
            file.write("1000")
        if order["joins"]:
            _join(order["joins"])
            prctl(PDEATHSIG, signal.SIGKILL)  # other credentials may have cleared it
            if os.getppid() != parent:
                os._exit(NOT_RUN)
        os.execve(order["argv"][0], order["argv"], {})  # noqa: S606 - what it is for
    except OSError as error:
        os.write(2, f"The sandbox cannot be started: {error.strerror}.\n".encode())
    finally:
        os._exit(NOT_RUN)  # whatever happened, this must not go on as the spawner


def _join(namespaces: Sequence[int]) -> None:
    """Enter these namespaces, and close their descriptors, which the command must not have."""
    import ctypes  # noqa: PLC0415 - as in `prctl`; Python has `os.setns` from 3.12 on

    libc = ctypes.CDLL(None, use_errno=True)
    for fd in namespaces:
        if libc.setns(fd, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(fd)


def _place(stdio: Sequence[int], given: Sequence[int], numbers: Sequence[int], *, is_inherited: bool) -> None:
    """Give the descriptors their numbers, and close all others."""
    above = max((2, *numbers)) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in (*stdio, *given)]
    for fd, number in zip(moved, (0, 1, 2, *numbers), strict=True):
        os.dup2(fd, number, inheritable=is_inherited or number <= 2)
    close_others({0, 1, 2, *numbers})


# -- for the spawner and its children


def close_others(kept: set[int]) -> None:
    """Close all descriptors but these."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with suppress(OSError):  # that of the list itself
                os.close(fd)


def reset_signals() -> None:
    """Let signals do what they do by default, for a program that is about to be run."""
    signal.set_wakeup_fd(-1)
    for number in _CHANGED:
        signal.signal(number, signal.SIG_DFL)


def name_process(name: str) -> None:
    """Set the name that `ps` shows."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def prctl(option: int, value: int) -> None:
    import ctypes  # noqa: PLC0415 - the gateway reads constants of this module, and does not need it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


# -- processes of this machine


def start_time(pid: int) -> int:
    """Return when the process began, in ticks since the boot; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def _parents() -> dict[int, int]:
    """Return the parent of each process of this machine."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    return found


def children() -> list[int]:
    """Return the children of this process, also those that have ended and are not reaped."""
    try:
        with open("/proc/thread-self/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without this file
        return [pid for pid, parent in _parents().items() if parent == os.getpid()]


def below(top: int) -> list[int]:
    """Return the descendants of a process."""
    parents = _parents()
    found, ancestors = [], {top}
    while added := [pid for pid, parent in parents.items() if parent in ancestors and pid not in found]:
        found += added
        ancestors = set(added)
    return found


def kill(pid: int, number: int) -> bool:
    """Send a signal. Return whether there was a process to send it to."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it has ended, and its number belongs to another user's process
    return True


def end_children() -> None:
    """Kill and reap the children of this process until there are none. It has to be faster than a command
    whose processes start a successor each, so it does not wait in between at first."""
    rounds = 0
    while True:
        for pid in children():
            kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        rounds += 1
        if rounds > 10_000:
            time.sleep(0.001)


# -- what both sides know


def parse_status(told: bytes) -> dict[str, Any]:
    """Return what a launcher told about its command: documents of JSON, one after the other."""
    text = told.decode(errors="replace")
    status: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        try:
            document, end = decoder.raw_decode(text)
        except ValueError:
            break
        status |= document
        text = text[end:]
    return status


COMMANDS_AT, PROCESSES_AT = 0, 8  # in the file of a leash
LOOK_SECONDS = 10.0  # between looks at a leash: a machine that slept does not count the time in `poll`


def left_on_leash(path: str, at: int) -> float:
    """Return the seconds until the number at this offset of a leash (`cluster.leash`). A home without a leash
    is in no cluster, and has no limit; if the home is gone, the time is over."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return float("inf") if os.access(path.rpartition("/")[0], os.F_OK) else 0.0
    try:
        until = int.from_bytes(os.pread(fd, 8, at), "little")
    finally:
        os.close(fd)
    return until / 1e9 - time.clock_gettime(time.CLOCK_BOOTTIME)
