"""How turns wait for `WeightsDownloads`. A subclass gives one with a pending download, and lets it arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from support.waiting import until
from talaria.core.events import ModelLoading
from talaria.models.local.downloads import WeightsDownloads

PROVIDER, MODEL = "local", "qwen2.5-coder-0.5b"


class Coming(NamedTuple):
    arrivals: WeightsDownloads
    arrive: Callable[[], None]


class ArrivalsSuite:
    async def test_what_is_on_its_way_is_known_by_its_provider_and_name(self, coming: Coming) -> None:
        arrivals = coming.arrivals
        assert arrivals.is_any
        assert arrivals.is_coming(PROVIDER, MODEL)
        assert not arrivals.is_coming(PROVIDER, "another")
        assert not arrivals.is_coming("another", MODEL)

    async def test_who_waits_is_told_at_once_and_goes_on_when_it_is_here(self, coming: Coming) -> None:
        told: list[ModelLoading] = []
        waiting = asyncio.create_task(coming.arrivals.arrival(told.append))
        await until(lambda: told, pause=0)
        assert told[0].model == f"{PROVIDER}/{MODEL}"
        assert "Saved. I answer when the model is ready" in told[0].sentence()
        assert not waiting.done()
        coming.arrive()
        assert await waiting
        assert not coming.arrivals.is_any
        assert not coming.arrivals.is_coming(PROVIDER, MODEL)
        assert await coming.arrivals.arrival(told.append), "there is nothing to wait for any more"

    async def test_who_is_let_go_waits_no_longer(self, coming: Coming) -> None:
        told: list[ModelLoading] = []
        waiting = asyncio.create_task(coming.arrivals.arrival(told.append))
        await until(lambda: told, pause=0)
        coming.arrivals.let_go()
        assert not await waiting
        assert not await coming.arrivals.arrival(told.append)

    async def test_a_wait_can_be_cancelled(self, coming: Coming) -> None:
        waiting = asyncio.create_task(coming.arrivals.arrival(lambda event: None))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert waiting.cancelled()
        coming.arrive()
