"""A program of its own, one for each gateway: starts every command, and ends it with the gateway.

The gateway starts it with its first command and speaks to it by a socket. An order comes as a file, with the
descriptors of the command and a *link*, which is a socket of that command alone. The spawner tells `+PID` on
the link, or `-` and why there is no command, and `=CODE` once no process of the command is left. It ends a
command when the gateway closes the link, which the gateway's death does too, and when the leash of its place
ends (`cluster.leash`), since a gateway that is stopped or held closes nothing.

The order of a background process makes a copy of the spawner its `shim`, which outlives the gateway. To be a
copy costs a tenth of a new Python. The spawner stays as long as it has shims: it is a subreaper, so it
inherits what a shim or a supervisor that is killed leaves behind, and ends that after a moment.
"""

from __future__ import annotations

import _socket
import gc
import marshal
import os
import select
import signal
import time
from contextlib import suppress
from typing import Any, NoReturn

from talaria.workspace.sandbox import (
    group,
    launcher,  # noqa: F401 - for the children, which are made without an import
    shim,
)
from talaria.workspace.sandbox.group import ProcessGroup

MORE, ALL = b"-", b"+"  # whether other descriptors of the same order follow
_MOST_DESCRIPTORS = 253  # that Linux takes with one message
_STRAY_SECONDS = 2.0  # a launcher whose spawner was killed ends its command by itself in that time


class Spawner:
    """The commands that run, by the descriptors of their links."""

    def __init__(self, gateway: int) -> None:
        self._gateway = _socket.socket(fileno=gateway)
        self._given: list[int] = []
        self._groups: dict[int, tuple[ProcessGroup, str]] = {}  # and the leash, or an empty text
        self._shims: set[int] = set()
        self._strays: dict[int, float] = {}
        self._is_alone = False
        self._poll = select.poll()
        self._wakes, wake = os.pipe()
        for fd in (self._wakes, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up is enough
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it ends with its gateway
        self._poll.register(self._wakes, select.POLLIN)
        self._poll.register(gateway, select.POLLIN)

    def run(self) -> None:
        """Keep commands until the gateway has gone and nothing is left."""
        while not self._is_alone or self._groups or group.children():
            for fd, _ in self._poll.poll(self._pause()):
                if fd == self._wakes:
                    os.read(fd, 512)
                elif fd == self._gateway.fileno():
                    self._take()
                else:
                    self._poll.unregister(fd)
                    self._groups[fd][0].end()
            self._end_what_is_due()
            self._reap()

    def _pause(self) -> float | None:
        """Return the milliseconds until there is something to look at; None for ever."""
        leashes = {leash for _, leash in self._groups.values() if leash}
        seconds = [max(group.left_on_leash(each, group.COMMANDS_AT), 0.1) for each in leashes]
        if leashes:
            seconds.append(group.LOOK_SECONDS)
        if self._strays or any(each.is_ending for each, _ in self._groups.values()):
            seconds.append(0.2)
        return min(seconds) * 1000 if seconds else None

    def _end_what_is_due(self) -> None:
        for each, leash in self._groups.values():
            if each.is_ending or (leash and group.left_on_leash(leash, group.COMMANDS_AT) <= 0):
                each.end()

    # -- orders

    def _take(self) -> None:
        """Take a message of the gateway, or its end: the links of its commands have ended with it."""
        space = _socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS)
        sign, found, *_ = self._gateway.recvmsg(1, space, _socket.MSG_CMSG_CLOEXEC)
        if not sign:
            self._is_alone = True
            self._poll.unregister(self._gateway.fileno())
            return
        for _, _, data in found:
            self._given += [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
        if sign == ALL:
            (ordered, link, *given), self._given = self._given, []
            with open(ordered, "rb") as file:
                order = marshal.load(file)  # noqa: S302 - the gateway wrote it
            try:
                self._start(order, link, given)
            except OSError as error:
                _tell(link, f"-{error.strerror}")
                os.close(link)
            finally:
                for fd in given:
                    os.close(fd)

    def _start(self, order: dict[str, Any], link: int, given: list[int]) -> None:
        if order["background"] is not None:
            pid = os.fork()
            if pid == 0:
                _become_shim(order, link, given)
            self._shims.add(pid)
            os.close(link)
            return
        started = ProcessGroup(order, given[:3], given[3:])
        self._groups[link] = started, order["leash"]
        self._poll.register(link, select.POLLIN)
        _tell(link, f"+{started.pid}")

    # -- ends

    def _reap(self) -> None:
        for link, (each, _) in list(self._groups.items()):
            if each.reap():
                del self._groups[link]
                with suppress(KeyError):
                    self._poll.unregister(link)
                _tell(link, f"={each.code}")
                os.close(link)
        known = {each.pid for each, _ in self._groups.values()}
        now = time.monotonic()
        for pid in group.children():
            if pid not in self._shims and pid not in known and os.getpgid(pid) not in known:
                self._strays.setdefault(pid, now + _STRAY_SECONDS)
        for pid in (*self._shims, *self._strays):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._shims.discard(pid)
                self._strays.pop(pid, None)
            elif self._strays.get(pid, now) < now:
                group.kill(pid, signal.SIGKILL)


def _become_shim(order: dict[str, Any], link: int, given: list[int]) -> NoReturn:
    try:
        os.setsid()
        group.close_others({0, 1, 2, link, *given})
        group.reset_signals()
        group.name_process("talaria-shim")
        shim.main(order, link, given[0], given[1:])
    finally:
        os._exit(0)  # whatever happened, this must not go on as the spawner


def _tell(link: int, text: str) -> None:
    with suppress(OSError):  # the gateway does not want to know any more
        os.write(link, text.encode())


def main(gateway: int) -> None:
    group.prctl(group.SUBREAPER, 1)
    group.name_process("talaria-spawner")
    gc.freeze()  # so that copies share their memory for longer
    Spawner(gateway).run()
