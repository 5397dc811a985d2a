"""The home: the one folder that holds everything a gateway keeps, and whether it can be trusted.

A home decides where keys are sent and which commands run, so no other user may own it, write it, or put
another folder in its place. The rule is that of OpenSSH for a user's keys: each file, and each folder on the
way to it, belongs to this user or to root, and no other user may write it. A folder with the sticky bit, such
as /tmp, may be open, because its entries are safe from other users there. A group may write if it is this
user's own group, or root's, and has no other member.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import os
import pwd
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from talaria.core.errors import ConfigError, StoreError
from talaria.core.whole_files import Stamp, lock_file, replace_file, stamp_of, write_new
from talaria.store.settings import find_database, is_file
from talaria.workspace.folder import count_chat_folders

DEFAULT_HOME = "~/.talaria"
_ELSEWHERE = "or name a home of your own with --home or TALARIA_HOME"


class GatewayInfo(msgspec.Struct, frozen=True):
    """How other commands find the running gateway."""

    pid: int
    url: str
    version: str
    started_at: float


class _Inside:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: Home, owner: type[Home]) -> Path:
        return home.path / self._name


class Home(msgspec.Struct, frozen=True):
    """The paths in the folder, the folder itself, and `gateway.json`."""

    path: Path
    config = _Inside("config.toml")
    database = _Inside("talaria.db")
    lock = _Inside("talaria.lock")
    gateway_json = _Inside("gateway.json")
    token_file = _Inside("http.token")
    files = _Inside("files")
    logs = _Inside("logs")
    login_pages = _Inside("open")
    replacing = _Inside(".replacing")  # a file that is there while a restore replaces the home's files

    @classmethod
    def find(cls, option: str | Path | None, environ: Mapping[str, str]) -> Home:
        """Return the home of `--home`, else of TALARIA_HOME, else `~/.talaria`. Does not touch the disk."""
        named = option or environ.get("TALARIA_HOME") or DEFAULT_HOME
        try:
            return cls(Path(named).expanduser().absolute())
        except (RuntimeError, FileNotFoundError) as error:
            raise ConfigError(
                f"The home {str(named)!r} cannot be resolved: {error}.",
                "Name a folder by its whole path with --home or TALARIA_HOME.",
            ) from error

    def find_database(self, url: str) -> Path:
        """Return the file that `store.url` names."""
        return find_database(url, self.database)

    def find_loss(self, url: str) -> StoreError | None:
        """Return the error for a restore that was interrupted, and for a database that is missing while its
        saved content or the chats' files are there; None otherwise.

        A start would make an empty database, as if nothing had been. Files in a home that no gateway has
        locked yet were put there beforehand.
        """
        from talaria.store.part import find_unrestored  # noqa: PLC0415 - heavy

        if self.replacing.exists():
            return StoreError(
                f"A restore of the home {self.path} was interrupted, so files may be missing.",
                "Run `talaria restore FILE` again. To keep the files as they are now, delete "
                f"{shlex.quote(str(self.replacing))}.",
            )
        database = self.find_database(url)
        if not self.lock.exists() or not is_file(url) or database.exists():
            return None
        if (loss := find_unrestored(database)) is not None:
            return loss
        chats = count_chat_folders(self.path)
        if not chats:
            return None
        return StoreError(
            f"The database {database} is gone, but {self.files} holds files of {chats} "
            f"chat{'' if chats == 1 else 's'}.",
            "`talaria restore FILE` brings a backup back. To start empty, move the files away: "
            + shlex.join(["mv", str(self.files), f"{self.files}-before"]),
        )

    def prepare(self) -> tuple[str, ...]:
        """Make the folder (0700) if it is missing, and check that it can be written. Return warnings.

        Raises `ConfigError` if the folder cannot be made or written.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self.path / f".write-test-{os.getpid()}"
            write_new(probe, b"")
            probe.unlink()
        except OSError as error:
            is_file = self.path.exists() and not self.path.is_dir()
            why = "is a file, not a folder" if is_file else f"cannot be used: {error.strerror or error}"
            hint = "Name a folder that you can write with --home or TALARIA_HOME."
            raise ConfigError(f"The home {self.path} {why}.", hint) from error
        if mode := open_mode(self.path):
            text = f"The home {self.path} is open to other users (mode {mode})."
            return (f"{text} If it is for Talaria alone, close it with: chmod 700 {self.path}",)
        return ()

    # -- the running gateway's address

    def write_gateway(self, info: GatewayInfo) -> None:
        """Write where the gateway is, atomically. Raises `ConfigError`."""
        try:
            replace_file(self.gateway_json, msgspec.json.encode(info) + b"\n")
        except OSError as error:
            raise ConfigError(
                f"{self.gateway_json} cannot be written: {error.strerror or error}.",
                "Make room on the disk and the home writable for this user.",
            ) from error

    def read_gateway(self) -> GatewayInfo | None:
        """Return where the running gateway is; None if the file is missing or its process is dead."""
        try:
            info = msgspec.json.decode(self.gateway_json.read_bytes(), type=GatewayInfo)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return info if _is_alive(info.pid) else None

    def is_locked(self) -> bool:
        """Return whether a live process owns the home. The lock is shared for an instant, never taken."""
        try:
            handle = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(handle)
        return False

    def remove_gateway(self) -> None:
        """Remove the file and the pages of `talaria open`, unless they belong to another live gateway."""
        info = self.read_gateway()
        if info is None or info.pid == os.getpid():
            self.gateway_json.unlink(missing_ok=True)
            shutil.rmtree(self.login_pages, ignore_errors=True)  # the codes in them end with the gateway

    def login_page(self, code: str) -> Path:
        """Return the page of `talaria open` for a login code. Its name does not reveal the code."""
        name = hashlib.sha256(code.strip().upper().encode()).hexdigest()[:16]
        return self.login_pages / f"{name}.html"


