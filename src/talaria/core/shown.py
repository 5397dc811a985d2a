"""The part of a session's log that the model sees: the summary in force, and the messages behind its range.

Everything here is a pure function of entries. They may begin behind the session's floor, because the summary
in force stands behind the entries that it is about.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from talaria.core.entries import (
    Entry,
    EntryBody,
    Hidden,
    ReasoningSet,
    Summary,
    SummaryDropped,
    hidden_seqs,
)
from talaria.core.errors import ToolError
from talaria.core.ids import SESSION_PREFIX, SessionId
from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Part,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
    is_untrusted,
)

# -- recall ids: short names for the entries of a session's log, which a model reads and gives back -------
# `e12` is entry 12, `s40` the summary at entry 40, `r12.2` the second result of entry 12. An entry of
# another session, behind the point where a branch began, has that session's id in front: `ses_…/e12`.


_FORM = re.compile(
    rf"(?:({SESSION_PREFIX}[0-9a-z]{{1,64}})/)?"
    r"(?:([es])([1-9][0-9]{0,8})|r([1-9][0-9]{0,8})\.([1-9][0-9]{0,3}))",
    re.ASCII,
)
_SHOWN_CHARS = 80


class RecallKind(StrEnum):
    ENTRY = "e"
    SUMMARY = "s"
    RESULT = "r"


class RecallId(msgspec.Struct, frozen=True):
    """`seq` is the number of the entry. `nth` counts the results of an entry, from 1 on, and is 0 for other
    kinds. Without a `session_id` the entry is of the session in which the id is read."""

    kind: RecallKind
    seq: int
    nth: int = 0
    session_id: SessionId | None = None

    def __str__(self) -> str:
        place = f"{self.session_id}/" if self.session_id else ""
        return f"{place}{self.kind}{self.seq}{f'.{self.nth}' if self.nth else ''}"

    @classmethod
    def parse(cls, text: str) -> RecallId:
        """Return the id that a model wrote. Raises `ToolError` for any other text."""
        text = text.strip().strip("[]`\"'")
        if found := _FORM.fullmatch(text):
            session, kind, seq, of, nth = found.groups()
            place = SessionId(session) if session else None
            if nth:
                return cls(RecallKind.RESULT, int(of), int(nth), place)
            return cls(RecallKind(kind), int(seq), 0, place)
        raise ToolError(
            f"{text[:_SHOWN_CHARS]!r} is not a recall id.",
            "Ids look like e12, s40, r12.2 or ses_…/e12. recall_search and recall_describe show them.",
        )


def entry_id(seq: int) -> str:
    return f"{RecallKind.ENTRY}{seq}"


def summary_id(seq: int) -> str:
    return f"{RecallKind.SUMMARY}{seq}"


def result_id(seq: int, nth: int) -> str:
    """Return the id of the `nth` result of an entry, counted from 1 on."""
    return f"{RecallKind.RESULT}{seq}.{nth}"


# -- the part of a session's log that the model sees ------------------------------------------------------


STUB_CHARS = 400
"""The length of the beginning that the model reads of a shortened text."""
_SHORT_CHARS = 600  # a shorter text is not shortened: the stub would be as long
_RECALL = (
    " Nothing of it is lost: `recall_search` finds words in it, and `recall_expand` shows what an id such as "
    "e12 or r12.1 stands for."
)


def find_summary(entries: Sequence[Entry]) -> tuple[int, Summary]:
    """Return the seq and the summary in force, which is the newest one that is not void; 0 and an empty one
    if there is none.

    A summary is void once a later entry hides a part of its range or drops it.
    """
    hidden: list[Hidden] = []
    dropped = float("inf")
    for entry in reversed(entries):
        match entry.body:
            case Hidden() as undo:
                hidden.append(undo)
            case SummaryDropped(seq=seq):
                dropped = min(dropped, seq)
            case Summary() as summary:
                is_touched = not summary.of and any(
                    undo.first <= summary.last and undo.last >= summary.first for undo in hidden
                )
                if entry.seq < dropped and not is_touched:
                    return entry.seq, summary
            case _:
                pass
    return 0, Summary()


class ShownLog:
    """The part of a log that the model sees: the summary in force, and the messages behind its range.

    `summary` is empty and `summary_seq` 0 without one. `floor` is the seq of the last entry that it stands
    for. `hidden` are the seqs of the entries that an undo covers.
    """

    __slots__ = ("entries", "floor", "hidden", "summary", "summary_seq")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.hidden = hidden_seqs(entries)
        self.summary_seq, self.summary = find_summary(entries)
        self.floor = self.summary.floor

    def visible_entries(self) -> list[Entry]:
        """Return the entries that the model sees, in whole or shortened, and the summary in force."""
        return [
            entry
            for entry in self.entries
            if entry.seq == self.summary_seq or (entry.message is not None and entry.seq not in self.hidden)
        ]

    def has_untrusted(self) -> bool:
        """Return whether untrusted content is in what the model sees."""
        return any(map(is_untrusted_entry, self.visible_entries()))

    def behind_floor(self, until: float = math.inf) -> Iterator[tuple[Entry, Message]]:
        """Yield the visible messages that no summary stands for, up to the seq `until`, in whole."""
        for entry in self.entries:
            if not self.floor < entry.seq <= until or entry.seq in self.hidden:
                continue
            if (message := entry.message) is not None:
                yield entry, message

    def messages(self, *, can_recall: bool = True) -> Iterator[SeenMessage]:
        """Yield what the model sees, in order. With `can_recall` the model has the recall tools."""
        summary, stubs = self.summary, frozenset(self.summary.stubs)
        if summary.text:
            told = UserMessage((Text(render_summary(self.summary_seq, summary, can_recall=can_recall)),))
            yield SeenMessage(self.summary_seq, told)
        folded = {seq: fold for fold in summary.folds for seq in range(fold[0], fold[1] + 1)}
        for entry, message in self.behind_floor():
            if (fold := folded.get(entry.seq)) is not None:
                if entry.seq == fold[0]:
                    yield SeenMessage(entry.seq, UserMessage((Text(_render_fold(*fold)),)))
                continue
            yield SeenMessage(entry.seq, shorten(entry.seq, message, stubs) if stubs else message)


def is_untrusted_entry(entry: Entry) -> bool:
    if isinstance(entry.body, Summary):
        return entry.body.untrusted
    return entry.message is not None and is_untrusted(entry.message)


class SeenMessage(msgspec.Struct, frozen=True):
    """A message as the model sees it. `seq` is its entry's; the summary in force has its own."""

    seq: int
    message: Message


