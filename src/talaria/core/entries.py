"""The rows of a session's log. Everything that lasts is one of these.

`Revision` says how far a view of the log has got: `seq` grows with every append, `epoch` with every
rewrite of what the model sees (a new spec, later undo and compaction).
"""

from __future__ import annotations

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


EntryBody = SystemMessage | UserMessage | AssistantMessage | ToolResults | SpecSet | TitleSet


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
    rewrites = isinstance(body, SpecSet) and revision.seq > 0
    return Revision(revision.epoch + (1 if rewrites else 0), revision.seq + 1)


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[EntryBody] = msgspec.json.Decoder(EntryBody)


def encode_body(body: EntryBody) -> bytes:
    return _ENCODER.encode(body)


def decode_body(data: bytes) -> EntryBody:
    return _DECODER.decode(data)
