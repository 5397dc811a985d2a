"""`[http]`, and the HTTP channel as a part of the gateway. Its server is imported when it is opened."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Final

import msgspec

from talaria.channels.descriptor import Channel
from talaria.core.problems import Problem
from talaria.core.settings import Check, Examination, Mark, Unset, matching, variable_name
from talaria.core.units import Size
from talaria.gateway import Gateway, OpenChannel

# -- `[http]`: where the API listens ----------------------------------------------------------------------


DEFAULT_PORT = 8765
SESSION_HEADER = "X-Talaria-Session"
_ANY_PORT = Unset("or the next free port", str(DEFAULT_PORT))
_HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_HOST_AND_PORT = re.compile(_HOST + r":\d{1,5}")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://" + _HOST + r"(?::(\d{1,5}))?")
_USUAL_PORT = re.compile(r"http://.*:80|https://.*:443", re.IGNORECASE)

plain_host = matching(
    "[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", 'a host name or address such as "127.0.0.1", without a port'
)
_OTHER_HEADERS = re.compile(
    r"(?:host|origin|cookie|authorization|connection|expect|upgrade|transfer-encoding|idempotency-key|range"
    r"|content-.*|accept.*|sec-.*|access-control-.*|x-talaria-.*|x-request-id)",
    re.IGNORECASE,
)


def header_name(name: str) -> str | None:
    """A header that has a meaning of its own names no session. `X-Talaria-Session` is the default."""
    is_name = re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,63}", name) is not None
    if is_name and (name.lower() == SESSION_HEADER.lower() or not _OTHER_HEADERS.fullmatch(name)):
        return None
    return 'the name of a header that holds the id of a chat, such as "X-OpenWebUI-Chat-Id"'


def hosts_with_ports(hosts: Sequence[str]) -> str | None:
    if all(_HOST_AND_PORT.fullmatch(host) and int(host.rpartition(":")[2]) <= 65_535 for host in hosts):
        return None
    return 'texts of the form "name:port", such as "talaria.example.org:443"'


def exact_origins(origins: Sequence[str]) -> str | None:
    for origin in origins:
        match = _ORIGIN.fullmatch(origin)
        if match is None or int(match[1] or 0) > 65_535:
            return 'exact origins such as "https://app.example.org", without a path, a final slash or a *'
        if _USUAL_PORT.fullmatch(origin):
            return f'origins as browsers send them: without the usual port, "{origin.rpartition(":")[0]}"'
    return None


def subpath(path: str) -> str | None:
    if not path or re.fullmatch(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+", path):
        return None
    return 'a path without a final slash, such as "/talaria"'


class HttpSettings(msgspec.Struct, frozen=True):
    """`port` None is the default port, or the next free one; 0 picks any free one. `hosts` are further
    exact `name:port` forms under which clients reach the gateway, e.g. behind a proxy. Pages from `origins`
    may call the API with a token. The header `session_header` names the session of a front end's chat. A
    proxy publishes the gateway below `base_path`, whether it passes that on or takes it off."""

    host: Annotated[str, Check(plain_host)] = "127.0.0.1"
    port: Annotated[Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None, _ANY_PORT] = None
    token_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = "TALARIA_HTTP_TOKEN"  # noqa: S105
    hosts: Annotated[tuple[str, ...], Check(hosts_with_ports)] = ()
    origins: Annotated[tuple[str, ...], Check(exact_origins)] = ()
    base_path: Annotated[str, Check(subpath)] = ""
    session_header: Annotated[str, Check(header_name)] = SESSION_HEADER
    max_body: Size = Size(32 << 20)
    max_file: Size = Size(20 << 20)


# -- the HTTP API and the web page as a part of the gateway -----------------------------------------------


def _open(gateway: Gateway, settings: HttpSettings) -> AbstractAsyncContextManager[OpenChannel]:
    from talaria.channels.http.http_channel import open_http  # noqa: PLC0415 - heavy

    return open_http(gateway, settings)


def _examine(examination: Examination[HttpSettings]) -> AsyncIterator[Problem]:
    from talaria.channels.http.token import examine_http  # noqa: PLC0415

    return examine_http(examination)


HTTP: Final = Channel(
    name="http",
    table=("http",),
    settings=HttpSettings,
    is_required=True,
    open=_open,
    findings=_examine,
)