def render_summary(seq: int, summary: Summary, *, can_recall: bool) -> str:
    """Return the summary as the model reads it."""
    place = f"{summary.of}/" if summary.of else ""
    span = f"{place}{entry_id(summary.first)} to {place}{entry_id(summary.last)}"
    head = f"This summary ({summary_id(seq)}) stands for the earlier part of this conversation, {span}."
    return f"[{head}{_RECALL if can_recall else ''}]\n\n{summary.text}"


def _render_fold(first: int, last: int) -> str:
    return f"[Note: the steps {entry_id(first)} to {entry_id(last)} of this turn are left out to save room.]"


# -- stubs --------------------------------------------------------------------------------------------------


def shorten(seq: int, message: Message, stubs: frozenset[str]) -> Message:
    """Return the message with what `stubs` names shortened; itself if that is nothing."""
    name = entry_id(seq)
    match message:
        case ToolResults(results=results):
            names = [result_id(seq, nth) for nth in range(1, len(results) + 1)]
            if stubs.isdisjoint(names):
                return message
            return ToolResults(
                tuple(
                    stub_result(each, result) if each in stubs else result
                    for each, result in zip(names, results, strict=True)
                )
            )
        case _ if name not in stubs:
            return message
        case UserMessage(parts=parts):
            return msgspec.structs.replace(message, parts=tuple(_short_part(part, name) for part in parts))
        case AssistantMessage(text=text, tool_calls=calls):
            return msgspec.structs.replace(
                message,
                text=short_text(text, name),
                tool_calls=tuple(_short_call(call, name) for call in calls),
            )
        case SystemMessage():
            return message


def short_text(text: str, name: str) -> str:
    """Return the beginning of a text, and what is left out; the text itself if it is short."""
    if len(text) <= _SHORT_CHARS:
        return text
    left = len(text) - STUB_CHARS
    return f"{text[:STUB_CHARS]}… [{left:,} more characters are left out to save room; id {name}]"


def stub_result(name: str, result: ToolResult) -> ToolResult:
    """Return a tool's result with the beginning of its text only, and without its images."""
    images = sum(isinstance(part, Image) for part in result.parts)
    note = f"[{images} images are left out to save room; id {name}]" if images else ""
    text = "\n".join(filter(None, (short_text(result.text, name), note)))
    return msgspec.structs.replace(result, text=text, parts=())


def _short_part(part: Part, name: str) -> Part:
    match part:
        case Text(text=text):
            return Text(short_text(text, name))
        case Image():
            return Text(f"[image left out to save room; id {name}]")
        case _:
            return msgspec.structs.replace(part, text="")


def _short_call(call: ToolCall, name: str) -> ToolCall:
    """Return the call without its arguments if they are long. They stay a JSON object, as providers want."""
    if len(call.arguments) <= _SHORT_CHARS:
        return call
    note = f"{len(call.arguments):,} characters of arguments are left out to save room; id {name}"
    return ToolCall(call.id, call.name, msgspec.json.encode({"left_out": note}).decode())


# -- branches -----------------------------------------------------------------------------------------------


def settled_bodies(
    session_id: SessionId, entries: Sequence[Entry], first: int, until: float = math.inf
) -> tuple[EntryBody, ...]:
    """Return the entries with which a branch of this session begins; the first of them will have the seq
    `first`.

    These are the last reasoning effort, the visible messages up to the last final answer, none behind the seq
    `until`, and the summary in force. A turn that is still running is left out.
    """
    log = ShownLog([entry for entry in entries if _may_count(entry, until)])
    wishes = [entry.body for entry in entries if isinstance(entry.body, ReasoningSet)]
    copied = [(entry.seq, message) for entry, message in log.behind_floor(until)]
    while copied and not _is_answer(copied[-1][1]):
        copied.pop()
    bodies: list[EntryBody] = [*wishes[-1:], *(message for _, message in copied)]
    if log.summary_seq:
        numbers = {old: first + len(wishes[-1:]) + i for i, (old, _) in enumerate(copied)}
        bodies.append(_branched(log.summary, session_id, numbers))
    return tuple(bodies)


def _may_count(entry: Entry, until: float) -> bool:
    """Return whether the entry has a say in which summary a branch at `until` begins with."""
    return not isinstance(entry.body, Summary) or entry.body.last <= until


def _is_answer(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and not message.tool_calls


def _branched(summary: Summary, session_id: SessionId, numbers: dict[int, int]) -> Summary:
    """Return the summary for a branch, in which the shown entries have other `numbers`."""
    stubs = []
    for stub in map(RecallId.parse, summary.stubs):
        if (seq := numbers.get(stub.seq)) is not None:
            stubs.append(str(msgspec.structs.replace(stub, seq=seq)))
    return msgspec.structs.replace(summary, of=summary.of or session_id, stubs=tuple(stubs), folds=())
