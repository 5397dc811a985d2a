"""The entries of a session's log. All state of a session that lasts is an entry.

A `Revision` is a position in the log: `seq` grows with every append, `epoch` with every entry that rewrites
what the model sees (a new spec, an undo, a compaction).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from talaria.core.ids import SessionId, SpecId, TurnId
from talaria.core.messages import AssistantMessage, Message, SystemMessage, Text, ToolResults, UserMessage

MEMORY_NOTE = "memory:"  # begins the keys of notes about changes of memory
MEMORY_TOOL = "memory"


class Revision(msgspec.Struct, frozen=True, order=True):
    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.seq}"


class SpecSet(msgspec.Struct, frozen=True, tag="spec"):
    """The session uses this spec from here on. Starts a new epoch, unless it is the first entry."""

    spec_id: SpecId


class TitleSet(msgspec.Struct, frozen=True, tag="title"):
    title: str


class ReasoningSet(msgspec.Struct, frozen=True, tag="reasoning"):
    """The reasoning effort of this session; empty means the configured one. Never part of the prefix."""

    effort: str


class Hidden(msgspec.Struct, frozen=True, tag="hidden"):
    """Hides the entries from `first` to `last` from the model. Starts a new epoch; deletes nothing."""

    first: int
    last: int


WAKING: Final = "[You asked to be woken: "
_ANNOUNCED: Final = "[This was sent to the chat:]"


def is_from_gateway(message: UserMessage) -> bool:
    """Return whether the gateway wrote the message, not a person: a wake-up, or in a branch of a conversation
    a note or an announcement. The model cannot write messages, so it cannot remove these marks."""
    return message.text.startswith((WAKING, _ANNOUNCED, "[Note: "))


class Note(msgspec.Struct, frozen=True, tag="note"):
    """News for the model that no person wrote, such as the end of a background process.

    The model reads it like a message, and it belongs to the exchange in which it stands. `key` tells what it
    is about: a session has at most one note with a key. `stamp` is as in `UserMessage`.
    """

    key: str
    text: str
    stamp: str = ""

    def message(self) -> UserMessage:
        return UserMessage((Text(self.text),), self.stamp)


class Announcement(msgspec.Struct, frozen=True, tag="announcement"):
    """A message that was sent to the chat outside of its turns, such as the result of a job.

    People see `text` like an answer. The model reads it as a message that says so. With `untrusted` it has
    content from outside. `stamp` is as in `UserMessage`.
    """

    text: str
    stamp: str = ""
    untrusted: bool | UnsetType = UNSET

    def message(self) -> UserMessage:
        parts = (Text(f"{_ANNOUNCED}\n{self.text}"),)
        return UserMessage(parts, self.stamp, untrusted=self.untrusted)


class Summary(msgspec.Struct, frozen=True, tag="summary", omit_defaults=True):
    """A compaction: the model reads `text` in place of the entries `first` to `last`. Starts a new epoch.

    It replaces the summary before it. `children` are the seqs of the summaries that went into its text. A
    compaction that only shortens has the range and the text of the one before, or an empty range (0 to 0).
    What it shortens stands behind `last`: `stubs` are recall ids of results (`r12.2`) and of messages (`e12`)
    of which the model reads the beginning, and `folds` are ranges of settled steps of a turn, each of which
    the model reads as one line.

    `untrusted` tells that content from outside is in the range. If `of` is set, range and children are in the
    log of that session, from which this one was branched. `before` and `after` are the tokens of a request
    without and with this entry, for a `model` (provider/name) with a window of `window` tokens.
    """

    first: int = 0
    last: int = 0
    text: str = ""
    children: tuple[int, ...] = ()
    untrusted: bool = False
    stubs: tuple[str, ...] = ()
    folds: tuple[tuple[int, int], ...] = ()
    of: SessionId = SessionId("")
    model: str = ""
    window: int = 0
    before: int = 0
    after: int = 0

    @property
    def floor(self) -> int:
        """The seq of the last entry of this log that it stands for; 0 if it stands for none."""
        return 0 if self.of else self.last


class SummaryDropped(msgspec.Struct, frozen=True, tag="summary_dropped"):
    """The summary at entry `seq` does not count any more, nor any later one: what they stand for is shown
    again, behind the summary before them. Starts a new epoch."""

    seq: int


EntryBody = (
    SystemMessage
    | UserMessage
    | AssistantMessage
    | ToolResults
    | SpecSet
    | TitleSet
    | ReasoningSet
    | Hidden
    | Note
    | Announcement
    | Summary
    | SummaryDropped
)
REWRITES = (SpecSet, Hidden, Summary, SummaryDropped)


class Entry(msgspec.Struct, frozen=True):
    session_id: SessionId
    seq: int
    epoch: int
    at: float
    turn_id: TurnId | None
    body: EntryBody

    @property
    def message(self) -> Message | None:
        """The message that the model sees at this place, or None. A summary stands at the beginning of what
        the model sees: see `core.shown`."""
        match self.body:
            case SystemMessage() | UserMessage() | AssistantMessage() | ToolResults() as message:
                return message
            case Note() | Announcement() as news:
                return news.message()
            case _:
                return None


def tells_of_memory(entry: Entry) -> bool:
    """Return whether the entry may tell of a change of memory: by a note, or by the result of an edit."""
    match entry.body:
        case Note(key=key):
            return key.startswith(MEMORY_NOTE)
        case ToolResults(results=results):
            return any(result.name == MEMORY_TOOL for result in results)
        case _:
            return False


def advance(revision: Revision, body: EntryBody) -> Revision:
    """Return the revision after `body` is appended."""
    rewrites = isinstance(body, REWRITES) and revision.seq > 0
    return Revision(revision.epoch + (1 if rewrites else 0), revision.seq + 1)


class Exchange(msgspec.Struct, frozen=True):
    """A user message and the entries after it, up to the next user message. `first` and `last` are seqs,
    `turn_ids` the turns that wrote the entries."""

    first: int
    last: int
    said: UserMessage
    turn_ids: tuple[TurnId, ...] = ()


def hidden_seqs(entries: Iterable[Entry]) -> frozenset[int]:
    """Return the seqs of the entries that a `Hidden` entry covers."""
    return frozenset(
        seq
        for entry in entries
        if isinstance(entry.body, Hidden)
        for seq in range(entry.body.first, entry.body.last + 1)
    )


def exchanges(entries: Sequence[Entry]) -> list[Exchange]:
    """Return the visible messages of a log as exchanges, oldest first."""
    hidden = hidden_seqs(entries)
    found: list[Exchange] = []
    for entry in entries:
        if entry.seq in hidden or entry.message is None:
            continue
        turn_ids = () if entry.turn_id is None else (entry.turn_id,)
        if isinstance(entry.body, UserMessage):
            found.append(Exchange(entry.seq, entry.seq, entry.body, turn_ids))
        elif found:
            known = found[-1].turn_ids
            both = known if entry.turn_id in known else known + turn_ids
            found[-1] = msgspec.structs.replace(found[-1], last=entry.seq, turn_ids=both)
    return found
