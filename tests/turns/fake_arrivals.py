"""A model on its way that arrives when the test says so, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from talaria.core.clock import SystemClock
from talaria.core.events import ModelLoading
from talaria.models.local.downloads import WeightsDownloads
from talaria.models.local.weights import WeightsCache


class FakeArrivals(WeightsDownloads):
    """`model` (provider/name) is on its way from the beginning until `arrive`."""

    def __init__(self, model: str) -> None:
        super().__init__(WeightsCache(Path("/nowhere")), {}, SystemClock())
        self._model = model
        self._is_coming = True
        self._is_leaving = False
        self._changed = asyncio.Event()
        self.waiting = 0

    @property
    def is_any(self) -> bool:
        return self._is_coming

    def is_coming(self, provider: str, model: str) -> bool:
        return self._is_coming and f"{provider}/{model}" == self._model

    async def arrival(self, tell: Callable[[ModelLoading], None]) -> bool:
        if self._is_coming and not self._is_leaving:
            tell(ModelLoading(self._model, "fetching", 31.0, 128_000_000, 491_000_000))
            self.waiting += 1
            try:
                await self._changed.wait()
            finally:
                self.waiting -= 1
        return not self._is_leaving

    def let_go(self) -> None:
        self._is_leaving = True
        self._changed.set()

    def arrive(self) -> None:
        """Or fail to, for good: who waits finds out by asking the model."""
        self._is_coming = False
        self._changed.set()
