"""The orders that the store carries out, each in one transaction, and what it answers.

Accepting a message, its turn, every step of it and its reply are rows; after `kill -9` at any point the
rows say what is owed to whom.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from talaria.core.delivery import Button, OutboxRow
from talaria.core.entries import Entry, EntryBody, Hidden, Revision
from talaria.core.errors import ErrorInfo, TalariaError
from talaria.core.ids import Fence, OwnerId, SessionId, TurnId
from talaria.core.messages import TokenUsage, ToolResult, UserMessage
from talaria.core.questions import Question
from talaria.core.sessions import Session
from talaria.core.specs import PinnedSpec
from talaria.core.spending import Spent
from talaria.core.turns import Inbound, Step, StepKind, StepState, Turn, TurnState

# -- accepting --------------------------------------------------------------------------------------------


class Fresh(msgspec.Struct, frozen=True):
    """The session to make if the chat has none (or a new one is asked for). `context` fills its log."""

    session_id: SessionId
    spec: PinnedSpec | None
    context: tuple[EntryBody, ...] = ()
    ephemeral: bool = False


class Binding(StrEnum):
    """Which session a message belongs to."""

    CURRENT = "current"
    NEW = "new"
    RESUME = "resume"


class Accept(msgspec.Struct, frozen=True):
    """Bind a message to its session and write its turn. Durable before it returns.

    `inbound.key` dedupes within (`scope`): a known key younger than `key_ttl` seconds returns the turn it
    made, or raises `IdempotencyConflict` when `digest` differs. With `Binding.NEW` and `Binding.RESUME` the
    chat's session row moves in the same transaction. An ephemeral fresh session never becomes its chat's.
    A current session that was not used since `expire_before`, and of which nothing runs or waits, is ended:
    the message makes a fresh one. With `begin`, an order for the same turn, the turn begins in the same
    transaction, unless another owner has the session's lease or another turn of the session waits. The caller
    makes sure that no turn of the chat runs or waits in its own process. With `steers` the message joins that
    turn, if it still runs in the same session: the row says `merged_into`.
    """

    turn_id: TurnId
    inbound: Inbound
    fresh: Fresh
    command: str = ""
    binding: Binding = Binding.CURRENT
    resume: SessionId | None = None
    scope: str = ""
    digest: str = ""
    key_ttl: float = 86_400.0
    begin: Begin | None = None
    expire_before: float = 0.0
    steers: TurnId | None = None


class Accepted(msgspec.Struct, frozen=True):
    """`began` tells that the turn was begun as well; `turn` is its row after that. `ended` is the session
    that had expired and was ended for this message."""

    turn: Turn
    is_duplicate: bool
    is_new_session: bool
    began: Began | None = None
    ended: SessionId | None = None


class Ended(msgspec.Struct, frozen=True):
    """The session as it stands now; `is_news`: it was this order that ended it."""

    session: Session
    is_news: bool


# -- running ----------------------------------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True):
    """Take the session's lease (a new fence) and set the turn running; on its first attempt append `user`,
    and before it `hide`, for a turn that takes the place of an earlier one. `is_forgiven`: the attempt before
    did not take the process down, and does not count as if it had.

    A `waiting` turn goes on with the attempt that was parked: nothing is appended, and neither `attempts` nor
    `crashes` grows. While a turn waits, no other turn of its session can begin.

    Raises `LeaseHeld` while another owner's lease is unexpired or another turn of the session waits for a
    person, `IllegalMove` when the turn is over.
    """

    turn_id: TurnId
    owner: OwnerId
    lease_seconds: float
    user: UserMessage | None = None
    hide: Hidden | None = None
    is_forgiven: bool = False


class Began(msgspec.Struct, frozen=True):
    """`before` is the head that a warm agent must be at; `entry` is what this order appended after it.
    `crashes` are the earlier attempts that ended with their process."""

    session: Session
    fence: Fence
    before: Revision
    entry: Entry | None
    attempts: int
    crashes: int = 0


class StepWrite(msgspec.Struct, frozen=True):
    """`pending` inserts the step; `started` and `ended` move it; a model step may be inserted as `ended`."""

    n: int
    kind: StepKind
    name: str
    state: StepState
    call_id: str = ""
    result: ToolResult | None = None


class UsageWrite(msgspec.Struct, frozen=True):
    """What one model call of a turn used; `n` is its step. `cost` is in nanodollars, None when the price is
    not known; `user` is who it is counted for."""

    n: int
    provider: str
    model: str
    tokens: TokenUsage
    cost: int | None = None
    user: str = ""


class TurnEnd(msgspec.Struct, frozen=True):
    """The final state of a turn; a failure carries its error, and its sentence as the reply.

    The store writes what is to be sent back, if the turn has an address: the reply with its `buttons`, then
    `files`, which are paths in the chat's folder.
    """

    state: TurnState
    reply: str | None = None
    error: ErrorInfo | None = None
    usage: TokenUsage | None = None
    buttons: tuple[Button, ...] = ()
    files: tuple[str, ...] = ()

    @classmethod
    def failed(cls, error: TalariaError, usage: TokenUsage | None = None) -> TurnEnd:
        info = error.info()
        return cls(TurnState.FAILED, reply=info.sentence(), error=info, usage=usage)


def ended_turn(turn: Turn, end: TurnEnd, at: float) -> Turn:
    """Return the turn as its row is after it ended so."""
    return msgspec.structs.replace(
        turn, state=end.state, ended_at=at, reply=end.reply, error=end.error, usage=end.usage
    )


class Commit(msgspec.Struct, frozen=True):
    """Everything that one moment of a turn changes, under the lease's fence, or nothing of it.

    `entries` are appended at `seq = head + 1`. With `end` the turn gets its final state, what it owes its
    sender is written, the lease is given back, and the commit is durable before it returns. `turn_id` is
    None for appends outside a turn, which give the lease back with `release`. `specs` are stored (if new)
    before the entries that name them. `steers` are turns whose messages are among the entries: they run as
    part of this one and end with it. Raises `StaleFence` when the fence is not the session's current one,
    `SteerWaiting` when a turn would be done while a message to steer it is not among its entries.

    With `ask` the turn becomes `waiting`: the questions are written, the lease and the turn's reservations
    are given back, and the commit is durable before it returns. The questions replace those that the turn
    left undecided before. Raises `IllegalMove` for a question about a step that is not `pending`. `ask` and
    `end` exclude each other.
    """

    session_id: SessionId
    fence: Fence
    turn_id: TurnId | None
    entries: tuple[EntryBody, ...] = ()
    specs: tuple[PinnedSpec, ...] = ()
    steps: tuple[StepWrite, ...] = ()
    usage: tuple[UsageWrite, ...] = ()
    end: TurnEnd | None = None
    steers: tuple[TurnId, ...] = ()
    release: bool = False
    ask: tuple[Question, ...] = ()


class Committed(msgspec.Struct, frozen=True):
    """The appended entries and the session's revision after them."""

    revision: Revision
    entries: tuple[Entry, ...]


