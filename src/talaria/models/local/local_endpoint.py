"""The built-in model as an endpoint: an ordinary one, towards a process that starts when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import ModelRefused, ModelUnavailable, NotFound
from talaria.core.events import ModelLoading
from talaria.core.slots import FairSlots
from talaria.core.specs import Completion, ModelCall, ModelDelta
from talaria.models.limiter import CallLimiter
from talaria.models.local.answering import Answering
from talaria.models.local.downloads import (
    LargerModel,
    OtherDownload,
    WeightsDownloads,
    choose_built_in,
    describe_larger,
    lack_of_memory,
    offer_sentence,
)
from talaria.models.local.local_chat import LocalChat, is_session
from talaria.models.local.runtime import ChildAddress, ModelProcess, memory_limit, missing_requirement
from talaria.models.local.weights import MANIFEST, Weights, WeightsCache, find_weights, megabytes
from talaria.models.settings import LOCAL, LocalSettings, ProviderSettings
from talaria.observe.metrics import EndpointReading

if TYPE_CHECKING:
    from talaria.models.endpoint import Endpoint

_LOOK_SECONDS = 15.0
_FIRST_TOKEN = timedelta(minutes=5)  # a long conversation is read at a hundred tokens a second


class WeightsMissing(ModelRefused):
    """The weights are not on this machine, and no download is under way."""


class LocalEndpoint:
    """See the `Model` port. It makes one call at a time, because the process has one slot; sessions take
    turns."""

    wire = LocalChat()
    max_retries = 2
    retry_within = 600.0  # seconds; loading takes a part of them

    def __init__(
        self,
        cache: WeightsCache,
        downloads: WeightsDownloads,
        process: ModelProcess,
        clock: Clock,
        *,
        idle_after: timedelta = timedelta(minutes=10),
        requirement: Callable[[], ModelRefused | None] = missing_requirement,
        memory: Callable[[], int | None] = memory_limit,
    ) -> None:
        self.downloads = downloads
        self._cache = cache
        self._process = process
        self._clock = clock
        self._idle_after = idle_after.total_seconds()
        self._requirement = requirement
        self._memory = memory
        self._permits = FairSlots(lambda: 1)
        self._limiter = CallLimiter(1, clock)
        self._used_at = clock.elapsed()
        self._inner: tuple[ChildAddress, Endpoint] | None = None

    @property
    def is_resting(self) -> bool:
        return self._limiter.is_resting

    def reading(self) -> EndpointReading:
        return msgspec.structs.replace(
            self._limiter.reading(), busy=self._permits.in_use, waiting=self._permits.waiting
        )

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        async with self._permits.slot(call.session_id, gives_way=call.gives_way):
            weights = _find(call.model)
            model = f"{LOCAL}/{weights.name}"
            has_loaded = False

            def loading() -> None:
                nonlocal has_loaded
                has_loaded = True
                sink(ModelLoading(model, "loading"))

            try:
                path = await self._wait_for_weights(weights, sink)
                address = await self._process.start(weights.name, path, loading)
                if has_loaded:
                    sink(ModelLoading(model, "reading"))
                inner = await self._endpoint(address)
                if not is_session(call.prefix):
                    return await inner.complete(call, sink)
                return await Answering(call, inner.complete, sink, partial(self.offer, weights.name)).run()
            except ModelUnavailable as error:
                if (how := await self._process.exit_reason()) is None:
                    raise
                raise ModelUnavailable(
                    f"The process of the built-in model died: {how}.", "Send your message again."
                ) from error
            finally:
                self._used_at = self._clock.elapsed()

    async def list_models(self) -> bytes:
        """List the models whose weights are here."""
        here = [{"id": weights.name} for weights in MANIFEST if self._cache.has(weights)]
        return msgspec.json.encode({"data": here})

    def refusal(self, name: str) -> ModelRefused | None:
        """Return why this model cannot be called; None if it can, after a download at most."""
        if self._process.serves(name):
            return None
        if (missing := self._requirement()) is not None:
            return missing
        weights = _find(name)
        if self._cache.has(weights) or self.downloads.is_coming(LOCAL, name):
            return None
        if (failure := self.downloads.failure) is not None:
            return ModelRefused(failure.user_text, failure.hint)
        return WeightsMissing(
            f"The built-in model {name} is not on this machine yet.",
            f"Fetch it with `talaria model pull {name}` ({megabytes(weights.size)} MB), "
            "or choose another with `talaria setup`.",
        )

    def default_model(self) -> str:
        """Return the model of new chats, where the configuration names none."""
        return choose_built_in(self._cache, self._memory)

    def offer(self, model: str) -> str:
        """Return a sentence about what can do more than this model without tools."""
        larger = self.larger()
        if model == larger.name:
            return "`/tools all` gives me tools for files."
        return offer_sentence(larger)

    def larger(self) -> LargerModel:
        return describe_larger(self._cache, self.downloads, self._memory, self._requirement)

    def fetch(self, name: str) -> None:
        """Start to download a model, unless it is here. New chats use the larger one as soon as it is.

        Raises `NotFound`, and `ModelRefused` if it cannot run here or another download is under way.
        """
        weights, downloads = find_weights(name), self.downloads
        refusal = self._requirement() or lack_of_memory(weights, self._memory)
        if refusal is not None:
            raise refusal
        if downloads.is_any and not downloads.is_coming(LOCAL, name):
            raise OtherDownload(
                "Another model is being fetched, and downloads are made one at a time.",
                "Try again when it is here.",
            )
        downloads.request(weights)

    def status(self) -> dict[str, object]:
        """Return the process, the progress of a download, and the larger model, for the status page."""
        progress = self.downloads.progress
        return {
            "pid": self._process.pid,
            "weights": None if progress is None else progress.view(),
            "larger": self.larger(),
        }

    async def run(self) -> None:
        """Unload a model that was not used for `idle_after`, until cancelled."""
        while True:
            await self._clock.sleep(min(_LOOK_SECONDS, self._idle_after / 4 or _LOOK_SECONDS))
            idle = self._clock.elapsed() - self._used_at
            is_idle = self._idle_after and idle >= self._idle_after and not self._permits.in_use
            if is_idle and self._process.is_running:
                await self._process.unload()

    async def close(self) -> None:
        if self._inner is not None:
            await self._inner[1].close()
        await self._process.stop()

    async def _wait_for_weights(self, weights: Weights, sink: Callable[[ModelDelta], None]) -> Path:
        if self.downloads.is_coming(LOCAL, weights.name):
            await self.downloads.arrival(sink)
        if (refusal := await asyncio.to_thread(self.refusal, weights.name)) is not None:
            raise refusal
        return self._cache.path(weights)

    async def _endpoint(self, address: ChildAddress) -> Endpoint:
        """Return the endpoint for this address; one for an earlier process is closed."""
        from talaria.models.endpoint import Endpoint  # noqa: PLC0415 - slow to import

        if self._inner is None or self._inner[0] != address:
            if self._inner is not None:
                await self._inner[1].close()
            settings = ProviderSettings(address.url, api_key=address.key, first_token=_FIRST_TOKEN)
            self._inner = (address, Endpoint(LOCAL, settings, self.wire, self._limiter))
        return self._inner[1]


def open_local(settings: LocalSettings, environ: Mapping[str, str], clock: Clock) -> LocalEndpoint:
    """Build the endpoint. Nothing starts here: `run` of the downloads and of the endpoint do the work."""
    cache = WeightsCache.find(environ)
    process = ModelProcess(clock, settings.threads)
    downloads = WeightsDownloads(cache, environ, clock)
    return LocalEndpoint(cache, downloads, process, clock, idle_after=settings.idle_after)


def _find(name: str) -> Weights:
    try:
        return find_weights(name)
    except NotFound as error:
        raise ModelRefused(error.user_text, error.hint) from None
