"""What makers have published of their models by November 2025: how much they read, what they can do, and what
they cost, in dollars for a million tokens. Nothing is guessed from a name that looks alike."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from talaria.core.spending import FREE, Price, from_usd
from talaria.models.abilities import NOTHING_KNOWN, Abilities
from talaria.models.naming import find_known
from talaria.models.presets import LOCAL, SCRIPTED

_WRITE_FACTOR = 1.25  # what Anthropic charges for writing to its cache, of the input's price
_FREE_PROVIDERS = frozenset({LOCAL, "ollama", SCRIPTED})


class Known(msgspec.Struct, frozen=True):
    abilities: Abilities
    price: Price | None


def _table(maker: str, *rows: tuple[str, int, str, tuple[float, ...], int]) -> dict[str, Known]:
    """Rows of names; context; all that it can do; the price of input, cached input and output, or nothing;
    the longest answer, or zero."""
    factor = _WRITE_FACTOR if maker == "anthropic" else 1
    table: dict[str, Known] = {}
    for names, context, can, dollars, longest in rows:
        abilities = Abilities(context, longest or None, "tools" in can, "images" in can, "reasoning" in can)
        price = None
        if dollars:
            given, cached, output = dollars
            price = Price(
                from_usd(given), from_usd(cached), from_usd(output), from_usd(given * factor), longest
            )
        table |= {f"{maker}/{name}": Known(abilities, price) for name in names.split()}
    return table


_THINKS, _SEES, _BOTH = "tools reasoning", "tools images", "tools images reasoning"
KNOWN: Mapping[str, Known] = {
    **_table(
        "openai",
        ("gpt-5 gpt-5.1 gpt-5-codex gpt-5.1-codex", 400_000, _BOTH, (1.25, 0.125, 10), 128_000),
        ("gpt-5-mini gpt-5.1-codex-mini", 400_000, _BOTH, (0.25, 0.025, 2), 128_000),
        ("gpt-5-nano", 400_000, _BOTH, (0.05, 0.005, 0.4), 128_000),
        ("gpt-5-pro", 400_000, _BOTH, (15, 15, 120), 272_000),
        ("gpt-4.1", 1_047_576, _SEES, (2, 0.5, 8), 32_768),
        ("gpt-4.1-mini", 1_047_576, _SEES, (0.4, 0.1, 1.6), 32_768),
        ("gpt-4.1-nano", 1_047_576, _SEES, (0.1, 0.025, 0.4), 32_768),
        ("gpt-4o", 128_000, _SEES, (2.5, 1.25, 10), 16_384),
        ("gpt-4o-mini", 128_000, _SEES, (0.15, 0.075, 0.6), 16_384),
        ("o3", 200_000, _BOTH, (2, 0.5, 8), 100_000),
        ("o3-mini", 200_000, _THINKS, (1.1, 0.55, 4.4), 100_000),
        ("o4-mini", 200_000, _BOTH, (1.1, 0.275, 4.4), 100_000),
    ),
    **_table(
        "anthropic",
        ("claude-opus-4-5", 200_000, _BOTH, (5, 0.5, 25), 64_000),
        ("claude-opus-4-1 claude-opus-4-0 claude-opus-4", 200_000, _BOTH, (15, 1.5, 75), 32_000),
        ("claude-sonnet-4-5 claude-sonnet-4-0 claude-sonnet-4", 200_000, _BOTH, (3, 0.3, 15), 64_000),
        ("claude-haiku-4-5", 200_000, _BOTH, (1, 0.1, 5), 64_000),
        ("claude-3-7-sonnet", 200_000, _BOTH, (3, 0.3, 15), 64_000),
        ("claude-3-5-sonnet", 200_000, _SEES, (3, 0.3, 15), 8192),
        ("claude-3-5-haiku", 200_000, _SEES, (0.8, 0.08, 4), 8192),
    ),
    **_table(
        "deepseek",
        ("deepseek-chat", 128_000, "tools", (0.28, 0.028, 0.42), 8192),
        ("deepseek-reasoner", 128_000, _THINKS, (0.28, 0.028, 0.42), 65_536),
    ),
    **_table(
        "moonshot",
        ("kimi-k2-0905-preview", 262_144, "tools", (0.6, 0.15, 2.5), 0),
        ("kimi-k2-thinking", 262_144, _THINKS, (0.6, 0.15, 2.5), 0),
        ("kimi-k2-thinking-turbo", 262_144, _THINKS, (), 0),
    ),
    **_table(
        "groq",
        ("llama-3.3-70b-versatile", 131_072, "tools", (0.59, 0.59, 0.79), 32_768),
        ("llama-3.1-8b-instant", 131_072, "tools", (0.05, 0.05, 0.08), 131_072),
        ("openai/gpt-oss-120b", 131_072, _THINKS, (0.15, 0.075, 0.6), 65_536),
        ("openai/gpt-oss-20b", 131_072, _THINKS, (0.075, 0.0375, 0.3), 65_536),
    ),
}
_OURS = {
    SCRIPTED: Abilities(None, None, tools=True, images=True, reasoning=True),
    LOCAL: Abilities(4096, 512, tools=True, images=False, reasoning=False),
}


def known_abilities(provider: str, model: str) -> Abilities:
    if provider in _OURS:
        return _OURS[provider]
    known = find_known(KNOWN, provider, model)
    return known.abilities if known else NOTHING_KNOWN


def known_price(provider: str, model: str) -> Price | None:
    if provider in _FREE_PROVIDERS or (provider == "openrouter" and model.endswith(":free")):
        return FREE
    known = find_known(KNOWN, provider, model)  # openrouter resells at the maker's price
    return known.price if known else None
