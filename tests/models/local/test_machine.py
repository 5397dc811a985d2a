"""What the built-in model needs of a machine, and what is offered where it has it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from talaria.core.clock import SystemClock
from talaria.core.errors import ModelRefused
from talaria.models.local.downloads import WeightsDownloads, choose_built_in, describe_larger, lack_of_memory
from talaria.models.local.local_endpoint import LocalEndpoint
from talaria.models.local.runtime import ModelProcess, has_avx2
from talaria.models.local.weights import (
    DEFAULT_MODEL,
    MANIFEST,
    FetchProgress,
    FetchStage,
    WeightsCache,
    find_weights,
    megabytes,
)

GIB = 1 << 30
LARGER = next(weights.name for weights in MANIFEST if weights.memory > find_weights(DEFAULT_MODEL).memory)


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("flags : fpu avx2 sse\n", True),
        ("model : x\nflags : fpu avx sse\n", False),
        ("nothing\n", True),
        (None, True),
    ],
)
def test_a_processor_is_asked_for_its_flags(tmp_path: Path, text: str | None, has: bool) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    assert has_avx2(path) is has


def cached(tmp_path: Path, *names: str) -> WeightsCache:
    """A cache with files of the right size, which take no room."""
    cache = WeightsCache(tmp_path)
    for name in names:
        with cache.path(find_weights(name)).open("wb") as file:
            file.truncate(find_weights(name).size)
    return cache


def test_memory_decides_whether_a_model_fits() -> None:
    weights = find_weights(LARGER)
    assert lack_of_memory(weights, lambda: None) is None
    assert lack_of_memory(weights, lambda: 64 * GIB) is None
    refusal = lack_of_memory(weights, lambda: weights.memory)
    assert refusal is not None, "other programs need some too"
    assert f"{weights.name} needs {weights.memory / 1e9:.1f} GB of memory" in refusal.user_text
    assert refusal.type == "too_little_memory"


def test_the_larger_model_is_chosen_once_it_is_here_and_fits(tmp_path: Path) -> None:
    assert choose_built_in(WeightsCache(tmp_path), lambda: None) == DEFAULT_MODEL
    cache = cached(tmp_path, LARGER)
    assert choose_built_in(cache, lambda: None) == LARGER
    assert choose_built_in(cache, lambda: GIB) == DEFAULT_MODEL


def endpoint(
    cache: WeightsCache, memory: int | None = None, refusal: ModelRefused | None = None
) -> LocalEndpoint:
    clock = SystemClock()
    return LocalEndpoint(
        cache,
        WeightsDownloads(cache, {}, clock),
        ModelProcess(clock),
        clock,
        idle_after=timedelta(minutes=1),
        requirement=lambda: refusal,
        memory=lambda: memory,
    )


def test_the_larger_model_is_offered_by_its_state(tmp_path: Path) -> None:
    absent = endpoint(WeightsCache(tmp_path))
    assert absent.larger().state == "absent"
    assert f"model pull {LARGER}`, or “Use the larger model” on the page" in absent.offer(DEFAULT_MODEL)
    assert absent.offer(LARGER) == "`/tools all` gives me tools for files."
    small = endpoint(WeightsCache(tmp_path), GIB)
    assert (small.larger().state, "GB of memory" in small.larger().why) == ("refused", True)
    assert "setup` sets another model." in small.offer(DEFAULT_MODEL)
    broken = endpoint(WeightsCache(tmp_path), refusal=ModelRefused("No runtime.", "Install it."))
    assert (broken.larger().state, broken.larger().why) == ("refused", "No runtime.")
    here = endpoint(cached(tmp_path, LARGER))
    assert (here.larger().state, here.larger().done) == ("ready", find_weights(LARGER).size)
    assert f"new chats use it, and `/model local/{LARGER}` switches this one." in here.offer(DEFAULT_MODEL)
    assert here.default_model() == LARGER


async def test_models_whose_weights_are_here_are_listed(tmp_path: Path) -> None:
    assert msgspec.json.decode(await endpoint(WeightsCache(tmp_path)).list_models()) == {"data": []}
    here = endpoint(cached(tmp_path, DEFAULT_MODEL))
    assert msgspec.json.decode(await here.list_models()) == {"data": [{"id": DEFAULT_MODEL}]}
    assert here.refusal(DEFAULT_MODEL) is None
    missing = here.refusal(LARGER)
    assert missing is not None
    assert f"model pull {LARGER}` ({megabytes(find_weights(LARGER).size)} MB)" in missing.hint
    with pytest.raises(ModelRefused):
        here.refusal("nothing")
    assert here.status()["weights"] is None


@pytest.mark.parametrize(
    ("stage", "state", "why"),
    [
        (FetchStage.FETCHING, "fetching", ""),
        (FetchStage.WAITING, "fetching", ""),
        (FetchStage.FAILED, "absent", "No."),
    ],
)
def test_a_download_of_the_larger_model_is_told(
    tmp_path: Path, stage: FetchStage, state: str, why: str
) -> None:
    class Downloads:
        progress = FetchProgress(LARGER, stage, 100, 300, 50.0, error="No.")

    told = describe_larger(WeightsCache(tmp_path), Downloads(), lambda: None, lambda: None)  # type: ignore[arg-type]
    assert (told.state, told.why) == (state, why)
    if state == "fetching":
        assert (told.done, told.seconds_left) == (100, 4.0)
    Downloads.progress = FetchProgress(DEFAULT_MODEL, stage, 100, 300, error="No.")
    told = describe_larger(WeightsCache(tmp_path), Downloads(), lambda: None, lambda: None)  # type: ignore[arg-type]
    assert (told.state, told.why, told.done) == ("absent", "", 0)


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (FetchProgress("m", FetchStage.FAILED, 0, 9, error="It broke."), "It broke."),
        (FetchProgress("m", FetchStage.VERIFYING, 5, 400_000_000), "verifying 400 MB"),
        (FetchProgress("m", FetchStage.FETCHING, 1_500_000, 9_999_999), "fetching 1.5/10.0 MB"),
        (
            FetchProgress("m", FetchStage.FETCHING, 10_000_000, 20_000_000, 1e6),
            "fetching 10/20 MB, 1.0 MB/s, 10 s left",
        ),
        (FetchProgress("m", FetchStage.WAITING, 0, 20_000_000), "waiting 0.0/20 MB"),
    ],
)
def test_progress_is_one_line(progress: FetchProgress, line: str) -> None:
    assert progress.line() == line


def test_the_time_that_is_left_follows_from_the_rate() -> None:
    assert FetchProgress("m", FetchStage.FETCHING, 5, 10, 2.5).seconds_left == 2.0
    assert FetchProgress("m", FetchStage.FETCHING, 5, 10).seconds_left is None
    assert FetchProgress("m", FetchStage.FETCHING, 10, 10).seconds_left == 0.0
    view = FetchProgress("m", FetchStage.FETCHING, 5, 10, 2.6).view()
    assert (view["rate"], view["seconds_left"], view["model"]) == (3, 5 / 2.6, "m")


def test_the_cache_knows_its_room_and_what_a_removal_frees(tmp_path: Path) -> None:
    assert WeightsCache(tmp_path / "not" / "there").free_bytes() > 0
    weights = find_weights(DEFAULT_MODEL)
    cache = cached(tmp_path, DEFAULT_MODEL)
    cache.partial(weights).write_bytes(b"123")
    assert cache.has(weights)
    assert cache.remove(weights) == weights.size + 3
    assert (cache.has(weights), cache.remove(weights)) == (False, 0)
    with cache.locked(weights) as is_first, cache.locked(weights) as is_second:
        assert (is_first, is_second) == (True, False)
    assert WeightsCache.find({"TALARIA_CACHE": "/x/y"}).folder == Path("/x/y")
    assert WeightsCache.find({"XDG_CACHE_HOME": "/x"}).folder == Path("/x/talaria")
    assert WeightsCache.find({"HOME": "/h"}).folder == Path("/h/.cache/talaria")
