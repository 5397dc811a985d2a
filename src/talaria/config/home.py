"""The home: the one folder that holds everything a gateway keeps."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from talaria.core.errors import ConfigError
from talaria.store.settings import find_database

DEFAULT_HOME = "~/.talaria"
SHORTEST_TOKEN = 16
_TOKEN_BYTES = 32


class GatewayInfo(msgspec.Struct, frozen=True):
    """How other commands find the running gateway."""

    pid: int
    url: str
    version: str
    started_at: float


class HttpToken(msgspec.Struct, frozen=True):
    """The token and where it came from; its value stays out of every repr."""

    value: str
    source: str
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"HttpToken(source={self.source!r})"


class _Inside:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: Home, owner: type[Home]) -> Path:
        return home.path / self._name


class Home(msgspec.Struct, frozen=True):
    """The folder's paths, and the small files in it that no other package owns."""

    path: Path
    config = _Inside("config.toml")
    database = _Inside("talaria.db")
    lock = _Inside("talaria.lock")
    gateway_json = _Inside("gateway.json")
    token_file = _Inside("http.token")
    files = _Inside("files")
    logs = _Inside("logs")

    @classmethod
    def find(cls, option: str | Path | None, environ: Mapping[str, str]) -> Home:
        """`--home`, else TALARIA_HOME, else `~/.talaria`. Touches nothing on the disk."""
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

    def prepare(self) -> tuple[str, ...]:
        """Make the folder (0700) and prove that it can be written; what is already there stays as it is.

        Returns warnings. Raises `ConfigError` when the folder cannot be made or written.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self.path / f".write-test-{os.getpid()}"
            _write_new(probe, b"")
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

    # -- the token of the HTTP API

    def http_token(self, environ: Mapping[str, str], token_env: str) -> HttpToken:
        """The token as `find_token` finds it, but a missing `http.token` is made and an open one closed.

        Two processes that make it at once end up with the same one.
        """
        if token_env and token_env in environ:
            return self.find_token(environ, token_env)
        try:
            if not self.token_file.exists():
                self._make_token()
        except OSError as error:
            raise self._no_token(token_env, error) from error
        token = self.find_token(environ, token_env)
        return HttpToken(token.value, token.source, self._close_token())

    def find_token(self, environ: Mapping[str, str], token_env: str) -> HttpToken:
        """The token from the variable `token_env`, else from `http.token`. Only looks.

        Raises `ConfigError` for a token that is missing, too short, or cannot travel in a header.
        """
        if token_env and token_env in environ:
            hint = f"Unset {token_env} to use {self.token_file}, or make one with: openssl rand -hex 32"
            return HttpToken(_check_token(environ[token_env], f"the variable {token_env}", hint), token_env)
        try:
            text = self.token_file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise self._no_token(token_env, error) from error
        hint = f"Delete {self.token_file}; the next start makes a new one."
        return HttpToken(_check_token(text, str(self.token_file), hint), str(self.token_file))

    def _no_token(self, token_env: str, error: OSError) -> ConfigError:
        if isinstance(error, FileNotFoundError) and self.path.is_dir():
            return ConfigError(
                f"The token file {self.token_file} is missing.",
                "Restart the gateway; its start makes a new one.",
            )
        return ConfigError(
            f"The token file {self.token_file} cannot be used: {error.strerror or error}.",
            f"Make it readable for this user, or set {token_env or 'http.token_env'}.",
        )

    def _make_token(self) -> None:
        """Link a finished file into place: nobody ever sees half a token, and the first writer wins."""
        draft = self.path / f".http.token-{secrets.token_hex(8)}"
        _write_new(draft, secrets.token_urlsafe(_TOKEN_BYTES).encode() + b"\n")
        try:
            with contextlib.suppress(FileExistsError):
                self.token_file.hardlink_to(draft)
        finally:
            draft.unlink()

    def _close_token(self) -> tuple[str, ...]:
        mode = open_mode(self.token_file)
        if not mode:
            return ()
        try:
            self.token_file.chmod(0o600)
        except OSError:
            return (f"{self.token_file} is open to other users (mode {mode}) and cannot be closed.",)
        return (
            f"{self.token_file} was open to other users (mode {mode}) and is private now. "
            "If others use this machine, delete it; the next start makes a new one.",
        )

    # -- the running gateway's address

    def write_gateway(self, info: GatewayInfo) -> None:
        """Say where the gateway is, atomically."""
        try:
            replace_file(self.gateway_json, msgspec.json.encode(info) + b"\n")
        except OSError as error:
            raise ConfigError(
                f"{self.gateway_json} cannot be written: {error.strerror or error}.",
                "Make room on the disk and the home writable for this user.",
            ) from error

    def read_gateway(self) -> GatewayInfo | None:
        """Where the running gateway is; None without one, also when a dead one left its file behind."""
        try:
            info = msgspec.json.decode(self.gateway_json.read_bytes(), type=GatewayInfo)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return info if _is_alive(info.pid) else None

    def is_locked(self) -> bool:
        """Whether a live process owns the home. The lock is only looked at, by sharing it for an instant."""
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
        """Take back what this process wrote; another live gateway's file is left alone."""
        info = self.read_gateway()
        if info is None or info.pid == os.getpid():
            self.gateway_json.unlink(missing_ok=True)


def open_mode(path: Path) -> str:
    """The mode of what others than its owner can use, such as 0644; empty for what is private or gone."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return ""
    return f"{mode:04o}" if mode & (stat.S_IRWXG | stat.S_IRWXO) else ""


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put the bytes in the file's place, whole or not at all."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        _write_new(fresh, data, mode)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """A file that only those can read whom `mode` names, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _check_token(text: str, where: str, hint: str) -> str:
    token = text.strip()
    if len(token) < SHORTEST_TOKEN:
        found = f"has {len(token)} characters" if token else "is empty"
        raise ConfigError(
            f"The HTTP token in {where} {found}: expected at least {SHORTEST_TOKEN}, hard to guess.", hint
        )
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError(f"The HTTP token in {where} has spaces or characters other than plain ASCII.", hint)
    return token


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is somebody else's
    return True
