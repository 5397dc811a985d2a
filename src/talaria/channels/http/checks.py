"""The checks of `talaria doctor` for the HTTP API: its token and its port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from talaria.channels.http.server import bind
from talaria.channels.http.settings import DEFAULT_PORT, HttpSettings
from talaria.channels.http.token import find_http_token
from talaria.config.home import Home, open_mode
from talaria.config.issues import dotted, read_overrides
from talaria.core.errors import TalariaError
from talaria.core.gateway_part import Examination
from talaria.core.problems import Problem, close_command, ok, shell, warn
from talaria.store.engines import has_room

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
