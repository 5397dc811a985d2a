"""Bait around a sandbox: files, listeners and processes that no command may reach, and the look at them.

All of it is as open as files and sockets can be, so that nothing but the sandbox keeps a command away. The
judge looks from the outside: at bytes, at sockets and at /proc, never at what a command says of itself.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from talaria.workspace.places import remove_tree

_READ_BYTES = 1 << 20
_SUBREAPER = 36
_SYSTEM = ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname",
           "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory", "/etc/passwd", "/etc/hosts",
           "/etc/resolv.conf")  # fmt: skip
_PLACES = ("/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/dev/mqueue", "/etc", "/usr", "/usr/bin",
           "/usr/local/bin", "/root", "/home", "/run", "/opt", "/var/spool/cron", "/etc/cron.d",
           "/sys/fs/cgroup")  # fmt: skip
# It reports every signal that can be caught, and keeps a secret in its arguments, variables and memory.
_VICTIM = """\
import os, signal, sys
secret = bytearray(sys.argv[1], "ascii")
def report(number, frame):
    os.write(1, b"%d\\n" % number)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, report)
os.write(1, b"ready\\n")
while True:
    os.read(0, 1) or os._exit(0)
"""
_PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


@dataclass
class Listeners:
    """Sockets of the machine. Nothing ever comes to them, unless a command got out."""

    tcp: int
    tcp6: int
    udp: int
    udp6: int
    stream: Path
    datagram: Path
    abstract: str
    abstract_datagram: str
    sockets: dict[str, socket.socket] = field(default_factory=dict)

    def arrived(self) -> list[str]:
        """Return the names of those that something came to since the last call."""
        found = []
        for name, sock in self.sockets.items():
            with suppress(BlockingIOError):
                if sock.type == socket.SOCK_STREAM:
                    sock.accept()[0].close()
                else:
                    sock.recv(64)
                found.append(name)
        return found


@contextmanager
def open_listeners(folder: Path, nonce: str) -> Iterator[Listeners]:
    """Listen on every kind of address. `folder` gets the sockets that have a path."""
    with ExitStack() as stack:
        sockets: dict[str, socket.socket] = {}
        stream, datagram = folder / "stream", folder / "datagram"
        abstract = f"bait-{nonce}"
        for name, family, kind, address in (
            ("TCP", socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", 0)),
            ("TCP over IPv6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            ("UDP", socket.AF_INET, socket.SOCK_DGRAM, ("0.0.0.0", 0)),
            ("UDP over IPv6", socket.AF_INET6, socket.SOCK_DGRAM, ("::1", 0)),
            ("Unix stream", socket.AF_UNIX, socket.SOCK_STREAM, str(stream)),
            ("Unix datagram", socket.AF_UNIX, socket.SOCK_DGRAM, str(datagram)),
            ("abstract stream", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}"),
            ("abstract datagram", socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{abstract}-d"),
        ):
            sock = stack.enter_context(socket.socket(family, kind))
            try:
                sock.bind(address)
            except OSError:
                if family != socket.AF_INET6:
                    raise
                continue  # a machine without IPv6
            if kind == socket.SOCK_STREAM:
                sock.listen()
            sock.setblocking(False)
            sockets[name] = sock
        for path in (stream, datagram):
            path.chmod(0o777)

        def port(name: str) -> int:
            return int(sockets[name].getsockname()[1]) if name in sockets else 1

        yield Listeners(
            port("TCP"), port("TCP over IPv6"), port("UDP"), port("UDP over IPv6"),
            stream, datagram, abstract, f"{abstract}-d", sockets,
        )  # fmt: skip


@dataclass
class Victim:
    """A process outside, under the user of the commands."""

    process: subprocess.Popen[bytes]
    before: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        return self.process.pid

    def harm(self) -> str:
        """Return what was done to it; empty if nothing."""
        if self.process.poll() is not None:
            return f"ended with {self.process.returncode}"
        assert self.process.stdout is not None
        with suppress(BlockingIOError):
            return "got signal " + os.read(self.process.stdout.fileno(), 100).decode().split()[0]
        before, self.before = self.before, (now := facts_of(self.pid))
        changed = [f"{old} became {new}" for old, new in zip(before, now, strict=False) if old != new]
        return changed[0] if changed else ""


def facts_of(pid: int) -> tuple[str, ...]:
    """Return what another process could change of this one."""
    proc = Path("/proc", str(pid))
    status = (proc / "status").read_text().splitlines()
    kept = ("TracerPid", "Uid", "Groups", "Seccomp", "Cpus_allowed:", "Mems_allowed:", "NoNewPrivs", "SigIgn")
    nice = (proc / "stat").read_text().rpartition(")")[2].split()[16]
    state = next(line for line in status if line.startswith("State")).split()[1].replace("R", "S")
    links = [os.readlink(proc / name) for name in ("cwd", "root")]
    return (
        *(line for line in status if line.startswith(kept)),
        *(proc / "limits").read_text().splitlines(),
        f"oom {(proc / 'oom_score_adj').read_text().strip()}",
        f"nice {nice}",
        f"state {state}",
        *links,
    )


@contextmanager
def open_victim(uid: int, secret: str) -> Iterator[Victim]:
    prefix = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid != os.getuid() else []
    process = subprocess.Popen(
        [*prefix, _PYTHON, "-I", "-S", "-c", _VICTIM, secret],
        env={"BAIT": secret}, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.set_blocking(process.stdout.fileno(), False)
        victim = Victim(process)
        victim.before = facts_of(process.pid)
        yield victim
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


class BaitFiles:
    """Files with a secret each, in folders that everybody may write to, and what they were like."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}  # what is in it, by the secret
        self.files: list[Path] = []
        self.trees: list[Path] = []
        self._before: dict[str, tuple[object, ...]] = {}

    def secret(self, what: str) -> str:
        made = f"bait{secrets.token_hex(12)}"
        self.secrets[made] = what
        return made

    def lay(self, path: Path, *, owner: int | None = None, mode: int = 0o666) -> Path:
        """Make a file with a secret. The folders above it must exist."""
        path.write_text(f"key = {self.secret(str(path))}\n")
        path.chmod(mode)
        if owner is not None and os.geteuid() == 0:
            os.chown(path, owner, owner)
        self.files.append(path)
        return path

    def remember(self, *trees: Path) -> None:
        """Take note of these folders and files as they are."""
        self.trees += trees
        self._before = self._now()

    def changes(self) -> list[str]:
        """Return the paths that changed, came or went since the last call of this or of `remember`."""
        now = self._now()
        found = sorted(path for path in {*now, *self._before} if now.get(path) != self._before.get(path))
        self._before = now
        return found

    def leaks(self, content: bytes | str) -> list[str]:
        """Return the names of the secrets in it."""
        text = content if isinstance(content, str) else content.decode("latin-1")
        return [what for secret, what in self.secrets.items() if secret in text] if "bait" in text else []

    def leaks_below(self, folders: tuple[Path, ...]) -> list[str]:
        """Return the secrets in files that a command has left in its own folders."""
        found: list[str] = []
        for path in _walk(map(str, folders)):
            found += self.leaks(_begin_of(path))
        return found

    def _now(self) -> dict[str, tuple[object, ...]]:
        seen: dict[str, tuple[object, ...]] = {}
        for path in _walk([*map(str, self.trees), *_SYSTEM]):
            _note(path, seen)
        return seen


