"""The downloads of this gateway: which weights it wants, and how far they are."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import assert_never

import msgspec

from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.errors import ModelRefused
from talaria.core.events import ModelLoading
from talaria.core.program import spoken_afar
from talaria.core.tasks import sleep_until_woken
from talaria.models.local.fetch import WeightsError, fetch
from talaria.models.local.runtime import memory_limit, missing_requirement
from talaria.models.local.weights import (
    DEFAULT_MODEL,
    LARGER_MODEL,
    MANIFEST,
    FetchProgress,
    FetchStage,
    Weights,
    WeightsCache,
    find_weights,
)
from talaria.models.settings import LOCAL, ModelSettings

# -- the larger built-in model ----------------------------------------------------------------------------


_LARGER_CAN = "The larger built-in model knows more, and can work with files"
_SHARE = 0.8  # of a machine's memory that a model may take


class LargerState(StrEnum):
    ABSENT = "absent"  # `why` says what went wrong, if a download has failed
    FETCHING = "fetching"
    READY = "ready"  # new chats use it
    REFUSED = "refused"  # it cannot run here; `why` says the reason


class LargerModel(msgspec.Struct, frozen=True):
    """A snapshot. `size` and `done` are bytes of the download, `memory` is what the loaded model takes."""

    name: str
    size: int
    memory: int
    state: LargerState
    done: int = 0
    seconds_left: float | None = None
    why: str = ""


class TooLittleMemory(ModelRefused):
    """The machine has less memory than the model needs."""

    type = "too_little_memory"


class OtherDownload(ModelRefused):
    """Another model is being fetched, and downloads are made one at a time."""

    type = "busy"


def lack_of_memory(
    weights: Weights, limit: Callable[[], int | None] = memory_limit
) -> TooLittleMemory | None:
    """Return why these weights do not fit this machine; None if they do, or if its memory is unknown."""
    has = limit()
    if has is None or weights.memory <= has * _SHARE:
        return None
    return TooLittleMemory(
        f"{weights.name} needs {weights.memory / 1e9:.1f} GB of memory for itself, and this machine "
        f"has {has / 1e9:.1f} GB in all.",
        "Stay with the tiny model, or choose one elsewhere with `talaria setup`.",
    )


def choose_built_in(cache: WeightsCache, limit: Callable[[], int | None] = memory_limit) -> str:
    """Return the built-in model of new chats: the larger one if it is here and fits, else the tiny one."""
    larger = find_weights(LARGER_MODEL)
    fits = cache.has(larger) and lack_of_memory(larger, limit) is None
    return LARGER_MODEL if fits else DEFAULT_MODEL


def offer_sentence(larger: LargerModel) -> str:
    """Return what the tiny model says of the larger one. The words suit every channel: they are part of the
    model's reply, which no channel changes."""
    match larger.state:
        case LargerState.READY:
            here = f"new chats use it, and `/model {LOCAL}/{larger.name}` switches this one"
            return f"{_LARGER_CAN}. It is here: {here}."
        case LargerState.FETCHING:
            return f"{_LARGER_CAN}. It is being fetched: new chats use it when it is here."
        case LargerState.ABSENT:
            needs = f"{larger.size / 1e9:.1f} GB to fetch, {larger.memory / 1e9:.0f} GB of memory"
            get = f"`talaria model pull {larger.name}`, or “Use the larger model” on the page, fetches it"
            return spoken_afar(f"{_LARGER_CAN} ({needs}). {get}; new chats use it then.")
        case LargerState.REFUSED:
            return spoken_afar(f"{larger.why} `talaria setup` sets another model.")
        case _:
            assert_never(larger.state)


def describe_larger(
    cache: WeightsCache,
    downloads: WeightsDownloads,
    limit: Callable[[], int | None] = memory_limit,
    requirement: Callable[[], ModelRefused | None] = missing_requirement,
) -> LargerModel:
    weights = find_weights(LARGER_MODEL)
    told = LargerModel(weights.name, weights.size, weights.memory, LargerState.ABSENT)
    if (refusal := requirement() or lack_of_memory(weights, limit)) is not None:
        return msgspec.structs.replace(told, state=LargerState.REFUSED, why=refusal.user_text)
    if cache.has(weights):
        return msgspec.structs.replace(told, state=LargerState.READY, done=weights.size)
    progress = downloads.progress
    if progress is None or progress.model != weights.name:
        return told
    if progress.stage is FetchStage.FAILED:
        return msgspec.structs.replace(told, why=progress.error)
    return msgspec.structs.replace(
        told, state=LargerState.FETCHING, done=progress.done, seconds_left=progress.seconds_left
    )


# -- the downloads of this gateway: which weights it wants, and how far they are --------------------------


_log = logging.getLogger("talaria.local")
_TELL_SECONDS = 2.0
_BACKOFF = Backoff(first=15.0, longest=300.0)
YES_VARIABLE, NO_MODEL_VARIABLE = "TALARIA_YES", "TALARIA_NO_MODEL"

