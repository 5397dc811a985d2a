"""The HTTP API and the web page as a part of the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final

from talaria.channels.descriptor import Channel
from talaria.channels.http.settings import HttpSettings
from talaria.core.gateway_part import Examination
from talaria.core.problems import Problem
from talaria.gateway import Gateway, OpenChannel


def _open(gateway: Gateway, settings: HttpSettings) -> AbstractAsyncContextManager[OpenChannel]:
    from talaria.channels.http.http_channel import open_http  # noqa: PLC0415 - heavy

    return open_http(gateway, settings)


def _examine(examination: Examination[HttpSettings]) -> AsyncIterator[Problem]:
    from talaria.channels.http.checks import examine_http  # noqa: PLC0415

    return examine_http(examination)


HTTP: Final = Channel(
    name="http",
    table=("http",),
    settings=HttpSettings,
    is_required=True,
    open=_open,
    findings=_examine,
)
