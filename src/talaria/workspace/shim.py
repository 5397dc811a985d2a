"""A program of its own: keeps one background command, its input, its output and its end, without the gateway.

It is started with `START`, imports little and nothing of the package, and is in a session of its own, so that
it outlives the gateway. The command runs only if the gateway lives when the record is on the disk. From then
on everything is in the process's folder:

    record   who runs: the pids of shim and launcher with their start times, and the boot
    input    a FIFO, from which the command reads
    output   a ring with the last bytes of stdout and stderr
    exit     the exit code and the time, once no process of the command is left

SIGTERM ends the command: politely, and by force after some seconds or at the second SIGTERM. SIGUSR1 closes
its input. If the shim is killed, the launcher ends the command, because its parent has died. In a cluster the
command also ends when the place's leash does (`cluster.leash`), whatever has become of the gateway.
"""

from __future__ import annotations

import marshal
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal  # without the enums, as in the launcher

# Imported, not run: so its bytecode is kept. The arguments are its folder and the descriptor of its order.
START = "import sys; sys.path.append(sys.argv[1]); import shim; sys.exit(shim.main(int(sys.argv[2])))"
RECORD, INPUT, OUTPUT, EXIT = "record", "input", "output", "exit"
HEADER = 32  # bytes of the ring before its content: the magic, then three numbers
MAGIC = b"TALRING1"
SIZE_AT, WRITTEN_AT, RESERVED_AT = 8, 16, 24
_PIECE = 64 << 10
_EXIT_BYTES = 4096
_NOT_RUN = 125
_PDEATHSIG, _SUBREAPER = 1, 36
_MAX_STATUS = 64 << 10
COMMANDS_AT, PROCESSES_AT = 0, 8  # in the file of a leash
_LOOK_SECONDS = 10.0  # a machine that slept does not count the time in `poll`
_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)


class Ring:
    """The file of the last `size` bytes of output.

    A byte at the offset n of the whole output is at n % size of the content. `reserved` is written before the
    content and `written` after it: a reader knows which bytes are whole, whenever the writer dies.
    """

    def __init__(self, path: str, size: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._fd, 0, HEADER + size)  # a disk that is full later does no harm
        os.pwrite(self._fd, MAGIC + size.to_bytes(8, "little") + bytes(16), 0)
        self._size = size
        self._written = 0

    def write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            at = self._written % self._size
            piece = view[: self._size - at]
            self._set(RESERVED_AT, self._written + len(piece))
            os.pwrite(self._fd, piece, HEADER + at)
            self._written += len(piece)
            self._set(WRITTEN_AT, self._written)
            view = view[len(piece) :]

    def _set(self, at: int, number: int) -> None:
        os.pwrite(self._fd, number.to_bytes(8, "little"), at)


# -- processes


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


def below(top: int) -> list[int]:
    """Return the descendants of a process."""
    parents = _parents()
    found, ancestors = [], {top}
    while added := [pid for pid, parent in parents.items() if parent in ancestors and pid not in found]:
        found += added
        ancestors = set(added)
    return found


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended


def _json(text: str) -> str:
    """Return a JSON string. The module json takes longer to import than all the rest."""
    kept = "".join(each if each.isprintable() else " " for each in text)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'


