"""The built-in model as an endpoint: the ordinary one, towards a child process that starts when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import ModelRefused, ModelUnavailable, NotFound
from talaria.core.events import ModelLoading
from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.models.limiter import CallLimiter, FairSemaphore
from talaria.models.local.cache import Cache
from talaria.models.local.manifest import MANIFEST, Weights, find_weights
from talaria.models.local.needs import unmet
from talaria.models.local.progress import megabytes
from talaria.models.local.runtime import Running, Runtime
from talaria.models.local.settings import LocalSettings
from talaria.models.local.stock import Stock
from talaria.models.local.wire import LocalChat
from talaria.models.settings import LOCAL, ProviderSettings
from talaria.observe.metrics import EndpointReading

if TYPE_CHECKING:
    from talaria.models.endpoint import Endpoint

_LOOK_SECONDS = 15.0
_LOAD_SECONDS = 3.0  # what people are told to expect
_FIRST_TOKEN = timedelta(minutes=5)  # a long conversation is read at a hundred tokens a second


class NotHere(ModelRefused):
    """The weights were not fetched yet, and nobody fetches them now."""


class LocalEndpoint:
    """See the `Model` port. One call at a time: the model has one slot, and sessions take turns at it."""

    wire = LocalChat()
    max_retries = 2

    def __init__(
        self,
        cache: Cache,
        stock: Stock,
        runtime: Runtime,
        clock: Clock,
        *,
        idle_after: timedelta = timedelta(minutes=10),
        needs: Callable[[], ModelRefused | None] = unmet,
    ) -> None:
        self.stock = stock
        self._cache = cache
        self._runtime = runtime
        self._clock = clock
        self._idle_after = idle_after.total_seconds()
        self._needs = needs
        self._permits = FairSemaphore(1)
        self._limiter = CallLimiter(1, clock)
        self._used_at = clock.elapsed()
        self._at: tuple[Running, Endpoint] | None = None

    @property
    def is_resting(self) -> bool:
        return self._limiter.is_resting

    def reading(self) -> EndpointReading:
        return msgspec.structs.replace(
            self._limiter.reading(), busy=self._permits.busy, waiting=self._permits.waiting
        )

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        async with self._permits.held(call.session_id):
            weights = _known(call.model)

            has_loaded = False

            def loads() -> None:
                nonlocal has_loaded
                has_loaded = True
                sink(ModelLoading(f"{LOCAL}/{weights.name}", "loading", _LOAD_SECONDS))

            try:
                path = await self._ready(weights, sink)
                running = await self._runtime.up(weights.name, path, loads)
                if has_loaded:
                    sink(ModelLoading(f"{LOCAL}/{weights.name}", "reading"))
                return await (await self._endpoint(running)).complete(call, sink)
            except ModelUnavailable as error:
                if (how := await self._runtime.death()) is None:
                    raise
                raise ModelUnavailable(
                    f"The process of the built-in model died: {how}.", "Send your message again."
                ) from error
            finally:
                self._used_at = self._clock.elapsed()

    async def list_models(self) -> bytes:
        """Those whose weights are here."""
        here = [{"id": weights.name} for weights in MANIFEST if self._cache.has(weights)]
        return msgspec.json.encode({"data": here})

    def refusal(self, name: str) -> ModelRefused | None:
        """Why a call of this model would not be made now; None when it would, if need be after a wait."""
        if self._runtime.serves(name):
            return None
        if (missing := self._needs()) is not None:
            return missing
        weights = _known(name)
        if self._cache.has(weights) or self.stock.is_coming(LOCAL, name):
            return None
        if (failure := self.stock.failure) is not None:
            return ModelRefused(failure.user_text, failure.hint)
        return NotHere(
            f"The built-in model {name} is not on this machine yet.",
            f"Fetch it with `talaria model pull {name}` ({megabytes(weights.size)} MB), "
            "or choose another with `talaria setup`.",
        )

    def status(self) -> dict[str, object]:
        """For the status page: what runs, and how far a fetch is."""
        progress = self.stock.progress
        return {"pid": self._runtime.pid, "weights": None if progress is None else progress.view()}

    async def run(self) -> None:
        """Frees the memory of a model that nobody uses, until cancelled."""
        while True:
            await self._clock.sleep(min(_LOOK_SECONDS, self._idle_after / 4 or _LOOK_SECONDS))
            idle = self._clock.elapsed() - self._used_at
            is_idle = self._idle_after and idle >= self._idle_after and not self._permits.busy
            if is_idle and self._runtime.is_up:
                await self._runtime.rest()

    async def close(self) -> None:
        if self._at is not None:
            await self._at[1].close()
        await self._runtime.stop()

    async def _ready(self, weights: Weights, sink: Callable[[ModelDelta], None]) -> Path:
        if self.stock.is_coming(LOCAL, weights.name):
            await self.stock.arrival(sink)
        if (refusal := await asyncio.to_thread(self.refusal, weights.name)) is not None:
            raise refusal
        return self._cache.path(weights)

    async def _endpoint(self, running: Running) -> Endpoint:
        from talaria.models.endpoint import Endpoint  # noqa: PLC0415 - slow to import

        if self._at is None or self._at[0] != running:
            if self._at is not None:
                await self._at[1].close()
            settings = ProviderSettings(running.url, api_key=running.key, first_token=_FIRST_TOKEN)
            self._at = (running, Endpoint(LOCAL, settings, self.wire, self._limiter))
        return self._at[1]


def open_local(settings: LocalSettings, environ: Mapping[str, str], clock: Clock) -> LocalEndpoint:
    """Starts nothing: the stock's and the endpoint's `run` do, beside everything else."""
    cache = Cache.find(environ)
    runtime = Runtime(clock, settings.threads)
    stock = Stock(cache, environ, clock)
    return LocalEndpoint(cache, stock, runtime, clock, idle_after=settings.idle_after)


def _known(name: str) -> Weights:
    try:
        return find_weights(name)
    except NotFound as error:
        raise ModelRefused(error.user_text, error.hint) from None
