"""The events of a turn, and how each reads as one line for people."""

from __future__ import annotations

import re
from collections import deque
from typing import get_args

import msgspec
from msgspec import UNSET, UnsetType

from talaria.core.delegates import delegate_path
from talaria.core.errors import ErrorInfo
from talaria.core.files import SentFile
from talaria.core.ids import DelegateId, QuestionId, TurnId
from talaria.core.messages import TokenUsage, ToolOutcome
from talaria.core.questions import Question, QuestionKind, Span
from talaria.core.spending import from_usd, show_usd
from talaria.core.text import clean, clean_line
from talaria.core.turns import TurnState
from talaria.core.units import format_age, format_size, format_wait


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


class ThoughtEnded(msgspec.Struct, frozen=True, tag="reasoning.ended"):
    """A thought has ended. `raw` is its JSON with the signature that its provider wants back. Only stateless
    calls that are streamed have these events."""

    raw: str


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


class DelegateChanged(msgspec.Struct, frozen=True, tag="delegate"):
    """A delegate, for which the call `call_id` waits, has started or ended, or does something else. The event
    replaces earlier ones about the delegate.

    `turn_id` is empty until the delegate has a turn. `state` is the state of that turn, `line` says what it
    does, and `seconds` is its age. If a delegate has delegates, their ids begin with its own."""

    call_id: str
    delegate_id: DelegateId
    turn_id: TurnId
    title: str
    state: TurnState
    line: str
    seconds: float
    cost_usd: str = ""

    @property
    def depth(self) -> int:
        """How far below the turn the delegate is; 1 for one that the turn itself has handed a task."""
        return len(delegate_path(self.delegate_id))


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
    | ThoughtEnded
    | ToolCallDelta
    | ToolStarted
    | ToolOutput
    | ToolFinished
    | DelegateChanged
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


# -- events, tool calls, their output and sent files as text that is safe to display ----------------------


_NOTE = re.compile(r"(?:\A|\n)\[((?:Exit code|Ended) [^\n]{1,400})\]\s*\Z")
_NOTE_CHARS = 500
_TELLING = ("path", "command", "url", "query", "pattern", "task", "action", "question")
_MAX_ARGUMENTS = 1 << 20
_LONGEST = 72  # of a tool's name, and of the argument behind it
PREVIEW_CHARS = 200  # of a result that is shown beside its call


def find_note(result: str) -> str:
    """Return how a command ended, which is the last line of the result of `terminal`; empty for others."""
    found = _NOTE.search(result[-_NOTE_CHARS:])
    return clean_line(found[1]) if found else ""


def is_failure(note: str) -> bool:
    """Return whether a note tells of a command that failed."""
    return bool(note) and not note.startswith("Exit code 0.")


class OutputTail:
    """The last lines of a program's output, as they stand on its screen: a carriage return begins its line
    anew. All of it is bounded."""

    def __init__(self, rows: int, width: int = 200) -> None:
        self._width = width
        self._lines: deque[str] = deque(maxlen=rows)
        self._unfinished = ""
        self._count = 0

    @property
    def total(self) -> int:
        """How many lines there were, with the one that is not finished."""
        return self._count + bool(self._shown(self._unfinished))

    def add(self, text: str) -> None:
        *lines, rest = (self._unfinished + text).split("\n")
        self._count += len(lines)
        self._lines.extend(map(self._shown, lines))
        self._unfinished = rest[-self._width * 4 :]

    def _shown(self, line: str) -> str:
        return clean(line.rstrip("\r").rpartition("\r")[2])[: self._width]

    def lines(self) -> list[str]:
        """Return the last lines, with the one that is not finished."""
        last = self._shown(self._unfinished)
        return [*self._lines, *([last] if last else [])]

    def last(self) -> str:
        """Return the last line that is not blank."""
        return next((line for line in reversed(self.lines()) if line.strip()), "")


def describe(event: Event) -> str:
    """Return what an event says to a person who follows the turn; empty for an event without its own words.

    A question and an error have several lines. For a call that has ended, this is the outcome alone.
    """
    text = ""
    match event:
        case Queued(ahead=ahead, waits_for=waits_for) if ahead or waits_for:
            text = clean_line(waits_for or f"{ahead} messages of this chat come first.")
        case ToolStarted(name=name, arguments=arguments):
            text = f"⚙ {describe_call(name, arguments)}"
        case ToolFinished():
            text = _describe_outcome(event)
        case DelegateChanged():
            text = describe_delegate(event)
        case QuestionAsked(text=question, choices=choices):
            numbered = (f"  {number}. {choice}" for number, choice in enumerate(choices, 1))
            text = clean("\n".join([f"? {question}", *numbered]))
        case Retrying(reason=reason, seconds=seconds):
            text = clean_line(f"↻ {reason} Trying again in {seconds:.0f} s …", 200)
        case FellBack(reason=reason, model=model):
            text = clean_line(f"↪ {reason} Asking {model} instead.", 200)
        case ModelLoading():
            text = event.sentence()
        case Failed(error=error):
            text = describe_error(error)
        case Cancelled():
            text = "(cancelled)"
    return text


def describe_error(error: ErrorInfo) -> str:
    """Return `✗ what and why`, and the hint on a line of its own."""
    hint = f"\n  {clean(error.hint)}" if error.hint else ""
    return f"✗ {clean(error.message)}{hint}"


def _describe_outcome(event: ToolFinished) -> str:
    if event.outcome is not ToolOutcome.OK:
        first = clean_line(event.preview.strip().partition("\n")[0].removeprefix("Error: "), 100)
        return f"{event.outcome.value}: {first}" if first else event.outcome.value
    if not event.note:
        return "ok"
    # How a command ended, without what else its note tells, to stand within a line.
    ended = clean_line(event.note).partition(". ")[0].rstrip(".")
    return ended[0].lower() + ended[1:] if ended.startswith(("Exit code", "Ended")) else ended


_DELEGATE_STATES = {
    TurnState.ACCEPTED: "waiting to start",
    TurnState.RUNNING: "running",
    TurnState.WAITING: "waiting",
    TurnState.DONE: "done",
    TurnState.FAILED: "failed",
    TurnState.CANCELLED: "stopped",
}


def describe_delegate(event: DelegateChanged) -> str:
    """Return a delegate as one line: its task, state, age, cost, and what it does."""
    parts = [_DELEGATE_STATES[event.state], format_age(event.seconds)]
    if event.cost_usd and float(event.cost_usd):
        parts.append(show_usd(from_usd(float(event.cost_usd))))
    line = f": {clean_line(event.line, _LONGEST)}" if event.line else ""
    return f"{'   ' * (event.depth - 1)}{clean_line(event.title, _LONGEST)} — {', '.join(parts)}{line}"


def describe_file(file: SentFile, place: str) -> str:
    """Return a sent file as one line, with the place where it is."""
    return f"⇩ {clean_line(file.name, _LONGEST)}, {format_size(file.size)}: {clean(place)}"


def describe_call(name: str, arguments: str) -> str:
    """Return a tool call as one line: its name and its most telling argument. Arguments that are no JSON, or
    very long, are shown as the model wrote them."""
    try:
        fields = msgspec.json.decode(arguments if len(arguments) <= _MAX_ARGUMENTS else "")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        texts = {key: value for key, value in fields.items() if isinstance(value, str) and value}
        telling = (key for key in (*_TELLING, *texts) if key in texts)
        arguments = texts.get(next(telling, ""), "")
    return f"{clean_line(name, _LONGEST)} {clean_line(arguments, _LONGEST)}".rstrip()
