"""The larger built-in model: whether it is here, on its way, to be had, or too large for this machine."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

import msgspec

from talaria.core.errors import ModelRefused
from talaria.core.program import spoken_afar
from talaria.models.local.runtime import memory_limit, missing_requirement
from talaria.models.local.weights import (
    DEFAULT_MODEL,
    LARGER_MODEL,
    FetchStage,
    Weights,
    WeightsCache,
    find_weights,
)
from talaria.models.settings import LOCAL

if TYPE_CHECKING:
    from talaria.models.local.downloads import WeightsDownloads

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
