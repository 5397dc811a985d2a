"""A channel that fails does not keep the gateway from shutting down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.gateway import without_http
from talaria.channels.descriptor import Channel
from talaria.channels.supervisor import open_channels
from talaria.core.settings import NoSettings
from talaria.gateway import Gateway


@dataclass(frozen=True)
class Open:
    status: str = "ready"


@asynccontextmanager
async def fail_to_close(gateway: Gateway, settings: NoSettings) -> AsyncIterator[Open]:
    yield Open()
    raise OSError("the connection broke")


@asynccontextmanager
async def break_on_the_way_out(gateway: Gateway, settings: NoSettings) -> AsyncIterator[Open]:
    try:
        yield Open()
    finally:
        raise OSError("the connection broke")


@pytest.mark.parametrize("opening", [fail_to_close, break_on_the_way_out])
async def test_a_channel_whose_close_fails_does_not_hold_up_the_shutdown(
    opening: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    channel = Channel(name="broken", settings=NoSettings, open=opening)  # type: ignore[arg-type]
    async with without_http(tmp_path) as gateway:

        async def open_and_close() -> None:
            async with open_channels(gateway, (channel,)):
                assert gateway.channels["broken"].status == "ready"

        await asyncio.wait_for(open_and_close(), 10)
    if opening is break_on_the_way_out:
        assert "the channel broken failed" in caplog.text
