"""What endpoints list of their models, what else is known of them, and what this machine has."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from talaria.core.errors import ModelUnavailable, NotFound
from talaria.models.catalog import Catalog, providers_in_use
from talaria.models.discovery import (
    SERVERS,
    DetectedProvider,
    LoadedModels,
    ModelLists,
    detect_keys,
    detect_providers,
    detect_servers,
    read_models,
)
from talaria.models.known import NOTHING_KNOWN, Abilities, Prices, PriceSettings
from talaria.models.providers import Providers
from talaria.models.settings import FallbackSettings, ModelSettings, ProviderSettings
from talaria.testing.clock import FakeClock
from talaria.testing.model_server import ModelServer

MAX_NAMES = 1_000
MAX_MODELS = 2_000

OPENROUTER = {
    "id": "anthropic/claude-sonnet-4",
    "context_length": 200_000,
    "architecture": {"input_modalities": ["text", "image"], "output_modalities": ["text"]},
    "top_provider": {"context_length": 200_000, "max_completion_tokens": 64_000},
    "supported_parameters": ["tools", "tool_choice", "reasoning", "include_reasoning", "max_tokens"],
}
BLIND = {
    "id": "some/text-only",
    "context_length": 8192,
    "architecture": {"input_modalities": ["text"]},
    "top_provider": {"context_length": 8192, "max_completion_tokens": None},
    "supported_parameters": ["max_tokens"],
}
LISTS: dict[str, tuple[dict[str, Any], dict[str, Abilities]]] = {
    "openrouter": (
        {"data": [OPENROUTER, BLIND]},
        {
            "anthropic/claude-sonnet-4": Abilities(200_000, 64_000, tools=True, images=True, reasoning=True),
            "some/text-only": Abilities(8192, None, tools=False, images=False, reasoning=False),
        },
    ),
    "openai": (
        {"object": "list", "data": [{"id": "gpt-5", "object": "model", "owned_by": "system"}]},
        {"gpt-5": NOTHING_KNOWN},
    ),
    "vllm": (
        {"data": [{"id": "Qwen/Qwen3-8B", "owned_by": "vllm", "max_model_len": 40_960, "parent": None}]},
        {"Qwen/Qwen3-8B": Abilities(40_960)},
    ),
    "llama.cpp": (
        {
            "models": [{"name": "gemma-3", "model": "gemma-3", "capabilities": ["completion", "multimodal"]}],
            "data": [{"id": "gemma-3", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131_072}}],
        },
        {"gemma-3": Abilities(131_072, images=True)},
    ),
    "ollama": (
        {"data": [{"id": "llama3.2:latest", "object": "model", "owned_by": "library"}]},
        {"llama3.2:latest": NOTHING_KNOWN},
    ),
    "moonshot": (
        {
            "data": [
                {
                    "id": "kimi-k2.5",
                    "context_length": 262_144,
                    "supports_image_in": True,
                    "supports_reasoning": True,
                }
            ]
        },
        {"kimi-k2.5": Abilities(262_144, images=True, reasoning=True)},
    ),
    "groq": (
        {"data": [{"id": "llama", "context_window": 131_072, "max_completion_tokens": 32_768}]},
        {"llama": Abilities(131_072, 32_768)},
    ),
    "mistral": (
        {
            "data": [
                {
                    "id": "pixtral",
                    "max_context_length": 131_072,
                    "capabilities": {"function_calling": True, "vision": True},
                }
            ]
        },
        {"pixtral": Abilities(131_072, tools=True, images=True)},
    ),
    "anthropic": (
        {
            "data": [
                {
                    "id": "claude-x",
                    "max_input_tokens": 1_000_000,
                    "max_tokens": 128_000,
                    "capabilities": {"image_input": {"supported": True}, "thinking": {"supported": False}},
                }
            ]
        },
        {"claude-x": Abilities(1_000_000, 128_000, images=True, reasoning=False)},
    ),
}


@pytest.mark.parametrize("server", LISTS)
def test_what_each_kind_of_server_lists_is_understood(server: str) -> None:
    listed, expected = LISTS[server]
    assert read_models(json.dumps(listed).encode()) == expected


def test_a_list_is_taken_only_so_far() -> None:
    listed = {"data": [{"id": f"m{n}"} for n in range(MAX_MODELS + 5)] + [{"id": "x" * 500}]}
    assert len(read_models(json.dumps(listed).encode())) == MAX_MODELS


KEYS = [*OPENROUTER, "meta", "capabilities"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.text(max_size=4) | st.just("image"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=10,
)


@given(st.lists(VALUES, max_size=3), VALUES)
def test_any_list_is_read_or_refused_in_one_way(data: list[Any], models: Any) -> None:
    for abilities in read_models(json.dumps({"data": data, "models": models}).encode()).values():
        assert abilities.or_else(NOTHING_KNOWN) == abilities


class Source(Providers):
    """Lists what it is told to, and counts."""

    def __init__(self, **answers: bytes | Exception) -> None:
        super().__init__({}, {})
        self.answers = answers
        self.asked: list[str] = []
        self.url = "http://here"
        self.loads: LoadedModels | None = None

    def base_url(self, provider: str) -> str:
        return self.url

    async def loaded(self, provider: str, model: str = "") -> LoadedModels | None:
        return self.loads

    async def list_models(self, provider: str) -> bytes:
        self.asked.append(provider)
        answer = self.answers[provider]
        if isinstance(answer, Exception):
            raise answer
        return answer


BODY = json.dumps({"data": [OPENROUTER]}).encode()
NAME = ("openrouter", "anthropic/claude-sonnet-4")


async def test_both_answers_are_kept_and_asked_again_when_they_are_old(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, source = FakeClock(), Source(openrouter=BODY, dead=ModelUnavailable("Nobody answers."))
    model_lists = ModelLists(source, clock, ("openrouter", "dead", "scripted", "openrouter", ""))
    with caplog.at_level(logging.INFO, "talaria.models"):
        for hours, asked in [
            (0, ["openrouter", "dead"]),
            (0.5, []),
            (1, ["dead"]),
            (3, ["dead"]),
            (2, ["openrouter", "dead"]),
        ]:
            source.asked.clear()
            clock.advance(hours * 3600)
            await model_lists.refresh()
            assert source.asked == asked, hours
    assert [record.message for record in caplog.records].count(
        "dead does not list its models: Nobody answers."
    ) == 1
    assert model_lists.find(*NAME) == read_models(BODY)[NAME[1]]
    assert model_lists.find("dead", "x") is None


async def test_what_was_listed_stays_known_when_the_endpoint_fails_or_talks_nonsense(tmp_path: Path) -> None:
    clock, source = FakeClock(), Source(openrouter=BODY)
    model_lists = ModelLists(source, clock, ("openrouter",), tmp_path / "models.json")
    await model_lists.refresh()
    for answer in (b"<html>", b"[]", b'{"data": 5}', ModelUnavailable("down")):
        source.answers["openrouter"] = answer
        clock.advance(7 * 3600)
        await model_lists.refresh()
        assert model_lists.find(*NAME) is not None
    assert ModelLists(source, clock, ("openrouter",), tmp_path / "models.json").find(*NAME) is not None
    assert (tmp_path / "models.json").stat().st_mode & 0o777 == 0o600


async def test_what_was_listed_at_another_address_is_not_believed(tmp_path: Path) -> None:
    clock, source = FakeClock(), Source(openrouter=BODY)
    model_lists = ModelLists(source, clock, ("openrouter",), tmp_path / "models.json")
    await model_lists.refresh()
    source.url = "http://elsewhere"
    model_lists.change()
    assert model_lists.find(*NAME) is None
    later = ModelLists(source, clock, ("openrouter",), tmp_path / "models.json")
    assert later.find(*NAME) is None
    assert not list(later.names())


@pytest.mark.parametrize("data", [b"", b"[]", b"{broken", b'{"a": {"url": 1}}'])
def test_a_broken_file_is_as_good_as_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "models.json").write_bytes(data)
    assert not list(ModelLists(Source(), FakeClock(), ("a",), tmp_path / "models.json").names())


async def test_endpoints_are_asked_after_the_start_and_never_on_the_way(tmp_path: Path) -> None:
    clock, source = FakeClock(), Source(openrouter=BODY)
    model_lists = ModelLists(source, clock, ("openrouter",))
    catalog = Catalog(ModelSettings(*NAME), {}, providers=("openrouter",), model_lists=model_lists)
    catalog.abilities(*NAME)
    assert not source.asked


async def test_a_real_endpoint_lists_over_its_own_connections(tmp_path: Path) -> None:
    async with ModelServer() as server:
        settings = {
            "mine": ProviderSettings(server.base_url),
            "off": ProviderSettings("http://127.0.0.1:9/v1"),
        }
        async with Providers(settings, {}) as providers:
            model_lists = ModelLists(providers, FakeClock(), settings)
            await model_lists.refresh()
            assert list(model_lists.names()) == ["mine/scripted"]
            dead = model_lists.get("off")
            assert dead is not None
            assert "127.0.0.1:9" in dead.failure
            assert server.requests == 0  # a list is no model call


async def catalog(told: dict[str, Abilities], *listed: dict[str, Any]) -> Catalog:
    source = Source(openrouter=json.dumps({"data": listed}).encode())
    model_lists = ModelLists(source, FakeClock(), ("openrouter",))
    await model_lists.refresh()
    return Catalog(
        ModelSettings("openrouter", "openai/gpt-5"),
        {},
        providers=("openrouter", "anthropic", "mine"),
        abilities=told,
        model_lists=model_lists,
    )


async def test_the_operators_word_comes_first_then_the_endpoints_then_the_table() -> None:
    told = {"openrouter/anthropic/*": Abilities(images=False), "mine/*": Abilities(context=1000)}
    found = await catalog(told, OPENROUTER | {"context_length": 1_000_000})
    assert found.abilities("openrouter", "anthropic/claude-sonnet-4") == Abilities(
        1_000_000, 64_000, tools=True, images=False, reasoning=True
    )
    assert found.abilities("anthropic", "claude-sonnet-4-20250514") == Abilities(
        200_000, 64_000, tools=True, images=True, reasoning=True
    )
    assert found.abilities("mine", "whatever") == Abilities(1000)
    assert found.abilities("anthropic", "claude-unheard-of") == NOTHING_KNOWN


async def test_what_endpoints_list_can_be_wished_for_and_is_guessed_at() -> None:
    found = await catalog({}, OPENROUTER, *({"id": f"m{n}"} for n in range(1500)))
    assert found.listed()[0] == "openrouter/anthropic/claude-sonnet-4"
    assert len(found.listed()) == MAX_NAMES
    assert not set(found.listed()) & set(found.names())
    with pytest.raises(NotFound, match="Did you mean openrouter/anthropic/claude-sonnet-4"):
        found.resolve("openruter/anthropic/claude-sonnet-4")


async def test_the_longest_answer_that_is_known_limits_what_is_set_aside() -> None:
    prices = Prices(
        {"openrouter/*": PriceSettings(input=1, output=2), "mine/*": PriceSettings(input=1, output=1)}
    )
    found = await catalog({"mine/*": Abilities(output=500)}, OPENROUTER)
    limits = {
        name: known.max_output
        for name in ("openrouter/anthropic/claude-sonnet-4", "openrouter/unknown", "mine/m", "openai/gpt-4o")
        if (known := found.price(prices.find, *name.split("/", 1))) is not None
    }
    assert limits == {
        "openrouter/anthropic/claude-sonnet-4": 64_000,
        "openrouter/unknown": 0,
        "mine/m": 500,
        "openai/gpt-4o": 16_384,
    }
    assert found.price(prices.find, "nobody", "x") is None


def test_those_are_asked_that_the_configuration_names() -> None:
    model = ModelSettings("a", "m", fallback=(FallbackSettings("b", "m"),))
    assert providers_in_use(model, {"x": "c/m", "y": "plain"}) == ("a", "b", "c")
    assert providers_in_use(ModelSettings(name="d/m"), {}) == ("", "d")


def test_abilities_are_told_on_one_line() -> None:
    assert Abilities(128_000, 8192, tools=True, images=False).describe() == (
        "128,000 tokens of context, answers up to 8,192, tools, no images"
    )
    assert not NOTHING_KNOWN.describe()


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
