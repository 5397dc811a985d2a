"""The sandbox port: commands and their user, limits, what they read of the system, and how they start."""

from __future__ import annotations

import fcntl
import marshal
import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from talaria.core.errors import TalariaError

# The values of `tools.sandbox`. `auto` is the first one that holds on this machine.
SandboxKind: TypeAlias = Literal["auto", "bubblewrap", "landlock", "container", "ssh", "none"]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_WORD = 128 << 10  # bytes of one argument or variable: Linux takes no more
_MAX_WORDS = 1 << 20  # bytes of all of them
_HAS_PROC = sys.platform == "linux"  # macOS has neither /proc nor O_PATH; commands run without a sandbox
_FOLDER_FLAGS = os.O_DIRECTORY | os.O_CLOEXEC | (os.O_PATH if _HAS_PROC else os.O_RDONLY)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The text of a shell is in these variables: other users of the machine can read the words of a process, and
# not its variables. They are gone when the text runs.
_SCRIPT, _TEXT = "TALARIA_SCRIPT", "TALARIA_TEXT"
_EVAL = f'eval "unset {_SCRIPT}; ${_SCRIPT}"'
_EVAL_WITH_TEXT = f'set -- "${_TEXT}"; eval "unset {_SCRIPT} {_TEXT}; ${_SCRIPT}"'
# Shells refuse to set these, or take them for their own state.
_SHELLS_OWN = {"BASHOPTS", "BASHPID", "BASH_ENV", "ENV", "EUID", "IFS", "PPID", "PS4", "SHELLOPTS", "UID"}


def is_settable(name: str) -> bool:
    """Return whether a command can have a variable of this name."""
    return _VARIABLE.fullmatch(name) is not None and name not in _SHELLS_OWN


class SandboxError(TalariaError):
    """A command was not run, because of the command itself or because the sandbox could not be made."""

    type = "sandbox"


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """`memory`, `file_size` and `open_files` are limits of each process, `processes` of all together.
    `seconds` is the time until the command is ended."""

    memory: int = 2 << 30
    processes: int = 256
    seconds: float = 120.0
    file_size: int = 4 << 30
    open_files: int = 1024


