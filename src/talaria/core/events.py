"""The events of a turn. The tag is the event's name on every channel."""

from __future__ import annotations

from typing import get_args

import msgspec
from msgspec import UNSET, UnsetType

from talaria.core.errors import ErrorInfo
from talaria.core.files import SentFile
from talaria.core.ids import QuestionId
from talaria.core.messages import TokenUsage, ToolOutcome
from talaria.core.questions import Question, QuestionKind, Span
from talaria.core.units import format_wait


class Queued(msgspec.Struct, frozen=True, tag="queued"):
    """The turn waits behind `ahead` turns of its chat. `waits_for` is a sentence, if the first of those waits
    for a person, or the turn for a gateway that is away."""

    ahead: int
    waits_for: str | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    text: str


class RefusalDelta(Delta, frozen=True, tag="delta"):
    """A piece of a reply in which the model declines to answer. Most channels show it as any other."""


class ToolCallDelta(msgspec.Struct, frozen=True, tag="tool.delta"):
    """A piece of the call number `index` of a tool of the caller. The first one has the call's id and name.
    Only stateless calls that are streamed have these events."""

    index: int
    call_id: str
    name: str
    arguments: str


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning"):
    text: str


class ToolStarted(msgspec.Struct, frozen=True, tag="tool.started"):
    call_id: str
    name: str
    arguments: str


class ToolOutput(msgspec.Struct, frozen=True, tag="tool.output"):
    """A piece of the output of a running call. The output of a call is bounded."""

    call_id: str
    text: str


class ToolFinished(msgspec.Struct, frozen=True, tag="tool.finished"):
    """A call has ended. `preview` is the beginning of its result. `note` is how a command ended, such as
    `Exit code 1.`; empty for other tools."""

    call_id: str
    name: str
    outcome: ToolOutcome
    preview: str
    note: str = ""


class QuestionAsked(msgspec.Struct, frozen=True, tag="approval"):
    """The turn waits for a person: may the call run (`kind` "approval"), or what is the answer ("answer")?"""

    question_id: QuestionId
    kind: QuestionKind
    text: str
    choices: tuple[str, ...]
    call_id: str
    name: str

    @classmethod
    def of(cls, question: Question, name: str) -> QuestionAsked:
        """`name` is the tool's."""
        return cls(question.id, question.kind, question.text, question.choices, question.call_id, name)


class QuestionDecided(msgspec.Struct, frozen=True, tag="approval.decided"):
    """A person decided: `decision` is "approve", "deny" or the answer, `span` how far an approval reaches."""

    question_id: QuestionId
    decision: str
    span: Span
    by: str


class Retrying(msgspec.Struct, frozen=True, tag="retry"):
    """The call of `model` (provider/name) failed for `reason`; try number `attempt` comes after `seconds`."""

    model: str
    attempt: int
    seconds: float
    reason: str


class FellBack(msgspec.Struct, frozen=True, tag="fallback"):
    """From now on `model` answers in this turn, because `instead_of` failed for `reason`."""

    model: str
    instead_of: str
    reason: str


class Compacted(msgspec.Struct, frozen=True, tag="compacted"):
    """The conversation was compacted: its next request has `after` tokens instead of `before`."""

    before: int
    after: int


class UsageReported(msgspec.Struct, frozen=True, tag="usage"):
    usage: TokenUsage
    model: str


class ModelLoading(msgspec.Struct, frozen=True, tag="model.loading"):
    """`model` (provider/name) cannot answer yet: its weights are fetched, verified or loaded (`stage`). A
    download takes `seconds` more, if that is known; `done` of `total` bytes are here. The last stage is
    "reading": it is loaded, and its first word comes when it has read the conversation."""

    model: str
    stage: str
    seconds: float | None = None
    done: int = 0
    total: int = 0

    @property
    def is_on_its_way(self) -> bool:
        """Whether weights are still being fetched, which takes long enough to tell people about it."""
        return self.stage not in ("loading", "reading")

    def sentence(self) -> str:
        if self.stage == "reading":
            return "The model is thinking."
        if self.stage == "loading":
            return "The model is being loaded."
        when = ""
        if self.seconds is not None:
            wait = format_wait(self.seconds)
            when = f", in {wait}" if wait == "a moment" else f", about {wait}"
        size = f" ({self.done / 1e6:.0f} of {self.total / 1e6:.0f} MB)" if self.total else ""
        return f"Saved. I answer when the model is ready{when}{size}."


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """The turn was resumed and repeats its step. All events before this one are void."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The turn is done. `files` were sent with the reply."""

    reply: str
    files: tuple[SentFile, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    error: ErrorInfo


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    reply: str


Event = (
    Queued
    | Delta
    | ReasoningDelta
    | ToolCallDelta
    | ToolStarted
    | ToolOutput
    | ToolFinished
    | QuestionAsked
    | QuestionDecided
    | Retrying
    | FellBack
    | Compacted
    | UsageReported
    | ModelLoading
    | Reset
    | Done
    | Failed
    | Cancelled
)
FINAL_EVENTS = (Done, Failed, Cancelled)
EVENT_KINDS: dict[str, type] = {str(kind.__struct_config__.tag): kind for kind in reversed(get_args(Event))}
EVENT_NAMES: dict[type, str] = {kind: name for name, kind in EVENT_KINDS.items()} | {RefusalDelta: "delta"}
