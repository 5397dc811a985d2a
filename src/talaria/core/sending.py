"""Messages to a chat outside of its turns: of `talaria send`, of a tool, of a job.

A sent message is a turn that is done when it is written: its reply is the message. So it has a key against
repeats, it is owed and delivered like every reply, `talaria why` tells of it, and it is forgotten like one.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from talaria.core.entries import Announcement
from talaria.core.files import SentFile
from talaria.core.ids import ChatAddress, ChatKey, TurnId
from talaria.core.jobs import SlotClaim
from talaria.core.ledger import Fresh
from talaria.core.turns import ReplyPlace, Sender, Turn

SENT_TURN: Final = "(sent)"
"""The `command` of a turn that is a sent message. Nobody can type it."""

KEY_SECONDS: Final = 30 * 86_400.0


class ChatMessage(msgspec.Struct, frozen=True):
    """A message for a chat. `files` are paths in the chat's folder. A second message of the sender with the
    same `key` is the same message, for 30 days. `is_untrusted`: it has content from outside. `place` is the
    chat's, if it is known. `claim` is the slot of a reminder, which the message settles."""

    chat_key: ChatKey
    text: str
    sender: Sender
    files: tuple[str, ...] = ()
    key: str | None = None
    is_untrusted: bool = False
    place: ReplyPlace | None = None
    claim: SlotClaim | None = None


class SendMessage(msgspec.Struct, frozen=True):
    """Write a message to a chat. Durable.

    - `key` is unique within `scope`. If it was used within `key_ttl` seconds, the turn of that message is
      returned; `IdempotencyConflict` is raised if `digest` differs.
    - With `address` the store writes outbox rows: the text, then `files`. A chat without one fetches the
      message with its log.
    - `entry` is appended to the log of the chat's current session, at once or, while a turn of it runs or
      waits, by `Store.announce` after that turn. `fresh` is made if the chat has no session.
    - With `claim` the same transaction settles that slot. Raises `StaleFence` if the claim is void.
    """

    turn_id: TurnId
    chat_key: ChatKey
    sender: Sender
    entry: Announcement
    fresh: Fresh
    address: str | None = None
    files: tuple[SentFile, ...] = ()
    key: str | None = None
    scope: str = ""
    digest: str = ""
    key_ttl: float = KEY_SECONDS
    claim: SlotClaim | None = None


class SentTurn(msgspec.Struct, frozen=True):
    """The turn of a sent message. `is_logged`: the session's log has it already."""

    turn: Turn
    is_duplicate: bool = False
    is_logged: bool = False


class MessageSender(Protocol):
    """Sends messages to chats outside of their turns."""

    def read_chat(self, name: str) -> ChatAddress:
        """Return the chat of a key or a name, whether it exists or not. Raises `BadRequest`."""
        ...

    async def find_chat(self, name: str) -> ChatKey:
        """Return the chat that a person means. Raises `NotFound` and `BadRequest`."""
        ...

    async def send(self, message: ChatMessage) -> SentTurn:
        """Write the message and return its turn. Durable when it returns."""
        ...
