"""The messages of a conversation, in our own types. A wire format converts them for a provider.

Every wire format relies on these rules:
- All results of one assistant message stand in ONE `ToolResults`, in the order of its calls.
- The arguments of a tool call are the model's own text, byte for byte, even when they are not JSON.
- Reasoning blocks are kept verbatim, because some providers verify them on the way back.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Image(msgspec.Struct, frozen=True, tag="image"):
    """An image at an `https:` URL, or in a `data:` URL that holds all of it."""

    url: str
    detail: str | None = None


class File(msgspec.Struct, frozen=True, tag="file"):
    """A file in the chat's folder. A model is told its path; models without tools, and the built-in ones,
    get the `text` of a small text file too.

    A larger text file has its `beginning`, and `rest` says how `read_file` goes on behind it. With `rest` and
    no `beginning` the file holds a whole message that was too long: the text before it is its beginning. A
    file that is sent has the `digest` of its content.
    """

    name: str
    path: str
    media_type: str
    size: int
    text: str = ""
    beginning: str | UnsetType = UNSET
    rest: str | UnsetType = UNSET
    digest: str | UnsetType = UNSET

    @property
    def is_message(self) -> bool:
        return bool(self.rest) and not self.beginning


Part = Text | Image | File
Content = str | tuple[Part, ...]
"""The content of a tool's result: a text, or parts if there is more than text."""


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str


class Reasoning(msgspec.Struct, frozen=True):
    """A thought of the model. `field` is the provider's name for it; `raw` is its JSON, verbatim."""

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
    order; it is empty when there is nothing but `text`, as in every row that version 0.1.0 wrote. With
    `untrusted` it has untrusted content, which may try to instruct the model. `links` are the addresses that
    the result offers, such as the links of a page: the model may open them, but does not read this list.
    """

    call_id: str
    name: str
    text: str
    outcome: ToolOutcome = ToolOutcome.OK
    parts: tuple[Part, ...] = ()
    untrusted: bool | UnsetType = UNSET
    links: tuple[str, ...] | UnsetType = UNSET

    @staticmethod
    def of(
        call_id: str, name: str, parts: tuple[Part, ...], outcome: ToolOutcome = ToolOutcome.OK
    ) -> ToolResult:
        """Return a result that has these parts; parts that are all text become one text."""
        text = "\n".join(map(spoken_part, parts))
        is_text = all(isinstance(part, Text) for part in parts)
        return ToolResult(call_id, name, text, outcome, () if is_text else parts)


def spoken_part(part: Part) -> str:
    """Return a part for readers that take text only: a file by its path."""
    match part:
        case Text(text=text):
            return text
        case Image():
            return "[image]"
        case File(path=path):
            return f"[file {path}]"


class SystemMessage(msgspec.Struct, frozen=True, tag="system"):
    """A system message of a stateless caller. Sessions of ours have none in their log."""

    text: str
    role: str = "system"


class UserMessage(msgspec.Struct, frozen=True, tag="user"):
    """`stamp` is the local time at which the message was accepted, as the model reads it; it may be empty.
    With `untrusted` it has content from outside, which may try to instruct the model."""

    parts: tuple[Part, ...]
    stamp: str = ""
    name: str | None = None
    untrusted: bool | UnsetType = UNSET

    @property
    def text(self) -> str:
        return "\n".join([part.text for part in self.parts if isinstance(part, Text)])


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant"):
    """An answer of `model` at `provider`. An `interrupted` one is the partial text of a turn that was
    cancelled, or of an answer that broke off. A `refused` one is a text in which the model declines. One that
    the provider ended early names the reason in `cut`: "length" or "content_filter"."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    model: str = ""
    interrupted: bool = False
    provider: str = ""
    refused: bool | UnsetType = UNSET
    cut: str | UnsetType = UNSET


class ToolResults(msgspec.Struct, frozen=True, tag="tool_results"):
    results: tuple[ToolResult, ...]


Message = SystemMessage | UserMessage | AssistantMessage | ToolResults


def is_untrusted(message: Message) -> bool:
    """Return whether the message brought content from outside: the result of a tool that fetches it, a file
    or a picture that was sent, or the message itself."""
    match message:
        case ToolResults(results=results):
            return any(result.untrusted is True for result in results)
        case UserMessage(parts=parts, untrusted=untrusted):
            return untrusted is True or any(map(_is_sent, parts))
        case _:
            return False


def _is_sent(part: Part) -> bool:
    """Return whether a part is a picture or a file. A message that is too long is a file, and no such one."""
    return isinstance(part, Image) or (isinstance(part, File) and not part.is_message)


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens of model calls. Of `input`, the provider's prompt cache served `cached` tokens and took in
    `stored` tokens, which some providers charge for. `reasoning` is a part of `output`."""

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
