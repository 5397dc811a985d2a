"""The weights of this gateway: on the disk, on their way in the background, or why they are not coming."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from talaria.core.clock import Clock
from talaria.core.events import ModelLoading
from talaria.models.local.cache import Cache
from talaria.models.local.fetch import fetch
from talaria.models.local.manifest import DEFAULT, MANIFEST, Weights
from talaria.models.local.needs import unmet
from talaria.models.local.progress import Progress, Stage
from talaria.models.local.sources import WeightsError
from talaria.models.settings import LOCAL, ModelSettings

_log = logging.getLogger("talaria.local")
_TELL_SECONDS = 2.0
_FIRST_PAUSE = 15.0
_LONGEST_PAUSE = 300.0
YES, NO_MODEL = "TALARIA_YES", "TALARIA_NO_MODEL"

Fetcher = Callable[[Weights, Cache, Mapping[str, str], Callable[[Progress], None], Clock], Awaitable[Path]]


class Stock:
    """Implements `PendingModels`. What is wanted is fetched by `run`, again and again until it is here."""

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
        self._fetcher = fetcher
        self._wanted: Weights | None = None
        self._is_coming = False
        self._is_leaving = False
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()
        self._bringing: asyncio.Task[None] | None = None
        self.progress: Progress | None = None
        self.failure: WeightsError | None = None
        if wanted is not None:
            self.want(wanted)

    def follow(self, model: ModelSettings) -> None:
        """Want the built-in model that answers by default, if it may be fetched unasked and could run; of one
        that does not answer any more, what has come is kept for another time."""
        weights = chosen(model)
        if weights is None:
            self._want_nothing()
        elif may_pull(self._environ) and unmet() is None:
            self.want(weights)

    def _want_nothing(self) -> None:
        self._wanted, self._is_coming, self.progress = None, False, None
        self._changed.set()
        if self._bringing is not None:
            self._bringing.cancel()

    def want(self, weights: Weights) -> None:
        """It takes the place of another that is on its way; who waits for that waits for this."""
        if weights == self._wanted or self._cache.has(weights):
            return
        self._wanted, self._is_coming, self.failure = weights, True, None
        self.progress = Progress(weights.name, Stage.FETCHING, 0, weights.size)
        self._changed.clear()
        self._asked.set()
        if self._bringing is not None:
            self._bringing.cancel()

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
        """Brings what is wanted, until cancelled."""
        this = asyncio.current_task()
        assert this is not None
        while True:
            if self._wanted is None:
                await self._asked.wait()
            self._asked.clear()
            self._bringing = asyncio.create_task(self._bring(), name="fetch")
            try:
                await self._bringing
            except asyncio.CancelledError:
                if this.cancelling():
                    raise
            finally:
                self._bringing = None

    async def _bring(self) -> None:
        """Fetches, and after a failure again. Between two tries nothing waits for it."""
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
                if not self._asked.is_set():  # else another comes in its place
                    self._is_coming = False
                    self._changed.set()
            await self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

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


def chosen(model: ModelSettings) -> Weights | None:
    """The built-in model that answers by default; None when another does."""
    is_default = model.provider == LOCAL or not (model.provider or model.name)
    name = model.name or DEFAULT
    return next((weights for weights in MANIFEST if is_default and weights.name == name), None)


def may_pull(environ: Mapping[str, str]) -> bool:
    """Somebody watches and can stop it, or said yes beforehand; and nobody said no."""
    if is_set(environ, NO_MODEL):
        return False
    return is_set(environ, YES) or (sys.stdin.isatty() and sys.stdout.isatty())


def is_set(environ: Mapping[str, str], name: str) -> bool:
    """A variable that says yes."""
    return environ.get(name, "").strip().lower() not in ("", "0", "no", "false")
