"""The transcript of a warm agent: each message encoded once, kept as bytes.

Images that the model cannot see and files that it cannot open are replaced by a note. The session's spec
alone decides, so that a message always has the same bytes. Under another spec (`/model`, `/tools`) the images
and paths are there, because the log has them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from talaria.core.messages import (
    AssistantMessage,
    File,
    Image,
    Message,
    Part,
    Text,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import AgentSpec
from talaria.core.units import format_size
from talaria.models.local.local_chat import LocalChat
from talaria.models.openai_chat import adapt_for_model
from talaria.models.wire import Wire, attached_text

_READER = "read_file"  # the tool that opens files
IMAGE_INPUT_BYTES = 8 << 10
"""How many bytes an image counts for when the tokens of a request are estimated. Its tokens follow from its
width and height, and providers scale large images down to a few thousand tokens."""


class Transcript:
    """Encoded messages in order, for one model.

    Reasoning of another model, or of the same model at another provider, is left out: most of it is signed or
    encrypted, and a provider refuses what it has not made. The bytes depend on the message and on the
    session's spec only. `weight` is `size` with each image counted as what it takes of the model's context.
    """

    __slots__ = ("_spec", "_wire", "chunks", "size", "weight")

    def __init__(self, wire: Wire, spec: AgentSpec) -> None:
        self._wire = wire
        self._spec = spec
        self.chunks: list[bytes] = []
        self.size = 0
        self.weight = 0

    def append(self, message: Message) -> None:
        hidden = 0
        if isinstance(message, AssistantMessage):
            if message.reasoning and not self._is_own(message):
                message = msgspec.structs.replace(message, reasoning=())
            message = adapt_for_model(message, self._spec.api, self._spec.model)
        elif isinstance(message, (UserMessage, ToolResults)):
            message = as_told(message, self._spec)
            hidden = hidden_weight(message)
        # The bytes that an encoder returns may have half as much room to spare. The copy has none.
        chunk = bytes(memoryview(self._wire.encode(message)))
        self.chunks.append(chunk)
        self.size += len(chunk)
        self.weight += len(chunk) - hidden

    def _is_own(self, message: AssistantMessage) -> bool:
        """A message that a stateless caller brought names no model and is sent as it is."""
        return not message.provider or (message.provider, message.model) == (
            self._spec.provider,
            self._spec.model,
        )

    def clear(self) -> None:
        self.chunks.clear()
        self.size = self.weight = 0


def as_told(message: UserMessage | ToolResults, spec: AgentSpec) -> UserMessage | ToolResults:
    """Return the message for a model of this spec; itself when there is nothing to leave out."""
    opens = spec.may_use(_READER) or spec.api == LocalChat.name  # which sends the text of a file
    if opens and spec.sees:
        return message
    if isinstance(message, ToolResults):
        if not any(result.parts for result in message.results):
            return message
        return ToolResults(tuple(_result(result, sees=spec.sees, opens=opens) for result in message.results))
    if all(isinstance(part, Text) for part in message.parts):
        return message
    parts = tuple(_replace_unreadable(message.parts, sees=spec.sees, opens=opens))
    return msgspec.structs.replace(message, parts=parts)


def _result(result: ToolResult, *, sees: bool, opens: bool) -> ToolResult:
    if not result.parts:
        return result
    parts = tuple(_replace_unreadable(result.parts, sees=sees, opens=opens))
    return ToolResult.of(result.call_id, result.name, parts, result.outcome)


def _replace_unreadable(parts: tuple[Part, ...], *, sees: bool, opens: bool) -> Iterator[Part]:
    file: File | None = None  # the file whose content is the next image
    for part in parts:
        if isinstance(part, Image) and not sees:
            yield Text(f"[image {_name(part, file)}: this model cannot see images]")
        elif isinstance(part, File) and not opens:
            yield Text(attached_text(part))
        else:
            yield part
        file = part if isinstance(part, File) else None


def _name(image: Image, file: File | None) -> str:
    if file is not None:
        return f"{file.name}, {format_size(file.size)}"
    kind, comma, data = image.url.partition(",")
    if not comma or not kind.startswith("data:"):
        return image.url
    return f"{kind[5:].partition(';')[0]}, {format_size(len(data) * 3 // 4)}"


def hidden_weight(message: UserMessage | ToolResults) -> int:
    """Return how many of a message's bytes belong to images and do not count as input."""
    holders = message.results if isinstance(message, ToolResults) else (message,)
    images = [part for holder in holders for part in holder.parts if isinstance(part, Image)]
    return sum([max(0, len(image.url) - IMAGE_INPUT_BYTES) for image in images]) if images else 0
