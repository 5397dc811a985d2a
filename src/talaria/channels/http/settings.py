"""`[http]`: where the API listens."""

from __future__ import annotations

from typing import Annotated

import msgspec

from talaria.core.units import Size

DEFAULT_PORT = 8765


class HttpSettings(msgspec.Struct, frozen=True):
    """`port` None is the default port, or the next free one; 0 picks any free one. `hosts` are further
    exact `name:port` forms under which clients reach the gateway, e.g. behind a proxy."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None
    token_env: str = "TALARIA_HTTP_TOKEN"  # noqa: S105 - the name of a variable
    hosts: tuple[str, ...] = ()
    max_body: Size = Size(32 << 20)
    max_file: Size = Size(20 << 20)
