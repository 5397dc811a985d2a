"""`/context`: what fills the window of a session's model, as a bar."""

from __future__ import annotations

import msgspec

_WIDTH = 24


class WindowUse(msgspec.Struct, frozen=True):
    """The tokens of a request by kind, the size of the window, and the size at which the conversation is
    compacted. The summary in force stands for the entries up to `floor`, 0 without one. `is_estimate` says
    that no provider has counted a request of the session yet."""

    parts: tuple[tuple[str, int], ...]
    window: int
    at: int
    floor: int = 0
    is_estimate: bool = False

    @property
    def used(self) -> int:
        return sum(tokens for _, tokens in self.parts)


def describe_window(use: WindowUse) -> str:
    """Return the bar and a line for each kind."""
    share = round(use.used * 100 / use.window)
    about = "an estimate" if use.is_estimate else "counted by the provider"
    head = (
        f"The next request takes about {use.used:,} of {use.window:,} tokens ({share} %), {about}. "
        f"At {use.at:,} the conversation is compacted; `/compact` does it now."
    )
    rows = [*use.parts, ("free", max(0, use.window - use.used))]
    most = max(tokens for _, tokens in rows)
    lines = [f"{name:<10}{tokens:>9,}  {_bar(tokens, most)}".rstrip() for name, tokens in rows]
    tail = f"\nA summary stands for the first {use.floor} entries of the log." if use.floor else ""
    return f"{head}\n```\n{chr(10).join(lines)}\n```{tail}"


def _bar(tokens: int, most: int) -> str:
    length = round(tokens * _WIDTH / most) if most else 0
    return "█" * max(length, 1 if tokens else 0)