def open_mode(path: Path) -> str:
    """Return the mode, such as 0644, of a path that is open to other users; empty if private or gone."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return ""
    return f"{mode:04o}" if mode & (stat.S_IRWXG | stat.S_IRWXO) else ""


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's process
    return True


# -- trust ------------------------------------------------------------------------------------------------


class UntrustedHome(ConfigError):
    """Another user controls the home, or a file in it: `path`. `fact` says how, without what it may lead to.
    `command` fixes it; it is empty if this user cannot. `otherwise` is another way out."""

    def __init__(self, path: Path, fact: str, risk: str, otherwise: str, command: str = "") -> None:
        mend = f"Fix it with: {command}" if command else ""
        super().__init__(f"{fact}, who could {risk}.", ", ".join(filter(None, (mend, otherwise))) + ".")
        self.path = path
        self.fact = fact
        self.otherwise = otherwise
        self.command = command


def check_trusted(home: Home, *more: Path) -> None:
    """Raises `UntrustedHome` if another user controls the home, its files or one of the paths `more`."""
    for reason in find_distrust(home, *more):
        raise reason


def find_distrust(home: Home, *more: Path) -> Iterator[UntrustedHome]:
    """Yield an error for each path that another user controls. What does not exist is trusted."""
    seen: set[Path] = set()
    for path in (home.path, home.config, home.token_file, home.database, *more):
        for each in _way_to(path):
            if each not in seen:
                seen.add(each)
                yield from _examine(each, home)


def _way_to(path: Path) -> Iterator[Path]:
    """Yield the path and the folders around it, as named and as links resolve them."""
    yield from (path, *path.parents)
    try:
        real = path.resolve()
    except (OSError, RuntimeError):
        return
    yield from (real, *real.parents)


def _examine(path: Path, home: Home) -> Iterator[UntrustedHome]:
    try:
        found = path.lstat()
    except OSError:
        return
    name = "The home" if path == home.path else "The folder" if stat.S_ISDIR(found.st_mode) else "The file"
    where = shlex.quote(str(path))
    if found.st_uid not in (os.geteuid(), 0):
        owner = _user_name(found.st_uid)
        fact, risk = f"{name} {path} belongs to another user ({owner})", "read keys and send them elsewhere"
        if os.geteuid() == 0:
            otherwise = f"run as that user (sudo -u {owner} talaria …), {_ELSEWHERE}"
            command = f"chown {'-R ' if path == home.path else ''}root {where}"
            yield UntrustedHome(path, fact, risk, otherwise, command)
        else:
            yield UntrustedHome(path, fact, risk, _ELSEWHERE.removeprefix("or ").capitalize())
    elif not stat.S_ISLNK(found.st_mode) and _others_write(found):
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        fact = f"{name} {path} can be written by other users (mode {mode})"
        sudo = "" if found.st_uid == os.geteuid() else "sudo "
        yield UntrustedHome(path, fact, "send keys elsewhere", _ELSEWHERE, f"{sudo}chmod go-w {where}")


def _others_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_ISVTX and stat.S_ISDIR(found.st_mode):
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


def _is_own_group(gid: int) -> bool:
    """Return whether this user is the only member of the group. A group without a name, as volumes of
    containers have it, counts if this process is in it. Root's group counts: containers that run as any user
    have it, and root may write everything in any case."""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid in (os.getegid(), *os.getgroups())
    user = _user_name(os.geteuid())
    if gid == 0:
        return set(group.gr_mem) <= {user, "root"}
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


# -- `secrets.env` in the home: values that settings name as `${NAME}`, for their owner only --------------
# The file stands behind the environment of the process: a variable that is set there wins. Each line is
# `NAME=VALUE`, without quotes; lines that begin with `#` are comments.


SECRETS_FILE = "secrets.env"
_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_HEAD = "# Secrets that config.toml names as ${NAME}. `talaria mcp add` writes here.\n"


class HomeEnviron(Mapping[str, str]):
    """The environment, and behind it the secrets of the home, as they are now. Variables that override
    settings (`TALARIA_…`) count in the environment only."""

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self._home = home
        self._path = home / SECRETS_FILE
        self._stamp: Stamp = None
        self._found: Mapping[str, str] = {}

    def __getitem__(self, name: str) -> str:
        value = self.environ.get(name)
        return self.stored()[name] if value is None else value

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.environ, *self.stored())))

    def __len__(self) -> int:
        return len({*self.environ, *self.stored()})

    def stored(self) -> Mapping[str, str]:
        """Return the secrets of the file. It is read again when it was changed."""
        stamp = stamp_of(self._path)
        if stamp != self._stamp:
            self._found, self._stamp = read_secrets_file(self._home), stamp
        return self._found


def home_environ(home: Path, environ: Mapping[str, str]) -> HomeEnviron:
    """Return the environment with the home's secrets behind it; an environment that has them is returned."""
    return environ if isinstance(environ, HomeEnviron) else HomeEnviron(home, environ)


def read_secrets_file(home: Path) -> dict[str, str]:
    """Return the values by their names; none without a file that can be read."""
    try:
        lines = (home / SECRETS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = (_LINE.fullmatch(line) for line in lines)
    return {match[1]: match[2] for match in found if match and not match[1].upper().startswith("TALARIA_")}


def write_secrets_file(home: Path, values: Mapping[str, str | None]) -> None:
    """Set these values, or remove those that are None; other lines stay, also those that another process
    writes at the same time. Raises `ConfigError`."""
    path = home / SECRETS_FILE
    try:
        with lock_file(home / ".lock"):
            _write(path, values)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.", "Is the home yours?") from error


def _write(path: Path, values: Mapping[str, str | None]) -> None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        lines = [_HEAD]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", "Make it a text file of your own.") from error
    kept = [line for line in lines if line.partition("=")[0] not in values]
    if kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    kept += [f"{name}={value}\n" for name, value in values.items() if value is not None]
    if any(_LINE.match(line) for line in kept):
        replace_file(path, "".join(kept).encode())
    else:
        path.unlink(missing_ok=True)
