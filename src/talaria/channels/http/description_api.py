"""`GET /openapi.json`: the description of the API, made at its first use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from talaria.channels.http.description import DescribedCall
from talaria.channels.http.request import Request
from talaria.channels.http.response import Response
from talaria.core.version import this_version

if TYPE_CHECKING:
    from talaria.channels.http.routing import ApiRoute


class DescriptionApi:
    """`routes` may get further routes until the first call."""

    def __init__(self, routes: Mapping[str, Mapping[str, ApiRoute]]) -> None:
        self._routes = routes
        self._document: bytes | None = None

    async def openapi(self, request: Request) -> Response:
        if self._document is None:
            self._document = await asyncio.to_thread(self._make)
        return Response(self._document)

    def calls(self) -> Iterator[DescribedCall]:
        for path, methods in self._routes.items():
            for method, route in methods.items():
                yield DescribedCall(path, method, route.access, route.call)

    def _make(self) -> bytes:
        from talaria.channels.http.openapi import make_openapi  # noqa: PLC0415 - needed once, if at all

        return make_openapi(self.calls(), this_version()) + b"\n"
