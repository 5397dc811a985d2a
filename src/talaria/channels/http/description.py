"""The description of a call, as it stands beside its route, and `GET /openapi.json`, which shows all of them.
`openapi` makes that document."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from talaria.access.callers import RouteAccess
from talaria.channels.http.errors import NOT_AGAIN, PASSED_ON, STATUS, OpenAiError
from talaria.channels.http.request import Request
from talaria.channels.http.response import Response
from talaria.core.program import this_version
from talaria.operations.operation import Link

if TYPE_CHECKING:
    from talaria.channels.http.routing import ApiRoute

STORE_ERRORS: Final = ("store", "store_locked", "store_damaged", "store_gone", "stale_fence")
# Errors that the server or the guard may answer with, whatever the call is.
_ALWAYS: Final = ("bad_request", "wrong_origin", "wrong_host", "timeout", "head_too_large", "overloaded")
_GUARDED: Final = ("unauthorized", "forbidden", "not_our_page", "internal", *STORE_ERRORS)
_WITH_BODY: Final = ("too_large", "unsupported_media_type")


class Field(NamedTuple):
    """A parameter in the query, a header or the path."""

    name: str
    text: str
    kind: Any = str
    where: str = "query"
    required: bool = False


IDEMPOTENCY_KEY: Final = Field(
    "Idempotency-Key",
    "The same key with the same body is the same turn, for at least 24 hours.",
    Annotated[str, Meta(min_length=1, max_length=255)],
    "header",
)


class Call(NamedTuple):
    """The description of a call.

    `answer` is the type of its answer, or the media type of an answer that is no JSON. `status` is the status
    of that answer; `also` are others that are no errors, with the type or media type of each. `events` are
    the types of the events by their names, for a call that can be streamed. `errors` are the types of the
    errors that this call has beside those of every call; `passes_on` is set if a provider's own status, or
    the one that forbids a retry, may take the place of theirs. `told` are
    headers of its answer, with their meanings.
    """

    text: str
    answer: Any = None
    status: int = 200
    also: Mapping[int, Any] = {}
    body: Any = None
    fields: tuple[Field, ...] = ()
    events: Mapping[str, Any] = {}
    errors: tuple[str, ...] = ()
    passes_on: bool = False
    example: str = ""
    links: tuple[Link, ...] = ()
    told: Mapping[str, str] = {}


class DescribedCall(NamedTuple):
    path: str
    method: str
    access: RouteAccess
    call: Call

    def errors(self) -> dict[int, list[str]]:
        """Return the types of its errors by status."""
        kinds = [*_ALWAYS, *self.call.errors]
        if self.access is not RouteAccess.OPEN:
            kinds += _GUARDED
        if self.call.body is not None:
            kinds += _WITH_BODY
        found: defaultdict[int, list[str]] = defaultdict(list)
        for kind in dict.fromkeys(kinds):
            found[STATUS[kind]].append(kind)
        if self.call.passes_on:
            for status in (*PASSED_ON, NOT_AGAIN):
                found[status].append("model_refused")
        return dict(sorted(found.items()))

    def statuses(self) -> set[int]:
        """Return all statuses that an answer may have."""
        return {self.call.status, *self.call.also, *self.errors()}


class DescriptionApi:
    """`routes` may get further routes until the first call."""

    def __init__(self, routes: Mapping[str, Mapping[str, ApiRoute]]) -> None:
        self._routes = routes
        self._document: bytes | None = None

    async def openapi(self, request: Request) -> Response:
        if self._document is None:
            self._document = await asyncio.to_thread(self._make)
        return Response(self._document)

    def calls(self) -> Iterator[DescribedCall]:
        for path, methods in self._routes.items():
            for method, route in methods.items():
                yield DescribedCall(path, method, route.access, route.call)

    def _make(self) -> bytes:
        from talaria.channels.http.openapi import make_openapi  # noqa: PLC0415 - needed once, if at all

        return make_openapi(self.calls(), this_version()) + b"\n"


# -- the shapes of answers --------------------------------------------------------------------------------
# Answers of `/v1` are written as bytes, because they are made for every call or piece. These types only
# describe them: tests decode real answers with them.


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


class MessageUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: dict[str, int]


class MessageObject(msgspec.Struct, frozen=True):
    """A message. The types of `content` are `text`, `thinking`, `redacted_thinking` and `tool_use`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: tuple[dict[str, Any], ...]
    stop_reason: Literal["end_turn", "max_tokens", "tool_use", "refusal"]
    stop_sequence: None
    usage: MessageUsage


class MessageEvent(msgspec.Struct, frozen=True):
    """The data of an event. Its other members depend on `type`, as in Anthropic's API."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]


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
