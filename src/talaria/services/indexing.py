"""The search index as a part of the gateway: it follows the logs of all sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from talaria.core.gateway_part import NoSettings
from talaria.core.tasks import run_loops
from talaria.gateway import Gateway, ServicePart


@asynccontextmanager
async def _open(gateway: Gateway, settings: NoSettings) -> AsyncIterator[None]:
    def may_work() -> bool:
        return not gateway.loop_watch.load.sheds_scheduled

    async with run_loops(gateway.clock, {"search index": partial(gateway.search.run, may_work)}):
        yield


SEARCH_INDEX: Final = ServicePart(name="search index", settings=NoSettings, open=_open)
