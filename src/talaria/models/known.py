"""Knowledge about models: how much they read and write, their abilities, and their prices.

The operator's word counts first (`[models."provider/model"]`, `[prices."provider/model"]`), then what the
endpoint lists (`models/discovery.py`), then the built-in table below. Unknown is None, which is neither yes
nor no: the caller decides what is safe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from talaria.core.spending import FREE, Price, from_usd
from talaria.models.local.weights import LARGER_MODEL
from talaria.models.settings import LOCAL, SCRIPTED

T = TypeVar("T")
Tokens = Annotated[int, msgspec.Meta(ge=1)]
Dollars = Annotated[
    float, msgspec.Meta(ge=0, le=1_000_000, description="a number of dollars, 0 or more, such as 2.5")
]


def find_by_pattern(table: Mapping[str, T], name: str) -> T | None:
    """Return the value of exactly this name, else that of the longest matching pattern with stars."""
    if name in table:
        return table[name]
    fitting = [pattern for pattern in table if "*" in pattern and fnmatchcase(name, pattern)]
    return table[max(fitting, key=len)] if fitting else None


# -- abilities ----------------------------------------------------------------------------------------------


class Abilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """`[models."provider/model"]`. `context` is the size of a whole call, `output` of the longest answer."""

    context: Tokens | None = None
    output: Tokens | None = None
    tools: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None

    def or_else(self, other: Abilities) -> Abilities:
        """Return these abilities, with the unknown ones taken from `other`."""
        known = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(other, **known)

    def describe(self) -> str:
        """Return one line for people; empty when nothing is known."""
        words = []
        if self.context is not None:
            words.append(f"{self.context:,} tokens of context")
        if self.output is not None:
            words.append(f"answers up to {self.output:,}")
        for name in ("tools", "images", "reasoning"):
            if (can := getattr(self, name)) is not None:
                words.append(name if can else f"no {name}")
        return ", ".join(words)


NOTHING_KNOWN = Abilities()


def may_think(model: str, known: Abilities, effort: str | None) -> bool:
    """Return whether an answer may hold thoughts, shown or hidden: they were asked for, or the model can
    think and may do so unasked. Claude thinks only if it is asked to."""
    return effort is not None or (known.reasoning is True and "claude" not in model.lower())


AbilityLookup = Callable[[str, str], Abilities]
"""From a provider and a model to its abilities."""


def known_abilities(provider: str, model: str) -> Abilities:
    """Return what the built-in table says."""
    if provider == LOCAL:
        return _LARGER if model == LARGER_MODEL else _TINY
    if provider == SCRIPTED:
        return _SCRIPTED
    known = _find_known(provider, model)
    return known.abilities if known else NOTHING_KNOWN


# -- prices -------------------------------------------------------------------------------------------------


class PriceSettings(msgspec.Struct, frozen=True):
    """`[prices."provider/model"]`: dollars for a million tokens. `cached` and `stored` default to `input`."""

    input: Dollars | None = None
    cached: Dollars | None = None
    output: Dollars | None = None
    stored: Dollars | None = None
    max_output: Tokens | None = None

    def price(self) -> Price:
        dollars = self.input or 0.0
        return Price(
            from_usd(dollars),
            from_usd(dollars if self.cached is None else self.cached),
            from_usd(self.output or 0.0),
            from_usd(dollars if self.stored is None else self.stored),
            self.max_output or 0,
        )


class Prices:
    """Looks prices up: the operator's by name or longest pattern, then the built-in ones."""

    def __init__(self, configured: Mapping[str, PriceSettings] | None = None) -> None:
        self._configured = {name: given.price() for name, given in (configured or {}).items()}
        self.find = lru_cache(maxsize=256)(self._find)

    def _find(self, provider: str, model: str) -> Price | None:
        known = known_price(provider, model)
        own = find_by_pattern(self._configured, f"{provider}/{model}")
        if own is not None and known is not None and not own.max_output:
            return msgspec.structs.replace(own, max_output=known.max_output)
        return own or known


def known_price(provider: str, model: str) -> Price | None:
    """Return what the built-in table says. OpenRouter resells at the maker's price."""
    if provider in _FREE_PROVIDERS or (provider == "openrouter" and model.endswith(":free")):
        return FREE
    known = _find_known(provider, model)
    return known.price if known else None


# -- the built-in table -------------------------------------------------------------------------------------

_WRITE_FACTOR = 1.25  # Anthropic's price of writing to its cache, relative to input
_FREE_PROVIDERS = frozenset({LOCAL, "ollama", SCRIPTED})
_SCRIPTED = Abilities(None, None, tools=True, images=True, reasoning=True)
_LARGER = Abilities(4096, 512, tools=True, images=False, reasoning=False)
_TINY = Abilities(4096, 512, tools=False, images=False, reasoning=False)
_RELEASE_DATE = re.compile(r"-(?:20\d\d-?\d\d-?\d\d|latest)$")
_RESOLD = ("openai/", "anthropic/")  # OpenRouter sells these under their makers' names


class KnownModel(NamedTuple):
    abilities: Abilities
    price: Price | None


def _find_known(provider: str, model: str) -> KnownModel | None:
    """Find a model by its maker's name, with or without a release date. Similar names never match."""
    name = f"{provider}/{model}"
    if provider == "openrouter":
        if not model.startswith(_RESOLD):
            return None
        # It writes the versions of Claude with a dot; Anthropic writes a dash.
        name = model.replace(".", "-") if model.startswith("anthropic/") else model
    return KNOWN_MODELS.get(name) or KNOWN_MODELS.get(_RELEASE_DATE.sub("", name))


def _table(maker: str, *rows: tuple[str, int, str, tuple[float, ...], int]) -> dict[str, KnownModel]:
    """A row: names, context, abilities, dollars (input, cached input, output), longest answer or 0."""
    factor = _WRITE_FACTOR if maker == "anthropic" else 1
    table: dict[str, KnownModel] = {}
    for names, context, can, dollars, longest in rows:
        abilities = Abilities(context, longest or None, "tools" in can, "images" in can, "reasoning" in can)
        price = None
        if dollars:
            given, cached, output = dollars
            price = Price(
                from_usd(given), from_usd(cached), from_usd(output), from_usd(given * factor), longest
            )
        table |= {f"{maker}/{name}": KnownModel(abilities, price) for name in names.split()}
    return table


# Published by the makers up to November 2025, in dollars for a million tokens.
_THINKS, _SEES, _BOTH = "tools reasoning", "tools images", "tools images reasoning"
KNOWN_MODELS: Mapping[str, KnownModel] = {
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
