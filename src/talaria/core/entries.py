"""The rows of a session's log. Everything that lasts is one of these.

`Revision` says how far a view of the log has got: `seq` grows with every append, `epoch` with every
rewrite of what the model sees (a new spec, an undo, later compaction).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from talaria.core.ids import SessionId, SpecId, TurnId
from talaria.core.messages import AssistantMessage, Message, SystemMessage, ToolResults, UserMessage


class Revision(msgspec.Struct, frozen=True, order=True):
    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.seq}"


class SpecSet(msgspec.Struct, frozen=True, tag="spec"):
    """From here on the session runs under this spec: epoch + 1, unless it is the log's first entry."""

    spec_id: SpecId


class TitleSet(msgspec.Struct, frozen=True, tag="title"):
    title: str


class ReasoningSet(msgspec.Struct, frozen=True, tag="reasoning"):
    """How much the model should think in this session; empty: as configured. Never part of the prefix."""

    effort: str


class Hidden(msgspec.Struct, frozen=True, tag="hidden"):
    """The model no longer sees the entries from `first` to `last`: epoch + 1. Nothing is deleted."""

    first: int
    last: int


EntryBody = (
    SystemMessage | UserMessage | AssistantMessage | ToolResults | SpecSet | TitleSet | ReasoningSet | Hidden
)
MARK_TYPES = (SpecSet, TitleSet, ReasoningSet, Hidden)


class Entry(msgspec.Struct, frozen=True):
    session_id: SessionId
    seq: int
    epoch: int
    at: float
    turn_id: TurnId | None
    body: EntryBody

    @property
    def message(self) -> Message | None:
        """What the model sees of this entry, if anything."""
        match self.body:
            case SystemMessage() | UserMessage() | AssistantMessage() | ToolResults() as message:
                return message
            case _:
                return None


def advance(revision: Revision, body: EntryBody) -> Revision:
    """The revision after appending `body`."""
    rewrites = isinstance(body, SpecSet | Hidden) and revision.seq > 0
    return Revision(revision.epoch + (1 if rewrites else 0), revision.seq + 1)


class Exchange(msgspec.Struct, frozen=True):
    """A user's message and all that followed it, up to the next one."""

    first: int
    last: int
    said: UserMessage


def hidden_seqs(entries: Iterable[Entry]) -> frozenset[int]:
    """Which entries the model does not see any more."""
    return frozenset(
        seq
        for entry in entries
        if isinstance(entry.body, Hidden)
        for seq in range(entry.body.first, entry.body.last + 1)
    )


def exchanges(entries: Sequence[Entry]) -> list[Exchange]:
    """What the model sees of a log, as exchanges, oldest first. Marks between messages belong to none."""
    hidden = hidden_seqs(entries)
    found: list[Exchange] = []
    for entry in entries:
        if entry.seq in hidden or entry.message is None:
            continue
        if isinstance(entry.body, UserMessage):
            found.append(Exchange(entry.seq, entry.seq, entry.body))
        elif found:
            found[-1] = msgspec.structs.replace(found[-1], last=entry.seq)
    return found


def settled_bodies(entries: Sequence[Entry]) -> tuple[EntryBody, ...]:
    """What another session must begin with to go on like this one: how much to think, and what the model sees
    up to its last answer. What is still under way is left out."""
    hidden = hidden_seqs(entries)
    wishes = [entry.body for entry in entries if isinstance(entry.body, ReasoningSet)]
    messages = [entry.message for entry in entries if entry.message is not None and entry.seq not in hidden]
    while messages and not (isinstance(messages[-1], AssistantMessage) and not messages[-1].tool_calls):
        messages.pop()
    return (*wishes[-1:], *messages)


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[EntryBody] = msgspec.json.Decoder(EntryBody)


def encode_body(body: EntryBody) -> bytes:
    return _ENCODER.encode(body)


def decode_body(data: bytes) -> EntryBody:
    return _DECODER.decode(data)
