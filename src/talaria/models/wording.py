"""What several wire formats write in the same words or shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from talaria.core.messages import AssistantMessage, File, Image, Text, UserMessage
from talaria.core.specs import Prefix

INTERRUPTED = "[interrupted]"
_encode = msgspec.json.Encoder().encode


def as_text(part: Text | File) -> str:
    if isinstance(part, Text):
        return part.text
    return f"[file {part.name} ({part.media_type}, {part.size} bytes) at {part.path}]"


def spoken(message: AssistantMessage) -> str:
    if not message.interrupted:
        return message.text
    return f"{message.text}\n{INTERRUPTED}" if message.text else INTERRUPTED


# -- OpenAI's, in both of its formats


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def openai_prefix(prompt: str, tools: list[dict[str, Any]]) -> Prefix:
    system = _encode({"role": "system", "content": prompt}) if prompt else b""
    return Prefix(system, _encode(tools) if tools else b"")


def openai_content(
    message: UserMessage, text_type: str, image: Callable[[Image], dict[str, Any]]
) -> str | list[dict[str, Any]]:
    """A text, or a list of parts where there is an image; the stamp stands in front of everything."""
    stamp = f"[{message.stamp}] " if message.stamp else ""
    texts = [as_text(part) for part in message.parts if not isinstance(part, Image)]
    if len(texts) == len(message.parts):
        return stamp + "\n".join(texts)
    parts = [
        image(part) if isinstance(part, Image) else {"type": text_type, "text": as_text(part)}
        for part in message.parts
    ]
    if stamp and parts[0]["type"] == text_type:
        parts[0]["text"] = stamp + parts[0]["text"]
    elif stamp:
        parts.insert(0, {"type": text_type, "text": stamp.rstrip()})
    return parts
