"""The process that keeps a session's network namespace: how it is started, found again, joined and ended."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from talaria.core.whole_files import replace_file
from talaria.net.proxy import BACKGROUND, FOREGROUND
from talaria.workspace import forwarder
from talaria.workspace.sandbox.bubblewrap import drop_privileges
from talaria.workspace.sandbox.command import SandboxError, open_arguments, open_data, open_shared
from talaria.workspace.sandbox.mounts import bind, find_helper, mount_options, system_mounts
from talaria.workspace.sandbox.seccomp import MACHINES, build_filter

PROXY_PORT, BACKGROUND_PORT = 3128, 3129  # inside the namespace
_RECORD, _USERS = "holder.json", "users.lock"
_INSIDE = "/run/talaria"
_PATIENCE = 10.0  # seconds until a holder that does not tell anything is given up
_NOBODY = 65534
_GET_USERNS = 0xB701  # ioctl: the user namespace that owns another namespace


@dataclass(slots=True)
class NetworkHolder:
    """A running holder. `pid` is its first process, `net` its namespace and `owner` the user namespace that
    owns it, -1 as root, both as open descriptors. `lock` is this process's own shared lock on `users`."""

    pid: int
    pidfd: int
    net: int
    owner: int
    lock: int
    users: Path
    child: subprocess.Popen[bytes] | None = None

    @property
    def is_alive(self) -> bool:
        return not _is_readable(self.pidfd, 0)

    @property
    def is_usable(self) -> bool:
        """Whether it runs and commands can still join: its files may have been deleted under it."""
        try:
            return self.is_alive and os.path.samestat(self.users.lstat(), os.fstat(self.lock))
        except OSError:
            return False

    @property
    def namespaces(self) -> tuple[int, ...]:
        """The descriptors of the namespaces that a command joins, in this order."""
        return (self.owner, self.net) if self.owner >= 0 else (self.net,)

    def is_used(self) -> bool:
        """Whether a command runs in the namespace. If none does, no other can join until `end`."""
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self.lock, fcntl.LOCK_SH)
            return True
        return False

    def end(self) -> None:
        """End the holder, and with it the namespace once no command is in it. Blocks until it is gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        _is_readable(self.pidfd, _PATIENCE)
        if self.child is not None:
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(_PATIENCE)
        with suppress(FileNotFoundError):
            (self.users.parent / _RECORD).unlink()
        self.forget()

    def forget(self) -> None:
        """Close the descriptors. The holder goes on as long as a command uses it, and ends by itself then."""
        for fd in (self.pidfd, self.net, self.owner, self.lock):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self.net = self.owner = self.lock = -1
        if self.child is not None:
            self.child.poll()
            self.child.returncode = self.child.returncode or 0  # no warning: it may outlive this process


def find_holder(folder: Path) -> NetworkHolder | None:
    """Return the holder that an earlier process started in this folder, None if it has ended."""
    try:
        told = json.loads((folder / _RECORD).read_bytes())
        pid, started = int(told["pid"]), int(told["started"])
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        if _start_time(pid) != started:  # its number belongs to another process now
            raise ProcessLookupError(pid)
        return _hold(folder, pid, pidfd, open_shared(folder / _USERS))
    except (OSError, SandboxError):
        os.close(pidfd)
        return None


def start_holder(folder: Path, user: tuple[int, int], hidden: tuple[Path, ...]) -> NetworkHolder:
    """Start a holder whose sockets are in `folder`. `user` is that of the session's commands, (0, 0) for
    this process's own. Blocks. Raises `SandboxError` if the namespace cannot be made."""
    users = folder / _USERS
    users.touch(0o644)
    lock = open_shared(users)
    try:
        child, pid = _start(folder, user, hidden)
        try:
            holder = _hold(folder, pid, os.pidfd_open(pid), lock, child)
        except OSError as error:
            child.kill()
            child.wait()
            raise SandboxError(f"The network of the session cannot be joined: {error.strerror}.") from error
    except BaseException:
        os.close(lock)
        raise
    try:
        _check_join(holder)
        record = json.dumps({"pid": pid, "started": _start_time(pid)})
        replace_file(folder / _RECORD, record.encode(), is_durable=False)
    except BaseException:
        holder.end()
        raise
    return holder


def try_holder() -> str:
    """Make a network and end it. Return why that does not work here, or an empty text. Blocks."""
    with tempfile.TemporaryDirectory(prefix="talaria-network-") as name:
        folder = Path(name)
        user = (0, 0) if os.geteuid() else (_NOBODY, _NOBODY)
        folder.chmod(0o711)
        try:
            start_holder(folder, user, ()).end()
        except (SandboxError, OSError) as error:
            return str(error)
    return ""


def _hold(
    folder: Path, pid: int, pidfd: int, lock: int, child: subprocess.Popen[bytes] | None = None
) -> NetworkHolder:
    net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    owner = -1
    try:
        if os.geteuid() != 0:
            owner = fcntl.ioctl(net, _GET_USERNS)
            os.set_inheritable(owner, False)
    except BaseException:
        os.close(net)
        raise
    return NetworkHolder(pid, pidfd, net, owner, lock, folder / _USERS, child)


