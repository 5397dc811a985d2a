"""The token of the HTTP API: from an environment variable, else from `http.token` in the home."""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping

import msgspec

from talaria.channels.http.part import DEFAULT_PORT, HttpSettings
from talaria.channels.http.server import bind
from talaria.config.home import Home, open_mode
from talaria.config.issues import dotted, read_overrides
from talaria.core.errors import ConfigError, TalariaError
from talaria.core.problems import Problem, close_command, ok, shell, warn
from talaria.core.settings import Examination
from talaria.core.whole_files import write_new
from talaria.store.part import has_room

MIN_TOKEN = 16
_TOKEN_BYTES = 32


class HttpToken(msgspec.Struct, frozen=True):
    """The token and its source. The value is left out of the repr."""

    value: str
    source: str
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"HttpToken(source={self.source!r})"


def find_http_token(home: Home, environ: Mapping[str, str], variable: str) -> HttpToken:
    """Return the token. Read-only. Raises `ConfigError` if it is missing, too short, or has characters that a
    header cannot carry."""
    if variable and variable in environ:
        hint = f"Unset {variable} to use {home.token_file}, or make one with: openssl rand -hex 32"
        return HttpToken(_checked(environ[variable], f"the variable {variable}", hint), variable)
    file = str(home.token_file)
    try:
        text = home.token_file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise _unusable(home, variable, error) from error
    return HttpToken(_checked(text, file, f"Delete {file}; the next start makes a new one."), file)


def ensure_http_token(home: Home, environ: Mapping[str, str], variable: str) -> HttpToken:
    """Return the token like `find_http_token`, but make a missing `http.token`, and close an open one to
    other users. Two processes that make it at once get the same token."""
    if variable and variable in environ:
        return find_http_token(home, environ, variable)
    try:
        if not home.token_file.exists():
            _make(home)
    except OSError as error:
        raise _unusable(home, variable, error) from error
    token = find_http_token(home, environ, variable)
    return msgspec.structs.replace(token, warnings=_close(home))


def _make(home: Home) -> None:
    """Link a finished file into place: no reader sees half a token, and the first writer wins."""
    draft = home.path / f".http.token-{secrets.token_hex(8)}"
    try:
        write_new(draft, secrets.token_hex(_TOKEN_BYTES).encode() + b"\n")
        with contextlib.suppress(FileExistsError):
            home.token_file.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def _close(home: Home) -> tuple[str, ...]:
    file = home.token_file
    mode = open_mode(file)
    if not mode:
        return ()
    try:
        file.chmod(0o600)
    except OSError:
        return (f"{file} is open to other users (mode {mode}) and cannot be closed.",)
    return (
        f"{file} was open to other users (mode {mode}) and is private now. "
        "If others use this machine, delete it; the next start makes a new one.",
    )


def _unusable(home: Home, variable: str, error: OSError) -> ConfigError:
    if isinstance(error, FileNotFoundError) and home.path.is_dir():
        return ConfigError(
            f"The token file {home.token_file} is missing.",
            "Restart the gateway; its start makes a new one.",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigError(
            f"The token file {home.token_file} cannot be written: {error.strerror}.",
            f"Make room on the disk of the home, or set {variable or 'http.token_env'}.",
        )
    return ConfigError(
        f"The token file {home.token_file} cannot be used: {error.strerror or error}.",
        f"Make it readable for this user, or set {variable or 'http.token_env'}.",
    )


def _checked(text: str, where: str, hint: str) -> str:
    token = text.strip()
    if len(token) < MIN_TOKEN:
        found = f"has {len(token)} characters" if token else "is empty"
        raise ConfigError(
            f"The HTTP token in {where} {found}: expected at least {MIN_TOKEN}, hard to guess.", hint
        )
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError(f"The HTTP token in {where} has spaces or characters other than plain ASCII.", hint)
    return token


# -- the checks of `talaria doctor` for the HTTP API: its token and its port ------------------------------


_ROOM_BYTES = 4096
# A gateway that waits for room has no lock on its home yet, so the listener may be this home's gateway.
_WAITING = (
    "If this is the gateway of this home, leave it running: it waits for room on the disk and then "
    "continues by itself."
)


async def examine_http(examination: Examination[HttpSettings]) -> AsyncIterator[Problem]:
    home = Home(examination.home)
    for finding in _examine_token(home, examination):
        yield finding
    if examination.status is None and not home.is_locked():
        yield _examine_port(examination)


def _examine_token(home: Home, examination: Examination[HttpSettings]) -> Iterator[Problem]:
    file, variable, environ = home.token_file, examination.settings.token_env, examination.environ
    if variable and variable in environ:
        fine, anew = f"The HTTP token comes from {variable}.", shell("unset", variable)
    else:
        away = shell("mv", file, file.with_name("http.token.unusable")) if file.is_file() else ""
        fine, anew = f"{file}, for this user only.", away
        try:
            file.stat()
        except OSError:
            if not home.is_locked():
                yield ok("token", "There is no HTTP token yet; the first start makes one.")
            return
        if file.is_file() and (mode := open_mode(file)):
            text = f"{file} is open to other users (mode {mode})."
            yield warn("token", text, "", close_command(file, home.path))
            return
    try:
        find_http_token(home, environ, variable)
        yield ok("token", fine)
    except TalariaError as error:
        yield error.problem("token", anew)


def _examine_port(examination: Examination[HttpSettings]) -> Problem:
    settings = examination.settings
    try:
        bound = bind(settings)
    except TalariaError as error:
        if not has_room(examination.home, _ROOM_BYTES):
            return warn("port", error.user_text, _WAITING)
        is_host = error.action is not None or settings.host != HttpSettings().host
        key = ("http", "host") if is_host else ("http", "port")
        override = read_overrides(examination.environ, {}).get(key)
        free = shell("unset", override.variable) if override else f"talaria config unset {dotted(key)}"
        return error.problem("port", free)
    bound.socket.close()
    if bound.notice:
        text = f"Port {DEFAULT_PORT} is in use by another program; a start would take {bound.port} instead."
        choose = f"talaria config set http.port {bound.port}"
        return warn("port", text, "Stop that program, or stay with the other port:", choose)
    return ok("port", f"{bound.address} is free.")
