"""Delivery: what goes back to a platform, and how an attempt to send it can end.

    pending ──▶ sending ──▶ sent | failed | pending
                   │  ▲
                   └──┘

`sending` is committed before the platform hears a word, so a row found `sending` after a crash may have
arrived. It is sent again, with a visible mark unless the platform dedupes by nonce or the row is an edit.
`sending ──▶ pending`: the platform said that it took nothing, and when to come again.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, TurnId


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
    """A choice below a message; pressing it is the same as sending `command`."""

    label: str
    command: str


class OutboxRow(msgspec.Struct, frozen=True):
    """One message of a reply, as last committed.

    A reply too long for its platform becomes several rows: they share `head`, the id of the first, and are
    sent in the order of `part`. `edits` is the platform's message that it replaces; `file` is a path in the
    chat's folder; `error` is what the last attempt met.
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
        """The same for every attempt."""
        return f"{self.turn_id}.{self.head}.{self.part}"


class Mark(msgspec.Struct, frozen=True):
    """How an attempt ended. `attempt` is its number: a mark of an earlier one than the last does nothing."""

    row_id: int
    attempt: int
    state: OutboxState
    due_at: float = 0.0
    platform_id: str | None = None
    error: str = ""


class OutgoingFile(msgspec.Struct, frozen=True):
    """A file that is sent, read where the chat's tools could have put it and nowhere else."""

    name: str
    data: bytes


class OutgoingMessage(msgspec.Struct, frozen=True):
    """One message of a platform, to be sent or, with `edits`, to take the place of one that is there.

    `nonce` is for platforms that dedupe by one. `is_repeat`: an earlier attempt may have arrived, so what is
    sent anew carries a visible mark; an edit needs none. With `file` the body is its caption.
    """

    address: str
    body: str
    nonce: str
    edits: str | None = None
    buttons: tuple[Button, ...] = ()
    file: OutgoingFile | None = None
    is_repeat: bool = False


class DeliveryError(TalariaError):
    """An attempt to send did not succeed. The subclass says what is known of it."""

    type = "delivery"


class DeliveryDelayed(DeliveryError):
    """The platform took nothing; it may after `retry_after` seconds."""

    type = "delivery_delayed"

    def __init__(self, user_text: str, hint: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(user_text, hint)
        self.retry_after = retry_after


class DeliveryRefused(DeliveryError):
    """The platform took nothing and never will: blocked, no such chat, not allowed to write there."""

    type = "delivery_refused"


class DeliveryUnknown(DeliveryError):
    """The request went out and no answer came: it may have arrived."""

    type = "delivery_unknown"
