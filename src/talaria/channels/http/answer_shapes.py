"""The shapes of answers that are written as bytes, because they are made for every call or piece.

They only describe: tests decode real answers with them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from talaria.channels.http.openai_errors import OpenAiError


class CompletionUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class CalledTool(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class CompletionCall(msgspec.Struct, frozen=True):
    id: str
    type: Literal["function"]
    function: CalledTool


class CompletionMessage(msgspec.Struct, frozen=True):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[CompletionCall, ...] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    message: CompletionMessage
    logprobs: None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: CompletionUsage


class ChunkChoice(msgspec.Struct, frozen=True):
    """`delta` has some of `role`, `content`, `refusal`, `reasoning_content` and `tool_calls`."""

    index: int
    delta: dict[str, Any]
    logprobs: None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None


class ChatCompletionChunk(msgspec.Struct, frozen=True):
    """The data of an event without a name. The last data is `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: CompletionUsage | UnsetType | None = UNSET


class ChunkError(msgspec.Struct, frozen=True):
    """The data of an event that ends a stream which has failed."""

    error: OpenAiError


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseFailure(msgspec.Struct, frozen=True):
    code: str
    message: str


class ResponseObject(msgspec.Struct, frozen=True):
    """A response. It repeats the parameters of its request, which are not named here. The items of `output`
    have the types `message`, `reasoning` and `function_call`."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseFailure | None
    incomplete_details: dict[str, str] | None
    previous_response_id: str | None
    output: tuple[dict[str, Any], ...]
    usage: ResponseUsage | None
    model: str


class ResponseEvent(msgspec.Struct, frozen=True):
    """The data of an event. Its other members depend on `type`, as in OpenAI's API."""

    type: str
    sequence_number: int
