"""What a model is told of images it cannot see and of files it cannot open.

The session's spec alone decides, so that a message always has the same bytes. Under another spec (`/model`,
`/tools`) the images and paths are there, because the log has them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from talaria.core.messages import File, Image, Part, Text, ToolResult, ToolResults, UserMessage
from talaria.core.specs import AgentSpec
from talaria.core.units import format_size

READER = "read_file"
"""The tool that opens files."""

IMAGE_INPUT_BYTES = 8 << 10
"""What an image weighs among the bytes of a request when its tokens are guessed: they follow from its width
and height, and providers scale large ones down to a few thousand tokens."""


def as_told(message: UserMessage | ToolResults, spec: AgentSpec) -> UserMessage | ToolResults:
    """Return the message for a model of this spec; itself when there is nothing to leave out."""
    opens = READER in spec.tools
    if opens and spec.sees:
        return message
    if isinstance(message, ToolResults):
        if not any(result.parts for result in message.results):
            return message
        return ToolResults(tuple(_result(result, sees=spec.sees, opens=opens) for result in message.results))
    if all(isinstance(part, Text) for part in message.parts):
        return message
    parts = tuple(_told(message.parts, sees=spec.sees, opens=opens))
    return msgspec.structs.replace(message, parts=parts)


def _result(result: ToolResult, *, sees: bool, opens: bool) -> ToolResult:
    if not result.parts:
        return result
    parts = tuple(_told(result.parts, sees=sees, opens=opens))
    return ToolResult.of(result.call_id, result.name, parts, result.outcome)


def _told(parts: tuple[Part, ...], *, sees: bool, opens: bool) -> Iterator[Part]:
    file: File | None = None  # of which the next image is the content
    for part in parts:
        if isinstance(part, Image) and not sees:
            yield Text(f"[image {_name(part, file)}: this model cannot see images]")
        elif isinstance(part, File) and not opens:
            about = f"{part.media_type}, {format_size(part.size)}"
            yield Text(f"[file {part.name} ({about}): there is no tool here to open it with]")
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
    return sum(max(0, len(image.url) - IMAGE_INPUT_BYTES) for image in images)
