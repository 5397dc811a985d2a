"""A whole gateway in this process, on a clock that the soak moves. Its tool gives texts of any size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from talaria.app import open_gateway
from talaria.config.home import Home
from talaria.config.load import Loaded
from talaria.config.settings import settings_type
from talaria.core.settings import NoSettings
from talaria.core.tools import ToolSpec
from talaria.core.turns import Inbound, Turn
from talaria.gateway import Gateway
from talaria.observe.health import return_large_blocks
from talaria.parts import PARTS
from talaria.testing.clock import FakeClock
from talaria.tools.function import FunctionTool, parameters
from talaria.tools.part import ToolPart, ToolScope
from talaria.tools.tool import ToolContext, ToolSource
from talaria.tools.toolset import Family
from talaria.turns.settings import ShutdownSettings

_WORDS = "the tide came in over the flat sand and the boats that lay on their sides began to move again "
_TEXT = _WORDS * (1 + (1 << 21) // len(_WORDS))


async def _look(arguments: dict[str, object], context: ToolContext) -> str:
    size = arguments["size"]
    assert isinstance(size, int)
    return f"{context.call_id} " + _TEXT[:size]


@asynccontextmanager
async def _open_look(scope: ToolScope, settings: NoSettings) -> AsyncIterator[ToolSource]:
    spec = ToolSpec("look", "Return a text.", parameters({"size": {"type": "integer"}}))
    yield Family("look", (FunctionTool(spec, _look),))


LOOK = ToolPart(name="look", table=(), settings=NoSettings, open=_open_look)


@asynccontextmanager
async def open_virtual(
    home: Path, model_url: str, clock: FakeClock, tables: Mapping[str, Any] | None = None
) -> AsyncIterator[Gateway]:
    """Open the gateway. Move the clock only while no turn runs: leases and time limits go by it."""
    return_large_blocks()  # as `talaria serve` does
    parts = (*PARTS, LOOK)
    settings = msgspec.convert(
        {
            "model": {"provider": "soak", "name": "scripted"},
            "providers": {"soak": {"base_url": f"{model_url}/v1"}},
            "tools": {"enabled": ["look"], "sandbox": "none"},
            **(tables or {}),
        },
        settings_type(parts),
    )
    settings = msgspec.structs.replace(settings, shutdown=ShutdownSettings(timedelta(seconds=10)))
    async with open_gateway(Home(home), Loaded(settings, (), None), {}, clock, parts=parts) as gateway:
        yield gateway


async def say(gateway: Gateway, inbound: Inbound) -> Turn:
    return await gateway.turns.wait(await gateway.turns.submit(inbound))


async def settle(gateway: Gateway, clock: FakeClock) -> None:
    """Wait until every run that is due has ended. Time goes on slowly, for pauses and deadlines."""
    looks = 0
    while await _is_busy(gateway):
        await asyncio.sleep(0.005)
        looks += 1
        if looks % 4 == 0:
            clock.advance(0.5)


async def _is_busy(gateway: Gateway) -> bool:
    """Return whether a job is due, or a run goes on."""
    if any(True for _ in gateway.turns.live):
        return True
    jobs, now = gateway.store.jobs, gateway.clock.now()
    if await jobs.due(now, 1) or await jobs.is_waiting(now):
        return True
    return bool((await jobs.counts()).slots.get("running"))