Fetcher = Callable[
    [Weights, WeightsCache, Mapping[str, str], Callable[[FetchProgress], None], Clock], Awaitable[Path]
]


class WeightsDownloads:
    """Fetches the weights that are wanted, one model at a time, and retries until they are here.

    A download is *pending* from the request to its first outcome; while it waits for a retry it is not, so
    that turns do not wait for it. A turn waits for its model before it begins, so the wait counts neither as
    an attempt nor towards the turn's time limit.
    """

    def __init__(
        self,
        cache: WeightsCache,
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
        self._is_pending = False
        self._is_leaving = False
        self._settled = asyncio.Event()  # nothing is pending any more, or the gateway ends
        self._requested = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.progress: FetchProgress | None = None
        self.failure: WeightsError | None = None
        if wanted is not None:
            self.request(wanted)

    def follow(self, model: ModelSettings) -> None:
        """Download the default model if it is built in, can run here and may be fetched without a question.

        If the default is another model, cancel the download. The bytes that have come stay on the disk.
        """
        weights = default_weights(model, choose_built_in(self._cache))
        if weights is None:
            self._wanted, self._is_pending, self.progress = None, False, None
            self._settled.set()
            self._cancel()
        elif may_fetch(self._environ) and missing_requirement() is None:
            self.request(weights)

    def request(self, weights: Weights) -> None:
        """Download these weights unless they are here. Another download is replaced; its waiters wait for
        this."""
        if weights == self._wanted or self._cache.has(weights):
            return
        self._wanted, self._is_pending, self.failure = weights, True, None
        self.progress = FetchProgress(weights.name, FetchStage.FETCHING, 0, weights.size)
        self._settled.clear()
        self._requested.set()
        self._cancel()

    @property
    def is_any(self) -> bool:
        """Whether a download is pending. Cheap."""
        return self._is_pending

    def is_coming(self, provider: str, model: str) -> bool:
        wanted = self._wanted.name if self._wanted is not None else ""
        return self._is_pending and (provider, model) == (LOCAL, wanted)

    async def arrival(self, tell: Callable[[ModelLoading], None]) -> bool:
        """Wait until no download is pending; `tell` its progress. Return False if `let_go` ended the wait."""
        while self._is_pending and not self._is_leaving:
            if self.progress is not None:
                tell(_loading_event(self.progress))
            await sleep_until_woken(self._clock, _TELL_SECONDS, self._settled)
        return not self._is_leaving

    def let_go(self) -> None:
        """End every wait, because the gateway shuts down."""
        self._is_leaving = True
        self._settled.set()

    async def run(self) -> None:
        """Download what is wanted, until cancelled."""
        this = asyncio.current_task()
        assert this is not None
        while True:
            if self._wanted is None:
                await self._requested.wait()
            self._requested.clear()
            self._task = asyncio.create_task(self._download(), name="fetch")
            try:
                await self._task
            except asyncio.CancelledError:
                if this.cancelling():
                    raise
            finally:
                self._task = None

    async def _download(self) -> None:
        failures = 0
        while (wanted := self._wanted) is not None:
            self._settled.clear()
            self._is_pending = True
            try:
                await self._fetcher(wanted, self._cache, self._environ, self._note, self._clock)
                self.failure, self._wanted = None, None
                break
            except WeightsError as error:
                failures += 1
                self.failure = error
                self.progress = FetchProgress(
                    wanted.name, FetchStage.FAILED, 0, wanted.size, error=error.user_text
                )
                _log.warning("%s It is tried again in %g s.", error.user_text, _BACKOFF.pause(failures))
            finally:
                if not self._requested.is_set():  # otherwise another download takes its place
                    self._is_pending = False
                    self._settled.set()
            await self._clock.sleep(_BACKOFF.pause(failures))

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _note(self, progress: FetchProgress) -> None:
        self.progress = progress


def _loading_event(progress: FetchProgress) -> ModelLoading:
    left = progress.seconds_left
    return ModelLoading(
        f"{LOCAL}/{progress.model}",
        progress.stage,
        None if left is None else round(left, 1),
        progress.done,
        progress.total,
    )


def default_weights(model: ModelSettings, unnamed: str) -> Weights | None:
    """Return the weights of the default model; None if it is not a built-in one.

    `unnamed` is the built-in model that is meant where the configuration names none.
    """
    is_default = model.provider == LOCAL or not (model.provider or model.name)
    name = model.name or unnamed
    return next((weights for weights in MANIFEST if is_default and weights.name == name), None)


def may_fetch(environ: Mapping[str, str]) -> bool:
    """Return whether weights may be fetched without a question: at a terminal, or after a yes; never after
    a no."""
    if is_yes(environ, NO_MODEL_VARIABLE):
        return False
    return is_yes(environ, YES_VARIABLE) or (sys.stdin.isatty() and sys.stdout.isatty())


def is_yes(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() not in ("", "0", "no", "false")
