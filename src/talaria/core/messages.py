"""Our own messages, converted to a provider's shape only at the model's edge.

Rules that every wire format relies on:
- all results of one assistant message stand in ONE `ToolResults`, in the order of its calls;
- a tool call's arguments are the model's own text, byte for byte, even when they are not JSON;
- reasoning blocks are kept verbatim, because some providers verify them on the way back.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Image(msgspec.Struct, frozen=True, tag="image"):
    """`url` is `https:` or a whole `data:` URL, so that encoding needs nothing but the entry."""

    url: str
    detail: str | None = None


class File(msgspec.Struct, frozen=True, tag="file"):
    """A file in the chat's folder; models are told its path."""

    name: str
    path: str
    media_type: str
    size: int


Part = Text | Image | File
Content = str | tuple[Part, ...]
"""What a tool gives back: a text, or parts where there is more than text."""


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str


class Reasoning(msgspec.Struct, frozen=True):
    """What the model thought. `field` is the provider's name for it; `raw` is its JSON, verbatim."""

    field: str
    text: str
    raw: str


class ToolOutcome(StrEnum):
    OK = "ok"
    ERROR = "error"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"


class ToolResult(msgspec.Struct, frozen=True):
    """The result of one call.

    `text` is the result for readers that take text only. `parts` is the result as its tool gave it, in
    order; it is empty when there is nothing but `text`, as in every row that version 0.1.0 wrote.
    """

    call_id: str
    name: str
    text: str
    outcome: ToolOutcome = ToolOutcome.OK
    parts: tuple[Part, ...] = ()

    @staticmethod
    def of(
        call_id: str, name: str, parts: tuple[Part, ...], outcome: ToolOutcome = ToolOutcome.OK
    ) -> ToolResult:
        """Return a result that has these parts; parts that are all text become one text."""
        text = "\n".join(map(_as_text, parts))
        is_text = all(isinstance(part, Text) for part in parts)
        return ToolResult(call_id, name, text, outcome, () if is_text else parts)


def _as_text(part: Part) -> str:
    match part:
        case Text(text=text):
            return text
        case Image():
            return "[image]"
        case File(path=path):
            return f"[file {path}]"


class SystemMessage(msgspec.Struct, frozen=True, tag="system"):
    """Only in ephemeral sessions, whose whole context comes from the caller."""

    text: str
    role: str = "system"


class UserMessage(msgspec.Struct, frozen=True, tag="user"):
    """`stamp` is the local time at accept, as the model reads it; empty: the model is not told."""

    parts: tuple[Part, ...]
    stamp: str = ""
    name: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant"):
    """`model` and `provider` tell who said it; `interrupted` marks partial text that was kept when its turn
    was cancelled or its answer broke off."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    model: str = ""
    interrupted: bool = False
    provider: str = ""


class ToolResults(msgspec.Struct, frozen=True, tag="tool_results"):
    results: tuple[ToolResult, ...]


Message = SystemMessage | UserMessage | AssistantMessage | ToolResults
MESSAGE_TYPES = (SystemMessage, UserMessage, AssistantMessage, ToolResults)


class TokenUsage(msgspec.Struct, frozen=True):
    """`cached` is the part of `input` that the provider's prompt cache served, `stored` the part that it
    wrote to it, for providers that charge for that; `reasoning` is a part of `output`."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    stored: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
            self.stored + other.stored,
        )