def left_on_leash(path: str, at: int) -> float:
    """Return the seconds until the number at this offset of a leash. A home without a leash is in no cluster,
    and has no limit; if the home is gone, the time is over."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return float("inf") if os.access(path.rpartition("/")[0], os.F_OK) else 0.0
    try:
        until = int.from_bytes(os.pread(fd, 8, at), "little")
    finally:
        os.close(fd)
    return until / 1e9 - time.clock_gettime(time.CLOCK_BOOTTIME)


def _prctl(option: int, value: int) -> None:
    import ctypes  # noqa: PLC0415 - not for the gateway, which reads the constants of this module

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


# -- the shim


class Shim:
    """A background command. The order has the `Launch` of its sandbox: `argv`, `fds`, `status`, `ends_all`,
    `guard`; the process's `folder`, the size of the `ring`, the seconds of `grace`, the file of the `leash`
    or an empty text, and the `facts` of the record as the inside of a JSON object."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._folder: str = order["folder"]
        self._ring = Ring(f"{self._folder}/{OUTPUT}", order["ring"])
        self._exit = os.open(
            f"{self._folder}/{EXIT}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        os.posix_fallocate(self._exit, 0, _EXIT_BYTES)
        os.mkfifo(f"{self._folder}/{INPUT}", 0o600)
        self._input = os.open(f"{self._folder}/{INPUT}", os.O_RDWR | os.O_CLOEXEC)  # without it: end of file
        self._output, self._sink = os.pipe()
        os.set_blocking(self._output, False)
        self._wakes, wake = os.pipe()
        for fd in (self._wakes, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake)
        for number in _HEARD:
            signal.signal(number, lambda *_: None)  # the number arrives at the descriptor
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        heard, self._alive = os.pipe()
        os.close(heard)  # the guard opens it anew
        self._launch = 0
        self._launched_at = 0
        self._first = 0
        self._told = b""
        self._code: int | None = None
        self._has_ended = False
        self._stops = 0
        self._force_at = 0.0
        self._leash: str = order["leash"]
        self._is_cut_off = False

    def start(self) -> int:
        """Start the launcher, which waits. Return the descriptor that lets it go."""
        waits, go = os.pipe()
        here = os.getpid()
        self._launch = os.fork()
        if self._launch == 0:
            os.close(go)
            self._become_launcher(waits, here)
        os.close(waits)
        os.close(self._sink)
        for fd in self._order["fds"]:
            os.close(fd)
        self._launched_at = start_time(self._launch)
        return go

    def _become_launcher(self, waits: int, parent: int) -> NoReturn:
        try:
            os.setsid()
            _prctl(_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent or not os.read(waits, 1):
                os._exit(_NOT_RUN)
            signal.set_wakeup_fd(-1)
            for number in (*_HEARD, *_IGNORED):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(f"{self._folder}/{INPUT}", os.O_RDONLY), 0)
            os.dup2(self._sink, 1)
            os.dup2(self._sink, 2)
            argv = self._order["argv"]
            if guard := self._order["guard"]:  # as `Launch.guarded` does it
                argv = (*guard, str(parent), f"/proc/{parent}/fd/{self._alive}", *argv)
            os.execve(argv[0], argv, {})  # noqa: S606 - what it is for
        except OSError as error:
            os.write(2, f"The sandbox cannot be started: {error.strerror}.\n".encode())
        os._exit(_NOT_RUN)

    def record(self) -> None:
        """Write who runs, so that a later gateway finds this process again, or knows that it is lost."""
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        here = os.getpid()
        text = (
            f'{{"pid": {here}, "start": {start_time(here)}, "boot": "{boot}", "launch": {self._launch}, '
            f'"launch_start": {self._launched_at}, "first": {self._first}, '
            f'"first_start": {start_time(self._first) if self._first else 0}, {self._order["facts"]}}}'
        )
        new = f"{self._folder}/{RECORD}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(fd, text.encode())
        os.fsync(fd)
        os.close(fd)
        os.rename(new, f"{self._folder}/{RECORD}")
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)

    def forget(self) -> None:
        """The command is not to run."""
        kill(self._launch, signal.SIGKILL)
        os.unlink(f"{self._folder}/{RECORD}")

    def run(self) -> None:
        """Keep the command until no process of it is left, and write its end."""
        poll = select.poll()
        for fd in (self._wakes, self._output, self._order["status"]):
            poll.register(fd, select.POLLIN)
        while not self._has_ended:
            for fd, _ in poll.poll(self._patience()):
                if fd == self._output:
                    self._take_output(poll)
                elif fd == self._wakes:
                    self._obey(os.read(self._wakes, 512))
                else:
                    self._hear(poll)
            if self._force_at and time.monotonic() >= self._force_at:
                self._force()
            if self._leash and left_on_leash(self._leash, PROCESSES_AT) <= 0:
                self._leash, self._is_cut_off = "", True
                self._force()
        self._end_rest()
        self._take_output(None)
        self._write_exit()

    def _patience(self) -> float | None:
        seconds = []
        if self._force_at:
            seconds.append(self._force_at - time.monotonic())
        if self._leash:
            seconds += (_LOOK_SECONDS, left_on_leash(self._leash, PROCESSES_AT))
        return max(0.0, min(seconds)) * 1000 if seconds else None

    def _take_output(self, poll: select.poll | None) -> None:
        """Take what there is: one piece while the command runs, all of it at the end."""
        while True:
            try:
                piece = os.read(self._output, _PIECE)
            except BlockingIOError:
                return
            self._ring.write(piece)
            if not piece and poll is not None:
                poll.unregister(self._output)
            if not piece or poll is not None:
                return

    def _hear(self, poll: select.poll) -> None:
        """Read what the launcher tells: JSON with the first process of a namespace, and the exit code."""
        status = self._order["status"]
        heard = os.read(status, _MAX_STATUS)
        self._told += heard
        if not heard or len(self._told) > _MAX_STATUS:
            poll.unregister(status)
        if not self._first and (first := _number_after(self._told, b'"child-pid"')):
            self._first = first
            self.record()

    def _obey(self, signals: bytes) -> None:
        """Do what these signals ask for."""
        for number in signals:
            if number == signal.SIGTERM:
                self._stop()
            elif number == signal.SIGUSR1 and self._input >= 0:
                os.close(self._input)
                self._input = -1
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._launch:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code
                self._has_ended = True

    def _stop(self) -> None:
        self._stops += 1
        own = {self._launch, self._first}
        if self._order["guard"]:
            own |= {pid for pid, parent in _parents().items() if parent == self._launch}
        command = [pid for pid in below(self._launch) if pid not in own]
        if self._stops > 1 or not command:
            self._force()
            return
        for pid in command:
            kill(pid, signal.SIGTERM)
        self._force_at = time.monotonic() + self._order["grace"]

    def _force(self) -> None:
        self._force_at = 0.0
        # With a guard, the whole process group: the launcher may be starting the others just now.
        kill(-self._launch if self._order["guard"] else self._launch, self._order["ends_all"])

    def _end_rest(self) -> None:
        """The launcher has ended, and the kernel may still be emptying its namespace. As a subreaper this
        process inherits whatever is left."""
        while True:
            here = os.getpid()
            for pid, parent in _parents().items():
                if parent == here:
                    kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                if not self._first or not start_time(self._first):
                    return
            time.sleep(0.002)

    def _write_exit(self) -> None:
        try:
            while heard := os.read(self._order["status"], _MAX_STATUS):
                self._told += heard
        except BlockingIOError:
            pass
        exited = _number_after(self._told, b'"exit-code"')
        code, error = self._code if exited is None else exited, ""
        if exited is None and code == _NOT_RUN:
            error = self._told.decode(errors="replace")[-500:] or "see its output"
        cut_off = "true" if self._is_cut_off else "false"
        told = f'"code": {code}, "at": {time.time()}, "error": {_json(error)}, "is_cut_off": {cut_off}'
        content = f"{{{told}}}".encode()
        os.pwrite(self._exit, content, 0)
        os.ftruncate(self._exit, len(content))
        os.fsync(self._exit)
        os.rename(f"{self._folder}/{EXIT}.new", f"{self._folder}/{EXIT}")


def _number_after(text: bytes, name: bytes) -> int | None:
    """Return the number that stands behind a name in JSON objects without strings that could contain it."""
    rest = text.partition(name)[2].lstrip(b" :")
    digits = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
    is_whole = len(digits) < len(rest)
    return int(digits) if digits and is_whole else None


def main(order_fd: int) -> int:
    with open(order_fd, "rb") as file:
        order = marshal.load(file)  # noqa: S302 - the gateway wrote it
    link, status = order["link"], order["status"]
    os.set_inheritable(link, False)
    os.set_inheritable(status, False)
    os.set_blocking(status, False)
    _prctl(_SUBREAPER, 1)
    try:
        shim = Shim(order)
        go = shim.start()
        shim.record()
    except OSError as error:
        os.write(link, f"-{error.strerror}".encode())
        return _NOT_RUN
    os.write(link, b"+")
    if not os.read(link, 1):  # the gateway has died, or does not want it any more
        shim.forget()
        return _NOT_RUN
    os.close(link)
    os.write(go, b"+")
    os.close(go)
    shim.run()
    return 0
