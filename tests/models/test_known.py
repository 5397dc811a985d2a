"""What models cost: the operator's word first, then the built-in table, and nothing that is guessed."""

from __future__ import annotations

import msgspec
import pytest

from talaria.core.spending import Price
from talaria.models.known import (
    KNOWN_MODELS,
    Abilities,
    Prices,
    PriceSettings,
    known_abilities,
    known_price,
    may_think,
)
from talaria.models.local.weights import DEFAULT_MODEL, LARGER_MODEL
from talaria.models.settings import PRESETS

M = 1_000_000


@pytest.mark.parametrize(
    ("provider", "model", "name"),
    [
        ("openai", "gpt-5", "openai/gpt-5"),
        ("openai", "gpt-5-2025-08-07", "openai/gpt-5"),
        ("openai", "gpt-4o-mini-2024-07-18", "openai/gpt-4o-mini"),
        ("anthropic", "claude-sonnet-4-20250514", "anthropic/claude-sonnet-4"),
        ("anthropic", "claude-3-5-haiku-latest", "anthropic/claude-3-5-haiku"),
        ("openrouter", "anthropic/claude-sonnet-4.5", "anthropic/claude-sonnet-4-5"),
        ("openrouter", "openai/gpt-4.1", "openai/gpt-4.1"),
        ("groq", "openai/gpt-oss-20b", "groq/openai/gpt-oss-20b"),
    ],
)
def test_known_models_are_found_by_their_usual_names(provider: str, model: str, name: str) -> None:
    assert Prices().find(provider, model) == KNOWN_MODELS[name].price


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-5-ultra"),
        ("openrouter", "deepseek/deepseek-chat"),  # whoever serves it sets the price
        ("openrouter", "openai/gpt-5:nitro"),
        ("mine", "gpt-5"),
    ],
)
def test_nothing_is_guessed(provider: str, model: str) -> None:
    assert Prices().find(provider, model) is None


@pytest.mark.parametrize(
    ("provider", "model"), [("ollama", "llama3"), ("scripted", "x"), ("openrouter", "a/b:free")]
)
def test_some_models_are_free(provider: str, model: str) -> None:
    assert Prices().find(provider, model) == Price(0, 0, 0, 0)


def test_the_table_is_of_known_providers_and_a_cached_token_is_never_dearer() -> None:
    assert len(KNOWN_MODELS) > 10
    for name, known in KNOWN_MODELS.items():
        assert name.partition("/")[0] in PRESETS
        if (price := known.price) is not None:
            assert 0 < price.cached <= price.input <= price.stored
            assert price.input <= price.output


def test_writing_to_anthropics_cache_costs_a_quarter_more() -> None:
    claude, gpt = known_price("anthropic", "claude-sonnet-4"), known_price("openai", "gpt-5")
    assert claude is not None
    assert gpt is not None
    assert (claude.stored, gpt.stored) == (3_750_000_000, gpt.input)


def test_the_operators_word_wins_the_longest_pattern_before_a_shorter() -> None:
    prices = Prices(
        {
            "mine/*": PriceSettings(input=1, output=2),
            "mine/big-*": PriceSettings(input=3, output=4),
            "mine/big-one": PriceSettings(input=5, cached=0.5, output=6, stored=7, max_output=100),
            "openai/gpt-5": PriceSettings(input=9, output=9),
        }
    )
    assert prices.find("mine", "small") == Price(1000 * M, 1000 * M, 2000 * M, 1000 * M)
    assert prices.find("mine", "big-two") == Price(3000 * M, 3000 * M, 4000 * M, 3000 * M)
    assert prices.find("mine", "big-one") == Price(5000 * M, 500 * M, 6000 * M, 7000 * M, 100)
    assert prices.find("openai", "gpt-5") == Price(9000 * M, 9000 * M, 9000 * M, 9000 * M, 128_000)
    assert prices.find("openai", "gpt-5-mini") == KNOWN_MODELS["openai/gpt-5-mini"].price


@pytest.mark.parametrize(
    ("model", "reasoning", "effort", "expected"),
    [
        ("gpt-5", True, None, True),
        ("gpt-4o", False, None, False),
        ("claude-sonnet-4-5", True, None, False),
        ("anthropic/claude-opus-4.5", True, None, False),
        ("claude-sonnet-4-5", True, "low", True),
        ("mine", None, None, False),
        ("mine", None, "low", True),
    ],
)
def test_a_model_may_think_if_it_is_asked_to_or_if_it_does_so_unasked(
    model: str, reasoning: bool | None, effort: str | None, expected: bool
) -> None:
    assert may_think(model, Abilities(reasoning=reasoning), effort) is expected


def test_what_our_own_models_can_do() -> None:
    """The built-in ones have a small window and see nothing, and only the larger one takes tools; the
    scripted one plays every part."""
    scripted = Abilities(None, None, tools=True, images=True, reasoning=True)
    larger = Abilities(4096, 512, tools=True, images=False, reasoning=False)
    assert known_abilities("scripted", "any") == scripted
    assert known_abilities("local", LARGER_MODEL) == larger
    assert known_abilities("local", DEFAULT_MODEL) == msgspec.structs.replace(larger, tools=False)
    assert known_abilities("openai", "gpt-5") == KNOWN_MODELS["openai/gpt-5"].abilities
