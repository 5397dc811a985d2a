"""`[models."provider/model"]`: how much a model reads and writes, and what it can do.

What nobody has said is None, which is neither yes nor no: who asks decides what is safe then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

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
        told = {name: said for name, said in msgspec.structs.asdict(self).items() if said is not None}
        return msgspec.structs.replace(other, **told)

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