def _walk(paths: Iterable[str]) -> Iterator[str]:
    """Yield these paths and all below them. Links are not followed, and no path is too deep."""
    pending = [*paths]
    while pending:
        path = pending.pop()
        yield path
        with suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    yield entry.path


def _begin_of(path: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except OSError:
        return b""
    try:
        return os.read(fd, _READ_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)


def _note(path: str, seen: dict[str, tuple[object, ...]]) -> None:
    with suppress(OSError):
        status = os.lstat(path)
        content = hashlib.sha256(_begin_of(path)).hexdigest() if stat.S_ISREG(status.st_mode) else ""
        of_system = path.startswith("/proc/")
        seen[path] = (
            (content,)
            if of_system
            else (
                status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_mtime_ns, content,
                tuple(os.listxattr(path, follow_symlinks=False)),
            )
        )  # fmt: skip


def marked_places(marker: str) -> list[str]:
    """Return the paths with this marker in the usual places of the machine."""
    found = []
    for place in _PLACES:
        with suppress(OSError):
            found += [os.path.join(place, name) for name in os.listdir(place) if marker in name]
    for listing in ("/proc/keys", "/proc/self/mountinfo", "/proc/net/unix"):
        with suppress(OSError):
            found += [
                f"{listing}: {line}" for line in Path(listing).read_text().splitlines() if marker in line
            ]
    return found


@dataclass(frozen=True)
class RunningProcess:
    """A process as /proc shows it."""

    pid: int
    parent: int
    uid: int
    threads: int
    line: bytes  # its arguments, separated by NULs

    def __str__(self) -> str:
        return f"{self.pid} ({self.line.replace(bytes(1), b' ')[:80].decode(errors='replace')})"


def running_processes() -> dict[int, RunningProcess]:
    """Return the processes of the machine that have not ended, by their id."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            proc = Path("/proc", str(pid))
            state, parent, *fields = (proc / "stat").read_text().rpartition(")")[2].split()
            if state not in ("Z", "X"):
                line = (proc / "cmdline").read_bytes()
                found[pid] = RunningProcess(pid, int(parent), proc.stat().st_uid, int(fields[15]), line)
    return found


def own_descendants() -> list[RunningProcess]:
    """Return the processes that this process has started, and those that they have started.

    This process must be a subreaper (`adopting`), or a process whose parent has ended is missing.
    """
    running = running_processes()
    own = {os.getpid()}
    while more := {pid for pid, each in running.items() if each.parent in own} - own:
        own |= more
    return [each for pid, each in running.items() if pid in own - {os.getpid()}]


@contextmanager
def adopting() -> Iterator[None]:
    """Become the parent of descendants whose parents end, so that none of them gets out of sight."""
    prctl = ctypes.CDLL(None).prctl
    before = _children()
    prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SUBREAPER, 0, 0, 0, 0)
        for pid in _children() - before:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    listings = [(task / "children").read_text() for task in Path("/proc/self/task").iterdir()]
    return {int(pid) for listing in listings for pid in listing.split()}


def end_descendant(process: RunningProcess) -> None:
    """Kill a process that this process has started, directly or not. Any other process is left alone."""
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)  # stays with this process even if its id is used again
        try:
            if any(each.pid == process.pid for each in own_descendants()):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def empty(folder: Path) -> None:
    """Remove all that is in a folder."""
    with suppress(OSError):
        for path in [*folder.iterdir()]:
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink()
