"""The token of the HTTP API: from an environment variable, else from `http.token` in the home."""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Mapping

import msgspec

from talaria.config.home import Home, open_mode
from talaria.core.errors import ConfigError
from talaria.core.whole_files import write_new

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
