"""A model call, its deltas and its completion, whatever the wire format."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from talaria.core.events import ModelLoading
from talaria.core.messages import AssistantMessage, TokenUsage
from talaria.core.specs import Prefix


class ModelCall(msgspec.Struct, frozen=True):
    """A request. `chunks` are the encoded messages after the prefix; they are never decoded again.

    `session_id` lets sessions take turns at a busy endpoint; it is not sent. A call that `gives_way` waits
    until no other call waits. With `patience`, the answer must begin within so many seconds, or sooner if the
    endpoint says so. With `tells_calls`, tool calls come as `CallDelta` while they are written.
    """

    model: str
    prefix: Prefix
    chunks: Sequence[bytes]
    reasoning: str | None = None
    max_output: int | None = None
    sampling: bytes = b""  # encoded JSON members from a stateless caller, e.g. b'"temperature":0.2'
    session_id: str = ""
    patience: float | None = None
    tells_calls: bool = False
    gives_way: bool = False


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class RefusalTextDelta(TextDelta, frozen=True):
    """A piece of a text in which the model declines to answer."""


class ScoredTextDelta(TextDelta, frozen=True):
    """A piece of text with the probability that the model gave it."""

    probability: float


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of the tool call number `index`. The first one has the call's id and name."""

    index: int
    call_id: str
    name: str
    arguments: str


class ThoughtDelta(msgspec.Struct, frozen=True):
    text: str


class CallCut(msgspec.Struct, frozen=True):
    """The last delta of a call that was sent, in whole or in part, and did not end with a completion.

    `output_bytes` counts what arrived of the answer: text, thoughts, names and arguments of tool calls.
    """

    output_bytes: int


ModelDelta = TextDelta | ThoughtDelta | CallDelta | ModelLoading | CallCut


class Completion(msgspec.Struct, frozen=True):
    """`stop` is the provider's reason: "stop", "tool_calls", "length", "content_filter". The program itself
    made an answer `without_model`, which used no tokens."""

    message: AssistantMessage
    usage: TokenUsage
    stop: str
    without_model: bool = False
