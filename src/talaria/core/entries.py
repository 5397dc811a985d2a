"""The entries of a session's log. All state of a session that lasts is an entry.

A `Revision` is a position in the log: `seq` grows with every append, `epoch` with every entry that rewrites
what the model sees (a new spec, an undo).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from talaria.core.ids import SessionId, SpecId, TurnId
from talaria.core.messages import AssistantMessage, Message, SystemMessage, Text, ToolResults, UserMessage


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
        parts = (Text(f"[This was sent to the chat:]\n{self.text}"),)
        return UserMessage(parts, self.stamp, untrusted=self.untrusted)


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
)
MARK_TYPES = (SpecSet, TitleSet, ReasoningSet, Hidden, Note, Announcement)


class Entry(msgspec.Struct, frozen=True):
    session_id: SessionId
    seq: int
    epoch: int
    at: float
    turn_id: TurnId | None
    body: EntryBody

    @property
    def message(self) -> Message | None:
        """The message that the model sees, or None for an entry that it does not see."""
        match self.body:
            case SystemMessage() | UserMessage() | AssistantMessage() | ToolResults() as message:
                return message
            case Note() | Announcement() as news:
                return news.message()
            case _:
                return None


def advance(revision: Revision, body: EntryBody) -> Revision:
    """Return the revision after `body` is appended."""
    rewrites = isinstance(body, SpecSet | Hidden) and revision.seq > 0
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


def settled_bodies(entries: Sequence[Entry], until: float = math.inf) -> tuple[EntryBody, ...]:
    """Return the entries with which a branch of this session begins.

    These are the last reasoning effort and the visible messages up to the last final answer, none behind the
    seq `until`. A turn that is still running is left out.
    """
    hidden = hidden_seqs(entries)
    wishes = [entry.body for entry in entries if isinstance(entry.body, ReasoningSet)]
    visible = (entry for entry in entries if entry.seq <= until and entry.seq not in hidden)
    messages = [entry.message for entry in visible if entry.message is not None]
    while messages and not (isinstance(messages[-1], AssistantMessage) and not messages[-1].tool_calls):
        messages.pop()
    return (*wishes[-1:], *messages)


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[EntryBody] = msgspec.json.Decoder(EntryBody)


def encode_body(body: EntryBody) -> bytes:
    return _ENCODER.encode(body)


def decode_body(data: bytes) -> EntryBody:
    return _DECODER.decode(data)
