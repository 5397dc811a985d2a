"""`[models."provider/model"]`: how much a model reads and writes, and what it can do.

The built-in table holds what makers published by November 2025. What nobody has said is None, which is
neither yes nor no: who asks decides what is safe then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec

from talaria.models.naming import find_known
from talaria.models.presets import LOCAL, SCRIPTED
from talaria.models.prices import KNOWN as PRICES

Tokens = Annotated[int, msgspec.Meta(ge=1)]


class Abilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """`context` is what a call may hold in all and `output` the longest answer, both in tokens."""

    context: Tokens | None = None
    output: Tokens | None = None
    tools: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None

    def or_else(self, other: Abilities) -> Abilities:
        """What is not said here, as `other` says it."""
        return Abilities(
            self.context if self.context is not None else other.context,
            self.output if self.output is not None else other.output,
            self.tools if self.tools is not None else other.tools,
            self.images if self.images is not None else other.images,
            self.reasoning if self.reasoning is not None else other.reasoning,
        )

    def describe(self) -> str:
        """On one line, for people; empty when nothing is known."""
        told = []
        if self.context is not None:
            told.append(f"{self.context:,} tokens of context")
        if self.output is not None:
            told.append(f"answers up to {self.output:,}")
        for name in ("tools", "images", "reasoning"):
            if (can := getattr(self, name)) is not None:
                told.append(name if can else f"no {name}")
        return ", ".join(told)


NOTHING_KNOWN = Abilities()
Lookup = Callable[[str, str], Abilities]
"""From a provider and a model to what is known of it."""


def _table(maker: str, rows: Iterable[tuple[str, int, str]]) -> dict[str, Abilities]:
    """Rows of names, context, and all that it can do."""
    return {
        f"{maker}/{name}": Abilities(
            context, None, "tools" in abilities, "images" in abilities, "reasoning" in abilities
        )
        for names, context, abilities in rows
        for name in names.split()
    }


KNOWN: Mapping[str, Abilities] = {
    **_table(
        "openai",
        [
            (
                "gpt-5 gpt-5.1 gpt-5-codex gpt-5.1-codex gpt-5-mini gpt-5.1-codex-mini gpt-5-nano gpt-5-pro",
                400_000,
                "tools images reasoning",
            ),
            ("gpt-4.1 gpt-4.1-mini gpt-4.1-nano", 1_047_576, "tools images"),
            ("gpt-4o gpt-4o-mini", 128_000, "tools images"),
            ("o3 o4-mini", 200_000, "tools images reasoning"),
            ("o3-mini", 200_000, "tools reasoning"),
        ],
    ),
    **_table(
        "anthropic",
        [
            (
                "claude-opus-4-5 claude-opus-4-1 claude-opus-4-0 claude-opus-4 claude-sonnet-4-5 "
                "claude-sonnet-4-0 claude-sonnet-4 claude-haiku-4-5 claude-3-7-sonnet",
                200_000,
                "tools images reasoning",
            ),
            ("claude-3-5-haiku", 200_000, "tools images"),
        ],
    ),
    **_table(
        "deepseek", [("deepseek-chat", 128_000, "tools"), ("deepseek-reasoner", 128_000, "tools reasoning")]
    ),
    **_table(
        "moonshot",
        [
            ("kimi-k2-0905-preview", 262_144, "tools"),
            ("kimi-k2-thinking kimi-k2-thinking-turbo", 262_144, "tools reasoning"),
        ],
    ),
    **_table(
        "groq",
        [
            ("llama-3.3-70b-versatile llama-3.1-8b-instant", 131_072, "tools"),
            ("openai/gpt-oss-120b openai/gpt-oss-20b", 131_072, "tools reasoning"),
        ],
    ),
}
_SCRIPTED = Abilities(None, None, tools=True, images=True, reasoning=True)
_LOCAL = Abilities(4096, 512, tools=True, images=False, reasoning=False)


def built_in(provider: str, model: str) -> Abilities:
    """What is known without asking anybody; the longest answer stands with the price."""
    if provider == SCRIPTED:
        return _SCRIPTED
    if provider == LOCAL:
        return _LOCAL
    found = find_known(KNOWN, provider, model) or NOTHING_KNOWN
    price = find_known(PRICES, provider, model)
    return found.or_else(Abilities(output=price.max_output)) if price and price.max_output else found
