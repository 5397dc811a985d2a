"""`[prices]`: what models cost. A small built-in table, and the operator's own over it.

The table holds list prices as their makers published them by November 2025, in dollars for a million tokens.
A model that is not in it has no known price: nothing is guessed from a name that looks alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated

import msgspec

from talaria.core.spending import FREE, Price, from_usd
from talaria.models.naming import find_known, find_named

Dollars = Annotated[
    float, msgspec.Meta(ge=0, le=1_000_000, description="a number of dollars, 0 or more, such as 2.5")
]
_WRITE_FACTOR = 1.25  # what Anthropic charges for writing to its cache, of the input's price


class PriceSettings(msgspec.Struct, frozen=True):
    """In dollars for a million tokens. What is not given for `cached` and `stored` costs as `input` does."""

    input: Dollars | None = None
    cached: Dollars | None = None
    output: Dollars | None = None
    stored: Dollars | None = None
    max_output: Annotated[int, msgspec.Meta(ge=1)] | None = None


def _table(maker: str, rows: Iterable[tuple[str, float, float, float, int]]) -> dict[str, Price]:
    """Rows of names, input, cached input, output, longest answer."""
    factor = _WRITE_FACTOR if maker == "anthropic" else 1
    return {
        f"{maker}/{name}": Price(
            from_usd(given), from_usd(cached), from_usd(output), from_usd(given * factor), longest
        )
        for names, given, cached, output, longest in rows
        for name in names.split()
    }


KNOWN: Mapping[str, Price] = {
    **_table(
        "openai",
        [
            ("gpt-5 gpt-5.1 gpt-5-codex gpt-5.1-codex", 1.25, 0.125, 10, 128_000),
            ("gpt-5-mini gpt-5.1-codex-mini", 0.25, 0.025, 2, 128_000),
            ("gpt-5-nano", 0.05, 0.005, 0.4, 128_000),
            ("gpt-5-pro", 15, 15, 120, 272_000),
            ("gpt-4.1", 2, 0.5, 8, 32_768),
            ("gpt-4.1-mini", 0.4, 0.1, 1.6, 32_768),
            ("gpt-4.1-nano", 0.1, 0.025, 0.4, 32_768),
            ("gpt-4o", 2.5, 1.25, 10, 16_384),
            ("gpt-4o-mini", 0.15, 0.075, 0.6, 16_384),
            ("o3", 2, 0.5, 8, 100_000),
            ("o3-mini", 1.1, 0.55, 4.4, 100_000),
            ("o4-mini", 1.1, 0.275, 4.4, 100_000),
        ],
    ),
    **_table(
        "anthropic",
        [
            ("claude-opus-4-5", 5, 0.5, 25, 64_000),
            ("claude-opus-4-1 claude-opus-4-0 claude-opus-4", 15, 1.5, 75, 32_000),
            ("claude-sonnet-4-5 claude-sonnet-4-0 claude-sonnet-4", 3, 0.3, 15, 64_000),
            ("claude-haiku-4-5", 1, 0.1, 5, 64_000),
            ("claude-3-7-sonnet", 3, 0.3, 15, 64_000),
            ("claude-3-5-sonnet", 3, 0.3, 15, 8192),
            ("claude-3-5-haiku", 0.8, 0.08, 4, 8192),
        ],
    ),
    **_table(
        "deepseek",
        [("deepseek-chat", 0.28, 0.028, 0.42, 8192), ("deepseek-reasoner", 0.28, 0.028, 0.42, 65_536)],
    ),
    **_table("moonshot", [("kimi-k2-0905-preview kimi-k2-thinking", 0.6, 0.15, 2.5, 0)]),
    **_table(
        "groq",
        [
            ("llama-3.3-70b-versatile", 0.59, 0.59, 0.79, 32_768),
            ("llama-3.1-8b-instant", 0.05, 0.05, 0.08, 131_072),
            ("openai/gpt-oss-120b", 0.15, 0.075, 0.6, 65_536),
            ("openai/gpt-oss-20b", 0.075, 0.0375, 0.3, 65_536),
        ],
    ),
}
_FREE_PROVIDERS = frozenset({"local", "ollama", "scripted"})


class Prices:
    """Looks prices up: the operator's for exactly this name, then that of the longest pattern that fits, then
    the built-in one."""

    def __init__(self, configured: Mapping[str, PriceSettings] | None = None) -> None:
        self._configured = {name: _price(given) for name, given in (configured or {}).items()}
        self.find = lru_cache(maxsize=256)(self._find)

    def _find(self, provider: str, model: str) -> Price | None:
        known = _known(provider, model)
        own = find_named(self._configured, f"{provider}/{model}")
        if own is not None and known is not None and not own.max_output:
            return msgspec.structs.replace(own, max_output=known.max_output)
        return own or known


def _known(provider: str, model: str) -> Price | None:
    if provider in _FREE_PROVIDERS or (provider == "openrouter" and model.endswith(":free")):
        return FREE
    return find_known(KNOWN, provider, model)  # openrouter resells at the maker's price


def _price(given: PriceSettings) -> Price:
    dollars = given.input or 0.0
    return Price(
        from_usd(dollars),
        from_usd(dollars if given.cached is None else given.cached),
        from_usd(given.output or 0.0),
        from_usd(dollars if given.stored is None else given.stored),
        given.max_output or 0,
    )