def _start(
    folder: Path, user: tuple[int, int], hidden: tuple[Path, ...]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the program, and return it and the number of its first process once it listens."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise SandboxError(f"There is no seccomp filter for {os.uname().machine}.")
    program = _program(user)
    bubblewrap, options = find_helper("bwrap", "bubblewrap"), _options(folder, user, hidden, program)
    # A file, not a pipe: if this process dies, bubblewrap must not die of SIGPIPE. Its second process would
    # wait for the first one without end.
    info = open_data("info", b"")
    ready, says = os.pipe()
    lock = os.open(folder / _USERS, os.O_RDONLY | os.O_CLOEXEC)
    rules = open_data("filter", build_filter(machine, has_namespaces=True, shares_uid=False))
    arguments = open_arguments([*options, "--info-fd", str(info), "--seccomp", str(rules)])
    given = (info, says, lock, rules, arguments)
    argv = [bubblewrap, "--args", str(arguments), "--", *program, str(lock), str(says)]
    argv += [str(PROXY_PORT), f"{_INSIDE}/{FOREGROUND}", str(BACKGROUND_PORT), f"{_INSIDE}/{BACKGROUND}"]
    try:
        child = subprocess.Popen(  # noqa: S603 - the program is bubblewrap
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={}, cwd="/", pass_fds=given, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        for fd in (info, ready):
            os.close(fd)
        raise SandboxError(f"bubblewrap cannot be started: {error.strerror}.") from error
    finally:
        for fd in (says, lock, rules, arguments):
            os.close(fd)
    try:
        pid = _first_process(info, ready)
    except BaseException:
        _kill_group(child)
        raise
    if pid:
        assert child.stderr is not None
        child.stderr.close()
        return child, pid
    said = _kill_group(child)
    why = said.decode(errors="replace").strip()[-300:] or "it said nothing"
    raise SandboxError(f"The network of the session cannot be made: {why}.", "Run `talaria doctor`.")


def _kill_group(child: subprocess.Popen[bytes]) -> bytes:
    """Kill bubblewrap and the processes that it has made, and return what they said."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.communicate()[1]


def _first_process(info: int, ready: int) -> int:
    """Wait until the program listens, and return the number of its first process; 0 if it failed. Closes
    both descriptors."""
    with open(info, "rb") as info_file, open(ready, "rb") as ready_file:
        if not _is_readable(ready, _PATIENCE) or ready_file.read() != b"ready":
            return 0
        try:
            info_file.seek(0)
            return int(json.loads(info_file.read())["child-pid"])
        except (ValueError, KeyError):
            return 0


def _options(folder: Path, user: tuple[int, int], hidden: tuple[Path, ...], program: list[str]) -> list[str]:
    """Return bubblewrap's options for this program. There is no /dev: for that bubblewrap would make a second
    user namespace, which does not own the network."""
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    options += ["--as-pid-1", "--cap-drop", "ALL"]
    if user[0]:
        options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        options += ["--unshare-user"]
    prefix = Path(os.path.realpath(sys.base_prefix))
    mounts = [*system_mounts(hidden), bind(prefix, str(prefix)), bind(folder, _INSIDE)]
    return [*options, *mount_options(mounts, program[:1])]


def _program(user: tuple[int, int]) -> list[str]:
    text = Path(forwarder.__file__).read_text()
    words = drop_privileges(*user) if user[0] else []
    return [*words, os.path.realpath(sys.executable), "-I", "-S", "-c", text]


def _check_join(holder: NetworkHolder) -> None:
    """Raise `SandboxError` unless a program that joins is in the namespace, which is not this process's."""
    if os.fstat(holder.net).st_ino == Path("/proc/self/ns/net").stat().st_ino:
        raise SandboxError("The session got no network of its own.")
    words = [find_helper("nsenter", "util-linux"), f"--net=/proc/self/fd/{holder.net}"]
    if holder.owner >= 0:
        words += [f"--user=/proc/self/fd/{holder.owner}", "--preserve-credentials"]
    words += ["--", find_helper("readlink", "coreutils"), "/proc/self/ns/net"]
    done = subprocess.run(  # noqa: S603 - the program is nsenter
        words, capture_output=True, env={}, check=False, timeout=_PATIENCE, pass_fds=holder.namespaces
    )
    if done.stdout.strip() != f"net:[{os.fstat(holder.net).st_ino}]".encode():
        why = done.stderr.decode(errors="replace").strip()[-300:]
        raise SandboxError(f"The network of the session cannot be joined: {why}.", "Run `talaria doctor`.")


def _is_readable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor can be read. `select` takes none beyond 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _start_time(pid: int) -> int:
    """Return when a process was started, in ticks since the machine was. Raises `OSError`."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