class Renewal(msgspec.Struct, frozen=True):
    session_id: SessionId
    fence: Fence


# -- reading ----------------------------------------------------------------------------------------------


class Page(msgspec.Struct, frozen=True):
    """`after` is what the last page said as `next`."""

    limit: int = 50
    after: str | None = None


class SessionPage(msgspec.Struct, frozen=True):
    items: tuple[Session, ...]
    next: str | None


class EntryPage(msgspec.Struct, frozen=True):
    entries: tuple[Entry, ...]
    next: str | None


class TurnRecord(msgspec.Struct, frozen=True):
    """A turn with its steps, what was sent of its reply, what its model calls used, and its questions."""

    turn: Turn
    steps: tuple[Step, ...]
    replies: tuple[OutboxRow, ...] = ()
    spent: Spent = Spent()
    questions: tuple[Question, ...] = ()


class QuestionPage(msgspec.Struct, frozen=True):
    questions: tuple[Question, ...]
    next: str | None


class ChatSummary(msgspec.Struct, frozen=True):
    """What commands show: the chat's recent sessions and how many turns its current one has had."""

    current: Session
    sessions: tuple[Session, ...]
    turns: int


class Integrity(StrEnum):
    """What is known about the wholeness of the database since this process opened it."""

    CLEAN_END = "clean end"
    CHECKING = "checking"
    WHOLE = "whole"
    DAMAGED = "damaged"


class StoreStats(msgspec.Struct, frozen=True):
    """`owed` counts turns that were accepted and are not settled; `outbox` counts unsent replies; the oldest
    of both waits for `oldest_seconds`. `integrity` is what is known of the file, `trouble` why it cannot be
    written now."""

    engine: str
    schema: int
    size_bytes: int
    wal_bytes: int
    sessions: int
    turns: dict[str, int]
    owed: int
    outbox: int
    oldest_seconds: float = 0.0
    integrity: str = ""
    trouble: str = ""
