"""`[http]`: where the API listens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from talaria.core.setting_marks import Check, Mark, Unset, matching, variable_name
from talaria.core.units import Size

DEFAULT_PORT = 8765
_ANY_PORT = Unset("or the next free port", str(DEFAULT_PORT))
_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")

plain_host = matching(
    "[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", 'a host name or address such as "127.0.0.1", without a port'
)


def hosts_with_ports(hosts: Sequence[str]) -> str | None:
    if all(_HOST_AND_PORT.fullmatch(host) and int(host.rpartition(":")[2]) <= 65_535 for host in hosts):
        return None
    return 'texts of the form "name:port", such as "talaria.example.org:443"'


class HttpSettings(msgspec.Struct, frozen=True):
    """`port` None is the default port, or the next free one; 0 picks any free one. `hosts` are further
    exact `name:port` forms under which clients reach the gateway, e.g. behind a proxy."""

    host: Annotated[str, Check(plain_host)] = "127.0.0.1"
    port: Annotated[Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None, _ANY_PORT] = None
    token_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = "TALARIA_HTTP_TOKEN"  # noqa: S105
    hosts: Annotated[tuple[str, ...], Check(hosts_with_ports)] = ()
    max_body: Size = Size(32 << 20)
    max_file: Size = Size(20 << 20)
