"""Wishes for a model and what they mean."""

from __future__ import annotations

import re

import pytest

from talaria.core.errors import NoModel, NotFound
from talaria.models.catalog import Catalog, ModelChoice
from talaria.models.local.weights import DEFAULT_MODEL, MANIFEST
from talaria.models.settings import ModelSettings

PROVIDERS = ("openrouter", "openai", "groq", "scripted")
DEFAULT = ModelChoice("openrouter", "openai/gpt-5")
CATALOG = Catalog(
    ModelSettings("openrouter", "openai/gpt-5"),
    {"fast": "groq/llama-4-scout", "broken": "nowhere/x", "same": "openai/gpt-5"},
    providers=PROVIDERS,
    agents=("main",),
    config_path="/home/ann/.talaria/config.toml",
)


@pytest.mark.parametrize(
    ("wish", "choice"),
    [
        (None, DEFAULT),
        ("", DEFAULT),
        ("main", DEFAULT),
        ("openrouter", DEFAULT),
        ("openai/gpt-5", DEFAULT),
        ("same", DEFAULT),
        ("openrouter/openai/gpt-5", DEFAULT),
        ("openrouter/anthropic/claude-sonnet-4", ModelChoice("openrouter", "anthropic/claude-sonnet-4")),
        ("openai/gpt-5-mini", ModelChoice("openai", "gpt-5-mini")),
        ("fast", ModelChoice("groq", "llama-4-scout")),
        ("scripted", ModelChoice("scripted", "scripted")),
        ("scripted/other", ModelChoice("scripted", "other")),
    ],
)
def test_a_wish_means(wish: str | None, choice: ModelChoice) -> None:
    assert CATALOG.resolve(wish) == choice


@pytest.mark.parametrize(
    "wish", ["gpt-4o", "anthropic/claude-sonnet-4", "openai/", "groq", "/", "opnai/gpt-5"]
)
def test_an_unknown_wish_lists_what_is_known(wish: str) -> None:
    with pytest.raises(NotFound) as caught:
        CATALOG.resolve(wish)
    assert "Known: main, openrouter/openai/gpt-5, fast, same." in caught.value.hint
    assert f"openrouter/{wish}" in caught.value.hint


def test_a_near_miss_is_named() -> None:
    with pytest.raises(NotFound, match=r"Did you mean fast\?"):
        CATALOG.resolve("fats")


def test_an_alias_that_means_nothing_says_so() -> None:
    with pytest.raises(NoModel, match="alias broken means nowhere/x"):
        CATALOG.resolve("broken")


def test_every_listed_name_resolves() -> None:
    assert CATALOG.names() == ["main", "openrouter/openai/gpt-5", "fast", "same"]
    for name in CATALOG.names():
        CATALOG.resolve(name)


def test_nothing_configured_says_what_to_do() -> None:
    catalog = Catalog(ModelSettings(), {}, providers=PROVIDERS, config_path="/x/config.toml")
    with pytest.raises(NoModel) as caught:
        catalog.resolve(None)
    assert caught.value.user_text == "No model is configured."
    assert re.fullmatch(
        r"Set \[model\] and \[providers\.NAME\] in /x/config\.toml, or, to try without a key, run "
        r"`(\S*dev scripted|\S+ -m talaria\.testing\.model_server)` in another terminal and restart with "
        r"TALARIA_MODEL__PROVIDER=scripted\.",
        caught.value.hint,
    )
    assert catalog.names() == []
    assert catalog.resolve("openai/gpt-5") == ModelChoice("openai", "gpt-5")


def test_a_provider_without_a_model_asks_for_one() -> None:
    catalog = Catalog(ModelSettings("openai"), {}, providers=PROVIDERS)
    with pytest.raises(NoModel, match="no model of it"):
        catalog.resolve(None)


def test_the_scripted_provider_needs_no_model_name() -> None:
    catalog = Catalog(ModelSettings("scripted"), {}, providers=PROVIDERS)
    assert catalog.resolve(None) == ModelChoice("scripted", "scripted")
    assert catalog.names() == ["main", "scripted/scripted"]


def test_a_name_with_its_provider_is_enough() -> None:
    catalog = Catalog(ModelSettings(name="groq/llama"), {}, providers=PROVIDERS)
    assert catalog.resolve(None) == ModelChoice("groq", "llama")


NAMES = [weights.name for weights in MANIFEST]


@pytest.mark.parametrize(
    ("model", "wish", "choice"),
    [
        (ModelSettings(), None, ModelChoice("local", DEFAULT_MODEL)),
        (ModelSettings("local"), None, ModelChoice("local", DEFAULT_MODEL)),
        (ModelSettings("openai", "gpt-5"), "local", ModelChoice("local", DEFAULT_MODEL)),
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
    with pytest.raises(NoModel, match=f"The built-in models are: {DEFAULT_MODEL}"):
        catalog.resolve("local/gpt-5")


def test_a_name_of_ten_megabytes_is_cut_before_it_is_compared_and_shown() -> None:
    catalog = Catalog(ModelSettings("openai", "gpt-5"), {}, providers=("openai",))
    with pytest.raises(NotFound) as caught:
        catalog.resolve("x" * 10_000_000)
    assert len(str(caught.value)) < 1_000
