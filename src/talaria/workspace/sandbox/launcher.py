"""The launcher of commands without namespaces: restricts a child with Landlock, seccomp and rlimits, and ends
all that it started.

It runs in a copy of the spawner or of a shim, the supervisor, which stays outside of the restrictions. As a
subreaper it inherits every process that the command leaves behind, and ends them when the command ends, on
SIGTERM, or when its own parent dies.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import sys
import termios
from typing import Any, NoReturn

from talaria.workspace.sandbox.group import NOT_RUN, end_children, kill

_PDEATHSIG, _SECCOMP, _SECUREBITS, _SUBREAPER, _NO_NEW_PRIVS, _AMBIENT = 1, 22, 28, 36, 38, 47
_AMBIENT_RAISE, _FILTER = 2, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_CAP_READ_SEARCH = 2
_KEEP_CAPABILITIES = 1 << 2 | 1 << 3 | 1 | 1 << 1  # over a change of the uid; and root gets none. Locked.
MIN_ABI = 6  # Linux 6.12: the first that keeps signals and abstract sockets inside

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_ALL_FILES = (1 << 16) - 1
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_MAKE_DEVICES = 1 << 6 | 1 << 11
_TCP = 1 | 2
_SCOPES = 1 | 2  # abstract Unix sockets, signals

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _call(what: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _prctl(what: str, option: int, *arguments: object) -> None:
    filled = (*arguments, *[0] * (4 - len(arguments)))
    words = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in filled]
    _call(what, _libc.prctl(option, *words))


def landlock_abi() -> int:
    """Return the version of Landlock that this kernel has and permits; 0 for none."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, 0, 1)))


# -- in the child, before the command


def _limit(limits: dict[str, int], uid: int) -> None:
    # Without a namespace of its own, the kernel counts every thread of the uid.
    processes = limits["processes"] + _count_threads(uid)
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["file_size"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, processes),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))
    with open("/proc/self/oom_score_adj", "w") as file:  # the kernel ends commands before the gateway
        file.write("1000")


def _count_threads(uid: int) -> int:
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                status = os.stat(f"/proc/{name}/task")
            except OSError:
                continue  # it has ended
            count += status.st_nlink - 2 if status.st_uid == uid else 0
    return count


def _become(uid: int, gid: int) -> None:
    """Change from root to another user. One capability stays: reading below folders that are closed to this
    user, such as the gateway's home. Landlock decides what can be read there."""
    _prctl("keep capabilities", _SECUREBITS, _KEEP_CAPABILITIES)  # also in access(2), which git asks
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    bit = 1 << _CAP_READ_SEARCH
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    if _libc.capset(header, data) < 0:  # a container's root has few capabilities
        raise OSError("root has no CAP_DAC_READ_SEARCH here: run as another user, or add this capability")
    _prctl("keep a capability", _AMBIENT, _AMBIENT_RAISE, _CAP_READ_SEARCH)


def _restrict_files(order: dict[str, Any]) -> None:
    rules = _Ruleset(_ALL_FILES, _TCP, _SCOPES)
    ruleset = _call("landlock", _libc.syscall(_CREATE_RULESET, ctypes.byref(rules), ctypes.sizeof(rules), 0))
    for kind, allowed in (
        ("writable", _ALL_FILES & ~_MAKE_DEVICES & ~_IOCTL),
        ("readable", _READ),
        ("system", _READ),
        ("devices", _READ_FILE | _WRITE_FILE | _IOCTL | _TRUNCATE),
    ):
        for path in order[kind]:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            # A command of another chat may have just replaced a folder on the way by a link.
            if kind in ("writable", "readable") and os.readlink(f"/proc/self/fd/{fd}") != path:
                raise OSError(f"the path {path} goes through a link")
            is_folder = os.path.isdir(path)
            rule = _PathBeneath(allowed if is_folder else allowed & _OF_A_FILE, fd)
            _call(path, _libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0))
            os.close(fd)
    _call("landlock", _libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _run_command(order: dict[str, Any], status: int) -> NoReturn:
    try:
        os.setsid()
        if order["tty"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        uid = order["uid"] or os.getuid()
        _limit(order["limits"], uid)
        if order["uid"]:
            _become(order["uid"], order["gid"])
        # The kernel clears this signal when the user changes.
        _prctl("die with the supervisor", _PDEATHSIG, signal.SIGKILL)
        _prctl("no new privileges", _NO_NEW_PRIVS, 1)
        os.chdir(order["cwd"])
        if order["is_confined"]:
            _restrict_files(order)
        if order["filter"]:
            filter_: bytes = order["filter"]
            program = _Program(len(filter_) // 8, filter_)
            _prctl("seccomp", _SECCOMP, _FILTER, ctypes.byref(program))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    except (OSError, ValueError) as error:
        text = str(error).replace("\\", "/").replace('"', "'")  # json may not be readable any more
        os.write(status, f'{{"error": "{text}"}}'.encode())
        os._exit(NOT_RUN)
    _become_command(order["argv"], order["environ"])


def _become_command(argv: list[str], environ: dict[str, str]) -> NoReturn:
    """Look the program up as a shell does. os.execvpe would import modules, which cannot be read any more."""
    name = argv[0]
    folders = [""] if "/" in name else [f"{folder or '.'}/" for folder in environ["PATH"].split(":")]
    code, reason = 127, "not found"
    for folder in folders:
        try:
            os.execve(folder + name, argv, environ)  # noqa: S606 - what it is for
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            code, reason = 126, error.strerror or "cannot be run"
    print(f"{name}: {reason}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(code)


# -- the supervisor


def _supervise(main: int, parent: int) -> int:
    """Return the exit code of the command, as a shell tells it, once no process of it is left."""
    code = 128 + signal.SIGKILL
    while os.getppid() == parent:
        if signal.sigwait({signal.SIGCHLD, signal.SIGTERM}) == signal.SIGTERM:
            break
        pid, status = -1, 0
        while pid != main:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
        if pid == main:
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 128 - code
            break
    kill(-main, signal.SIGKILL)
    end_children()
    return code


def supervise(order: dict[str, Any], parent: int) -> int:
    """Run the command that is ordered until nothing is left of it. Return its exit code, or `NOT_RUN`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    _prctl("subreaper", _SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        _run_command(order, order["status"])
    # The command's own input and output end with its processes, and not with this one.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    code = _supervise(child, parent)
    if code != NOT_RUN:
        os.write(order["status"], b'{"exit-code": %d}' % code)
    return code
