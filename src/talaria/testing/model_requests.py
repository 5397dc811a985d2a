"""What a request to the model server comes to, and how one is refused, whichever API it is written for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from talaria.testing.script import Scene

T = TypeVar("T")
NAME = r"^[a-zA-Z0-9_-]{1,64}$"
PICTURE = r"^https?://|^data:image/(?:png|jpe?g|gif|webp);base64,[A-Za-z0-9+/]+=*\Z"


class BadChatRequest(Exception):
    """What a real server would answer with `status`, calling it a `kind` of error."""

    status = 400
    kind = "invalid_request_error"


class MissingKey(BadChatRequest):
    status = 401
    kind = "authentication_error"


class UnknownModel(BadChatRequest):
    status = 404
    kind = "not_found_error"


class ChatRequest(msgspec.Struct, frozen=True):
    model: str
    stream: bool
    scene: Scene


def decode(body: bytes) -> dict[str, Any]:
    """Raises `BadChatRequest` for what is no JSON object."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadChatRequest(f"The body of a request must be a JSON object: {error}") from None


def fit(request: dict[str, Any], shape: type[T]) -> T:
    """The request in the shape that its API wants. Raises `BadChatRequest`."""
    try:
        return msgspec.convert(request, shape)
    except msgspec.ValidationError as error:
        raise BadChatRequest(f"Invalid request: {error}") from None


def refuse_unless(condition: bool, complaint: str) -> None:
    if not condition:
        raise BadChatRequest(complaint)


def need_unique_tools(names: Iterable[str]) -> None:
    listed = list(names)
    refuse_unless(len(set(listed)) == len(listed), "Tool names must be unique.")


def make_request(request: dict[str, Any], scene: Scene) -> ChatRequest:
    return ChatRequest(str(request.get("model")), bool(request.get("stream")), scene)
