"""The context size that local model servers have loaded, and what is said of one that is too small."""

from __future__ import annotations

import pytest

from support.model_programs import MODEL, Answers, llama_cpp, lm_studio, ollama, serving, vllm
from talaria.models.catalog import Catalog
from talaria.models.discovery import LoadedModels, ModelLists, is_near
from talaria.models.known import Abilities
from talaria.models.providers import Providers
from talaria.models.settings import ModelSettings, ProviderSettings
from talaria.testing.clock import FakeClock

KINDS = [
    (ollama(4096), "Ollama", 4096),
    (ollama(0, 'num_ctx                        8192\nstop "x"', is_loaded=False), "Ollama", 8192),
    (ollama(0, is_loaded=False), "Ollama", None),
    (llama_cpp(4096, slots=4), "llama.cpp", 4096),
    (lm_studio(4096), "LM Studio", 4096),
    (lm_studio(0, is_loaded=False), "LM Studio", None),
    (vllm(8192), "vLLM", 8192),
]


async def loaded(answers: Answers) -> LoadedModels | None:
    with serving(answers) as url:
        async with Providers({"mine": ProviderSettings(url)}, {}) as providers:
            return await providers.loaded("mine", MODEL)


@pytest.mark.parametrize(("answers", "server", "tokens"), KINDS)
async def test_each_kind_of_server_tells_its_size(answers: Answers, server: str, tokens: int | None) -> None:
    found = await loaded(answers)
    assert found is not None
    assert (found.server, found.find(MODEL)) == (server, tokens)


async def test_a_server_of_another_kind_tells_nothing() -> None:
    assert await loaded({}) is None
    assert await loaded({("GET", "/v1/models"): {"data": [{"id": MODEL}]}, ("GET", "/props"): []}) is None


@pytest.mark.parametrize(
    ("answers", "command"),
    [
        (ollama(4096), "OLLAMA_CONTEXT_LENGTH=16384 ollama serve"),
        (llama_cpp(4096, slots=4), "llama-server --ctx-size 65536 …"),
        (lm_studio(4096), f"lms load {MODEL} --context-length 16384"),
        (vllm(4096), f"vllm serve {MODEL} --max-model-len 16384"),
    ],
)
async def test_a_size_that_is_too_small_is_told_with_the_command_that_raises_it(
    answers: Answers, command: str
) -> None:
    found = await loaded(answers)
    assert found is not None
    shortage = found.shortage(MODEL)
    assert shortage is not None
    assert shortage[1] == command
    assert "4,096 tokens" in shortage[0] and "16,384" in shortage[0]


@pytest.mark.parametrize(
    "answers",
    [ollama(4096, trained=8192), llama_cpp(4096, trained=8192), lm_studio(4096, trained=8192)],
    ids=["ollama", "llama.cpp", "lm studio"],
)
async def test_no_command_is_told_for_a_model_that_cannot_read_more(answers: Answers) -> None:
    found = await loaded(answers)
    assert found is not None
    text, command = found.shortage(MODEL) or ("", "")
    assert "8,192" in text and "another model" in text
    assert command == ""


async def test_a_size_that_is_enough_or_not_known_is_not_told() -> None:
    for answers in (ollama(16_384), ollama(0, is_loaded=False), llama_cpp(32_768)):
        found = await loaded(answers)
        assert found is not None
        assert found.shortage(MODEL) is None


@pytest.mark.parametrize("answers", [ollama(4096), llama_cpp(4096), lm_studio(4096), vllm(4096)])
async def test_the_loaded_size_is_the_model_s_context_unless_one_is_configured(answers: Answers) -> None:
    with serving(answers) as url:
        async with Providers({"mine": ProviderSettings(url)}, {}) as providers:
            clock = FakeClock()
            lists = ModelLists(providers, clock, ("mine",))
            await lists.refresh()
            plain = Catalog(ModelSettings("mine", MODEL), {}, providers=("mine",), model_lists=lists)
            assert plain.abilities("mine", MODEL).context == 4096
            own = {f"mine/{MODEL}": Abilities(context=9000)}
            told = Catalog(
                ModelSettings("mine", MODEL), {}, providers=("mine",), abilities=own, model_lists=lists
            )
            assert told.abilities("mine", MODEL).context == 9000
            answers |= ollama(8192) if ("GET", "/api/ps") in answers else {}
            clock.advance(601)
            await lists.refresh()
            expected = 8192 if ("GET", "/api/ps") in answers else 4096
            assert plain.abilities("mine", MODEL).context == expected, "it may be loaded anew at any time"


def test_ollama_s_names_may_leave_the_tag_out() -> None:
    found = LoadedModels("Ollama", {"qwen3:latest": 4096}, "x")
    assert found.find("qwen3") == 4096
    assert found.find("qwen2") is None


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("http://127.0.0.1:11434/v1", True),
        ("http://localhost:1234/v1", True),
        ("http://ollama:11434/v1", True),
        ("http://192.168.0.7:8000/v1", True),
        ("https://api.openai.com/v1", False),
        ("https://8.8.4.4/v1", False),
    ],
)
async def test_only_servers_nearby_are_asked(address: str, near: bool) -> None:
    assert is_near(address) is near
    if not near:
        async with Providers({"mine": ProviderSettings(address)}, {}) as providers:
            assert await providers.loaded("mine", MODEL) is None
