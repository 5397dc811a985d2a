"""Delivery of replies to a platform: the outbox rows, their states, and how an attempt to send can end.

    pending ──▶ sending ──▶ sent | failed | pending
                   │  ▲
                   └──┘

`sending` is committed before the platform is called, so the message of a row that is found `sending` after a
crash may have arrived. It is sent again, with a visible mark unless the platform dedupes by nonce or the row
is an edit. A row returns from `sending` to `pending` if the platform said that it took nothing.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, TurnId

WHOLE_REPLY = "/answer.md"
"""The `file` of a row that sends the whole reply of its turn. No path in a chat's folder begins with "/"."""


LONGEST_WAIT = 3600.0
"""The most seconds until a message is tried again, whatever its platform asks for."""


class OutboxState(StrEnum):
    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"


OUTBOX_MOVES: dict[OutboxState, frozenset[OutboxState]] = {
    OutboxState.PENDING: frozenset({OutboxState.SENDING, OutboxState.FAILED}),
    OutboxState.SENDING: frozenset(
        {OutboxState.SENDING, OutboxState.PENDING, OutboxState.SENT, OutboxState.FAILED}
    ),
    OutboxState.SENT: frozenset(),
    OutboxState.FAILED: frozenset(),
}


class Button(msgspec.Struct, frozen=True):
    """A choice below a message. Pressing it is the same as sending `command`."""

    label: str
    command: str


class OutboxRow(msgspec.Struct, frozen=True):
    """A message of a reply, as last committed.

    A reply that is too long for one message becomes several rows. They share `head`, the id of the first row,
    and are sent in the order of `part`. `edits` is the id of the platform's message that this one replaces.
    `file` is a path in the chat's folder, or `WHOLE_REPLY`. `error` is the error of the last attempt.
    """

    id: int
    turn_id: TurnId
    chat_key: ChatKey
    channel: str
    address: str
    body: str
    state: OutboxState
    written_at: float
    due_at: float
    head: int = 0
    part: int = 0
    attempts: int = 0
    edits: str | None = None
    buttons: tuple[Button, ...] = ()
    file: str | None = None
    platform_id: str | None = None
    sent_at: float | None = None
    error: str = ""

    @property
    def nonce(self) -> str:
        """An id of the message that is the same for every attempt."""
        return f"{self.turn_id}.{self.head}.{self.part}"


class DeliveryResult(msgspec.Struct, frozen=True):
    """How attempt number `attempt` ended. The result of an attempt before the last has no effect."""

    row_id: int
    attempt: int
    state: OutboxState
    due_at: float = 0.0
    platform_id: str | None = None
    error: str = ""


class OutgoingFile(msgspec.Struct, frozen=True):
    """A file to send: one of the chat's folder, or the whole reply."""

    name: str
    data: bytes


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message for a platform, to be sent or, with `edits`, to replace an earlier message.

    `nonce` is for platforms that dedupe by it. With `is_repeat` an earlier attempt may have arrived, so a new
    message carries a visible mark; an edit needs none. With `file`, the body is the file's caption.
    """

    address: str
    body: str
    nonce: str
    edits: str | None = None
    buttons: tuple[Button, ...] = ()
    file: OutgoingFile | None = None
    is_repeat: bool = False


class DeliveryError(TalariaError):
    """An attempt to send failed. The subclass says what is known of it."""

    type = "delivery"


class DeliveryDelayed(DeliveryError):
    """The platform did not take the message; it may after `retry_after` seconds."""

    type = "delivery_delayed"

    def __init__(self, user_text: str, hint: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(user_text, hint)
        self.retry_after = retry_after


class DeliveryRefused(DeliveryError):
    """The platform will never take the message: the bot is blocked, or there is no such chat."""

    type = "delivery_refused"


class DeliveryUnknown(DeliveryError):
    """The request was sent and no answer came: the message may have arrived."""

    type = "delivery_unknown"