@dataclass(frozen=True, slots=True)
class NetworkAccess:
    """The network of a session, which its commands share, and the way into it.

    `namespaces` are descriptors of this process, which a command joins one after the other. `users` is a
    file; as long as a command holds a shared lock on it, the namespace stays. `environ` names the proxy,
    which is the only way out of the namespace.
    """

    namespaces: tuple[int, ...]
    users: Path
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SandboxCommand:
    """A command and what it may touch.

    It can write in `folder`, `home`, `tmp` and `more_writable`, and read the system's programs and
    `readable`. All of them are absolute paths of folders that exist. None of them lies in a writable one, or
    a command could replace it by a link. It sees the variables of `environ` and a few that every program
    needs, and no other. Without `network` it reaches nothing but itself. Only bubblewrap can join one. With
    `tty` its input and output are a terminal of its own. With `has_input` its input is a pipe that the
    gateway writes to; without either it is empty. With `may_nest` it can have a sandbox of its own inside, as
    a browser does; only bubblewrap allows that. With `is_joined` its errors are part of its output, in the
    order in which it wrote both.
    """

    argv: Sequence[str]
    folder: Path
    home: Path
    tmp: Path
    cwd: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    readable: tuple[Path, ...] = ()
    more_writable: tuple[Path, ...] = ()
    limits: ProcessLimits = ProcessLimits()
    network: NetworkAccess | None = None
    tty: bool = False
    has_input: bool = False
    is_joined: bool = False
    may_nest: bool = False

    @property
    def writable(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((self.folder, self.home, self.tmp, *self.more_writable)))

    def variables(self, tmp: str) -> dict[str, str]:
        """Return the whole environment of the command. `tmp` is the path of its temporary folder inside."""
        own = {"PATH": PATH, "HOME": str(self.home), "TMPDIR": tmp, "TMP": tmp, "TEMP": tmp}
        own |= {
            "LANG": "C.UTF-8",
            "USER": "talaria",
            "LOGNAME": "talaria",
            "TERM": "xterm" if self.tty else "dumb",
            "SHELL": "/bin/sh",
        }
        return own | dict(self.environ) | (dict(self.network.environ) if self.network else {})

    def start(self, tmp: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the words and the whole environment to start the command with. The text of a shell, and its
        one argument, are in the environment."""
        environ = self.variables(tmp)
        match tuple(self.argv):
            case (program, "-c", script) if _is_shell(program):
                return (program, "-c", _EVAL, program), environ | {_SCRIPT: script}
            case (program, "-c", script, name, text) if _is_shell(program):
                return (program, "-c", _EVAL_WITH_TEXT, name), environ | {_SCRIPT: script, _TEXT: text}
        return tuple(self.argv), environ

    def check(self) -> None:
        """Raise `SandboxError` if this command cannot be run as it is."""
        _check_words(self.argv, self.environ)
        writable = self.writable
        for one in (*writable, *self.readable):
            os.close(open_folder(one))
            if any(one != other and is_inside(one, other) for other in writable):
                text = f"The folder {one} lies in another one that the command can write."
                raise SandboxError(text, "Move one of the two folders elsewhere.")
        if self.cwd is not None and not self.cwd.is_dir():
            raise SandboxError(f"The working folder {self.cwd} is gone.", "Change to a folder that exists.")


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether the path is the folder or lies in it. As texts: this is done often for each command."""
    return f"{path}/".startswith(f"{folder}/" if folder.name else "/")


def _is_shell(program: str) -> bool:
    return program.rpartition("/")[2] in ("sh", "bash")


def shell(text: str) -> tuple[str, ...]:
    """Return the words that run a text of the shell."""
    return ("/bin/sh", "-c", text)


def _check_words(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    if not argv or not argv[0].strip() or (argv[:2] == ("/bin/sh", "-c") and not "".join(argv[2:]).strip()):
        raise SandboxError("The command is empty.", "Say what to run.")
    for name in environ:
        if not is_settable(name):
            raise SandboxError(
                f"A variable cannot be named {name!r}.", "Use letters, digits and underscores."
            )
    words = [*argv, *(f"{name}={value}" for name, value in environ.items())]
    if any("\0" in word for word in words):
        raise SandboxError("The command has a NUL byte.", "Write such bytes to a file, and name the file.")
    try:
        sizes = [len(os.fsencode(word)) for word in words]
    except UnicodeEncodeError:
        text = "The command is not valid Unicode text."
        raise SandboxError(text, "Write such bytes to a file, and name the file.") from None
    if max(sizes) >= _MAX_WORD - len(_SCRIPT) - 1 or sum(sizes) > _MAX_WORDS:
        text = f"The command is too long: one word may have {_MAX_WORD >> 10} KiB, all of them 1 MiB."
        raise SandboxError(text, "Write a script to a file, and run the file.")


@dataclass(frozen=True, slots=True)
class Launch:
    """How the spawner starts a command inside a sandbox, with an empty environment.

    `argv` is a program that runs the command, and ends every process of it when it is killed itself. Without
    it, `confined` is the order of `launcher`. `fds` are inherited under their own numbers, and closed here
    once they are sent. `status` is the reading end of a pipe that tells, as JSON, the exit code of the
    command or the `error` that kept it from running. `joins` are those of `fds` that are namespaces, which
    the program is started in.
    """

    argv: tuple[str, ...]
    fds: tuple[int, ...]
    status: int
    confined: Mapping[str, Any] | None = None
    joins: tuple[int, ...] = ()

    def order(self, leash: Path | None, background: Mapping[str, Any] | None = None) -> bytes:
        """Return the order to the spawner. With a `leash`, the command ends with it."""
        return marshal.dumps(
            {
                "argv": self.argv,
                "numbers": self.fds,
                "joins": self.joins,
                "confined": self.confined,
                "leash": "" if leash is None else str(leash),
                "background": background,
            }
        )

    def close(self) -> None:
        for fd in (*self.fds, self.status):
            os.close(fd)


class Sandbox(Protocol):
    """A way to contain commands. `name` is its word in `tools.sandbox`."""

    @property
    def name(self) -> str: ...

    def temporary(self, command: SandboxCommand) -> str:
        """Return the path of the command's temporary folder inside the sandbox."""
        ...

    def prepare(self, command: SandboxCommand) -> Launch:
        """Return the program to start, which the caller starts or closes. Raises `SandboxError`."""
        ...


def open_data(name: str, content: bytes) -> int:
    """Return a descriptor of an anonymous file that has this content and is read from its beginning."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_arguments(words: Sequence[str]) -> int:
    """Return a descriptor of options for bubblewrap's `--args`, which have paths with the keys of chats."""
    return open_data("arguments", os.fsencode("\0".join((*words, ""))))


def open_folder(path: Path) -> int:
    """Return a descriptor of a folder. Raises `SandboxError` if the folder is gone or its path goes through a
    link, also if a command has just planted the link."""
    try:
        fd = os.open(path, _FOLDER_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        text = f"The folder {path} is gone."
        raise SandboxError(text, "Make it again, or start a new session.") from None
    except OSError as error:
        raise SandboxError(f"The folder {path} cannot be opened: {error.strerror}.") from error
    real = os.readlink(f"/proc/self/fd/{fd}") if _HAS_PROC else os.path.realpath(path)  # noqa: PTH115
    if real != str(path):
        os.close(fd)
        raise SandboxError(f"The path {path} goes through a link.", "Name the folder itself.")
    return fd


def open_shared(path: Path) -> int:
    """Return a descriptor that holds a shared lock on a file as long as any process has it open."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise SandboxError("The network of the session is gone.", "Run the command again.") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise SandboxError("The network of the session has just ended.", "Run it again.") from error
    return fd


# -- the user that commands run as when the gateway runs as root

# As root the kernel enforces no limit of processes, and ownership protects nothing. So each folder that root
# made for commands gets a user of its own, far from those of people, services and containers.
_FIRST_UID, _UIDS = 0x54410000, 0xFFFF
_NOBODY = 65534


def command_user(folder: Path) -> tuple[int, int]:
    """Return the uid and gid of commands that work in this folder; (0, 0) to stay the gateway's user.

    As root that is the owner of the folder, so that files keep their owner. Raises `SandboxError` if root
    owns it: `hand_over` changes that.
    """
    if os.geteuid() != 0:
        return 0, 0
    status = folder.stat()
    if status.st_uid == 0:
        text = f"The folder {folder} belongs to root, and commands do not run as root."
        raise SandboxError(text, f"Give it to another user, such as: chown -R nobody {folder}")
    return status.st_uid, status.st_gid or _NOBODY


def hand_over(folders: tuple[Path, ...]) -> None:
    """Give folders that root owns, and what is in them, to the user of the first one. Does nothing unless
    the gateway runs as root. Links are not followed."""
    if os.geteuid() != 0:
        return
    status = folders[0].stat()
    uid = status.st_uid or _own_uid(folders[0])
    gid = status.st_gid or uid
    for folder in folders:
        if folder.stat().st_uid != uid:
            for _, folder_names, file_names, fd in os.fwalk(folder, follow_symlinks=False):
                for name in (*folder_names, *file_names):
                    os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
            os.chown(folder, uid, gid)


def is_own_uid(uid: int) -> bool:
    """Return whether a user was made for one folder. Any other may own files and processes elsewhere."""
    return _FIRST_UID <= uid < _FIRST_UID + _UIDS


def _own_uid(folder: Path) -> int:
    uid = _FIRST_UID + zlib.crc32(os.fsencode(folder)) % _UIDS
    with open("/proc/self/uid_map") as file:  # noqa: PTH123 - a container may have fewer users
        ranges = [[int(word) for word in line.split()] for line in file]
    return uid if any(first <= uid < first + count for first, _, count in ranges) else _NOBODY


# -- the folders and files of the system that commands may read

_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
# Not the whole of /etc, which also has passwords, keys and names of this machine.
_ETC_FILES = (
    "alternatives", "ca-certificates", "crypto-policies", "fonts", "gai.conf", "gitconfig", "host.conf",
    "hosts", "inputrc", "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf",
    "localtime", "magic", "mailcap", "mime.types", "nsswitch.conf", "pki/ca-trust", "pki/tls/cert.pem",
    "pki/tls/certs", "profile.d", "protocols", "python3", "resolv.conf", "services", "skel",
    "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vim",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
ACCOUNTS = ("/etc/passwd", "/etc/group")
# Facts of the machine that say nothing about its processes.
PROC_FILES = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version",
    "/proc/filesystems", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/ngroups_max",
    "/proc/sys/kernel/cap_last_cap", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/max_map_count",
    "/sys/devices/system/cpu", "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
)  # fmt: skip


def system_paths(hidden: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the paths that exist here, apart from those that contain one of the `hidden` folders."""
    for path in (*map(Path, _PROGRAMS), *(Path("/etc", name) for name in _ETC_FILES)):
        if path.exists() and not any(each.is_relative_to(path) for each in hidden):
            yield path
