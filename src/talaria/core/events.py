"""What a turn says while it runs. The tag is the event's name on every channel."""

from __future__ import annotations

import msgspec

from talaria.core.errors import ErrorInfo
from talaria.core.messages import TokenUsage, ToolOutcome


class Queued(msgspec.Struct, frozen=True, tag="queued"):
    """`ahead`: how many turns of the chat come first."""

    ahead: int


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning"):
    text: str


class ToolStarted(msgspec.Struct, frozen=True, tag="tool.started"):
    call_id: str
    name: str
    arguments: str


class ToolFinished(msgspec.Struct, frozen=True, tag="tool.finished"):
    call_id: str
    name: str
    outcome: ToolOutcome
    preview: str


class UsageReported(msgspec.Struct, frozen=True, tag="usage"):
    usage: TokenUsage
    model: str


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """What was streamed before is void: the turn was resumed and starts its step again."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    reply: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    error: ErrorInfo


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    reply: str


Event = (
    Queued
    | Delta
    | ReasoningDelta
    | ToolStarted
    | ToolFinished
    | UsageReported
    | Reset
    | Done
    | Failed
    | Cancelled
)
FINAL_EVENTS = (Done, Failed, Cancelled)
EVENT_NAMES: dict[type, str] = {
    kind: str(kind.__struct_config__.tag)
    for kind in (
        Queued,
        Delta,
        ReasoningDelta,
        ToolStarted,
        ToolFinished,
        UsageReported,
        Reset,
        Done,
        Failed,
        Cancelled,
    )
}
