"""The gateway's downloads, and what the built-in model needs of a machine."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.arrivals_suite import ArrivalsSuite, Coming
from support.waiting import until
from talaria.cli.serve import show_progress
from talaria.core.events import ModelLoading
from talaria.models.local.downloads import WeightsDownloads, default_weights, may_fetch
from talaria.models.local.runtime import has_avx2, missing_requirement
from talaria.models.local.weights import DEFAULT_MODEL, Weights, WeightsCache, find_weights
from talaria.models.settings import ModelSettings
from talaria.testing.clock import FakeClock


class TestStock(ArrivalsSuite):
    @pytest.fixture
    async def coming(self, tmp_path: Path) -> AsyncIterator[Coming]:
        here = asyncio.Event()

        async def fetcher(weights: Weights, cache: WeightsCache, *rest: object) -> Path:
            await here.wait()
            return cache.path(weights)

        downloads = WeightsDownloads(
            WeightsCache(tmp_path), {}, FakeClock(), find_weights(DEFAULT_MODEL), fetcher
        )
        running = asyncio.create_task(downloads.run())
        yield Coming(downloads, here.set)
        running.cancel()


async def test_what_is_wanted_later_takes_the_place_of_what_is_on_its_way(tmp_path: Path) -> None:
    begun, here = list[str](), asyncio.Event()

    async def fetcher(weights: Weights, cache: WeightsCache, *rest: object) -> Path:
        begun.append(weights.name)
        await here.wait()
        return cache.path(weights)

    downloads = WeightsDownloads(
        WeightsCache(tmp_path), {}, FakeClock(), find_weights(DEFAULT_MODEL), fetcher
    )
    running = asyncio.create_task(downloads.run())
    waiting = asyncio.create_task(downloads.arrival(lambda loading: None))
    for name in (DEFAULT_MODEL, "smollm2-135m"):
        downloads.request(find_weights(name))
        await until(lambda: begun[-1:] == [name], pause=0)  # noqa: B023 - not called later
        assert downloads.is_coming("local", name)
        assert not waiting.done()
    assert not downloads.is_coming("local", DEFAULT_MODEL)
    here.set()
    assert await waiting
    assert (begun, downloads.is_any) == ([DEFAULT_MODEL, "smollm2-135m"], False)
    running.cancel()
    await asyncio.wait((running,))
    assert running.cancelled()


async def test_a_turn_that_waits_gets_the_progress_every_two_seconds(tmp_path: Path) -> None:
    clock, told = FakeClock(), list[ModelLoading]()
    downloads = WeightsDownloads(WeightsCache(tmp_path), {}, clock, find_weights(DEFAULT_MODEL))
    waiting = asyncio.create_task(downloads.arrival(told.append))
    await clock.play(5.0)
    assert (len(told), waiting.done()) == (3, False)
    downloads.let_go()
    assert not await waiting


async def test_what_nobody_wants_any_more_is_not_fetched(tmp_path: Path) -> None:
    begun, is_over = asyncio.Event(), asyncio.Event()

    async def fetcher(weights: Weights, cache: WeightsCache, *rest: object) -> Path:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_over.set()
        return cache.path(weights)

    downloads = WeightsDownloads(
        WeightsCache(tmp_path), {}, FakeClock(), find_weights(DEFAULT_MODEL), fetcher
    )
    running = asyncio.create_task(downloads.run())
    waiting = asyncio.create_task(downloads.arrival(lambda loading: None))
    await begun.wait()
    downloads.follow(ModelSettings("openai", "gpt-5"))
    await is_over.wait()
    assert await waiting
    assert (downloads.is_any, downloads.progress) == (False, None)
    assert not running.done()
    running.cancel()
    await asyncio.wait((running,))


def test_a_processor_without_avx2_is_seen(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags : fpu sse4_2 avx\n")
    assert not has_avx2(cpuinfo)
    cpuinfo.write_text("processor : 0\nflags : fpu avx2 fma\n")
    assert has_avx2(cpuinfo)
    assert has_avx2(tmp_path / "missing"), "what cannot be told is tried"


def test_a_missing_library_names_its_package() -> None:
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    missing = missing_requirement(gomp="libnothing-like-it.so.1")
    assert missing is not None
    assert "libgomp1" in missing.hint


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (ModelSettings(), DEFAULT_MODEL),
        (ModelSettings("local"), DEFAULT_MODEL),
        (ModelSettings("local", "smollm2-135m"), "smollm2-135m"),
        (ModelSettings("openai", "gpt-5"), None),
        (ModelSettings("", "openai/gpt-5"), None),
    ],
)
def test_which_built_in_model_answers_by_default(model: ModelSettings, name: str | None) -> None:
    found = default_weights(model, DEFAULT_MODEL)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("environ", "may"),
    [
        ({}, False),  # no terminal in tests
        ({"TALARIA_YES": "1"}, True),
        ({"TALARIA_YES": "0"}, False),
        ({"TALARIA_YES": "1", "TALARIA_NO_MODEL": "1"}, False),
    ],
)
def test_without_a_terminal_only_a_yes_fetches(environ: dict[str, str], may: bool) -> None:
    assert may_fetch(environ) is may


async def test_the_moving_line_of_a_download_moves_with_the_clock(tmp_path: Path) -> None:
    here, clock, out = asyncio.Event(), FakeClock(), io.StringIO()

    async def fetcher(weights: Weights, cache: WeightsCache, *rest: object) -> Path:
        await here.wait()
        return cache.path(weights)

    downloads = WeightsDownloads(WeightsCache(tmp_path), {}, clock, find_weights(DEFAULT_MODEL), fetcher)
    running = asyncio.create_task(downloads.run())
    showing = asyncio.create_task(show_progress(downloads, clock, out))
    await clock.play(2.0)
    assert 4 <= out.getvalue().count("\r\033[K  ") <= 6
    here.set()
    await clock.play(1.0)
    await showing
    assert out.getvalue().endswith("\r\033[K")
    running.cancel()
    await asyncio.wait((running,))
