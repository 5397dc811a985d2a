"""The weights of this gateway: on the disk, on their way in the background, or why they are not coming."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from talaria.core.clock import Clock
from talaria.core.events import ModelLoading
from talaria.models.local.cache import Cache
from talaria.models.local.fetch import fetch
from talaria.models.local.manifest import Weights
from talaria.models.local.progress import Progress, Stage
from talaria.models.local.sources import WeightsError
from talaria.models.presets import LOCAL

_log = logging.getLogger("talaria.local")
_TELL_SECONDS = 2.0
_FIRST_PAUSE = 15.0
_LONGEST_PAUSE = 300.0

Fetcher = Callable[[Weights, Cache, Mapping[str, str], Callable[[Progress], None], Clock], Awaitable[Path]]


class Stock:
    """Implements `Arrivals`. `wanted` is fetched by `run`, again and again until it is here."""

    def __init__(
        self,
        cache: Cache,
        environ: Mapping[str, str],
        clock: Clock,
        wanted: Weights | None = None,
        fetcher: Fetcher = fetch,
    ) -> None:
        self._cache = cache
        self._environ = environ
        self._clock = clock
        self._wanted = wanted if wanted is not None and not cache.has(wanted) else None
        self._fetcher = fetcher
        self._is_coming = self._wanted is not None
        self._is_leaving = False
        self._changed = asyncio.Event()
        self.progress: Progress | None = None
        self.failure: WeightsError | None = None
        if self._wanted is not None:
            self.progress = Progress(self._wanted.name, Stage.FETCHING, 0, self._wanted.size)

    @property
    def is_any(self) -> bool:
        return self._is_coming

    def is_coming(self, provider: str, model: str) -> bool:
        wanted = self._wanted.name if self._wanted is not None else ""
        return self._is_coming and (provider, model) == (LOCAL, wanted)

    async def arrival(self, tell: Callable[[ModelLoading], None]) -> bool:
        while self._is_coming and not self._is_leaving:
            if self.progress is not None:
                tell(loading(self.progress))
            try:
                async with asyncio.timeout(_TELL_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return not self._is_leaving

    def let_go(self) -> None:
        self._is_leaving = True
        self._changed.set()

    async def run(self) -> None:
        """Fetches, and after a failure again, until cancelled. Between two tries nothing waits for it."""
        pause = _FIRST_PAUSE
        while (wanted := self._wanted) is not None:
            self._changed.clear()
            self._is_coming = True
            try:
                await self._fetcher(wanted, self._cache, self._environ, self._note, self._clock)
                self.failure, self._wanted = None, None
                break
            except WeightsError as error:
                self.failure = error
                self.progress = Progress(wanted.name, Stage.FAILED, 0, wanted.size, error=error.user_text)
                _log.warning("%s It is tried again in %g s.", error.user_text, pause)
            finally:
                self._is_coming = False
                self._changed.set()
            await self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        await asyncio.Event().wait()

    def _note(self, progress: Progress) -> None:
        self.progress = progress


def loading(progress: Progress) -> ModelLoading:
    left = progress.seconds_left
    return ModelLoading(
        f"{LOCAL}/{progress.model}",
        progress.stage,
        None if left is None else round(left, 1),
        progress.done,
        progress.total,
    )
