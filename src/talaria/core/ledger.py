"""The orders that the store runs, each in one transaction, and their results.

An accepted message, its turn, each step of the turn and its reply are rows. After `kill -9` at any point the
rows say which replies are owed to whom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec

from talaria.core.cluster import AbsentPlace, Here
from talaria.core.delegates import Delegate
from talaria.core.delivery import Button, OutboxRow
from talaria.core.entries import Announcement, Entry, EntryBody, Hidden, Revision
from talaria.core.errors import ErrorInfo, TalariaError
from talaria.core.files import SentFile, SentItem
from talaria.core.ids import ChatAddress, ChatKey, Fence, JobId, OwnerId, SessionId, TurnId
from talaria.core.jobs import SlotClaim
from talaria.core.messages import AssistantMessage, TokenUsage, ToolResult, UserMessage
from talaria.core.questions import Question
from talaria.core.sessions import Session
from talaria.core.specs import PinnedSpec
from talaria.core.spending import Spent
from talaria.core.turns import Inbound, ReplyPlace, Sender, Step, StepKind, StepState, Turn, TurnState

# -- stored responses: the answers of `/v1/responses` that a caller can fetch, continue and delete --------
# A response is a turn of a *chain*: a session of the caller's that has no tools of the gateway. Its input
# is the entries of the log from `first_seq` to `last_seq`, its output is the entry behind them. A response
# that continues the last one of a chain is appended to it. Every other one gets a chain of its own, a
# branch, which begins with a copy of the log up to the response that it continues.


class ChainPlace(msgspec.Struct, frozen=True):
    """A place in a chain: behind the entry `seq`, the last one of the response `turn_id`."""

    turn_id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    seq: int
    is_head: bool


class NewResponse(msgspec.Struct, frozen=True):
    """A response to store with its turn. `request` is JSON: what the answer repeats of the request."""

    request: str
    previous: TurnId | None = None


class StoredResponse(msgspec.Struct, frozen=True):
    """A stored response. `output` is None while there is no answer. `head` is the last entry of its chain."""

    turn: Turn
    request: str
    previous: TurnId | None
    first_seq: int
    last_seq: int
    head: int
    output: Entry | None = None

    @property
    def answer(self) -> AssistantMessage | None:
        body = self.output.body if self.output is not None else None
        return body if isinstance(body, AssistantMessage) else None

    @property
    def place(self) -> ChainPlace:
        """The place behind this response."""
        end = self.last_seq if self.output is None else self.output.seq
        return ChainPlace(self.turn.id, self.turn.session_id, self.turn.chat_key, end, end == self.head)


# -- the orders that the store runs, each in one transaction, and their results ---------------------------


# -- accepting --------------------------------------------------------------------------------------------


class BranchPoint(msgspec.Struct, frozen=True):
    """The place in a session's log where a branch began: the branch knows that log up to `seq`."""

    session_id: SessionId
    seq: int


class LogTotals(NamedTuple):
    """`entries` is the sum of the sessions' last seqs."""

    sessions: int
    entries: int


class Fresh(msgspec.Struct, frozen=True):
    """The session to make if the chat has none or a new one is wanted. `context` fills its log. A branch
    began at the place `parent`. `job_id` is set for a session of a job."""

    session_id: SessionId
    spec: PinnedSpec | None
    context: tuple[EntryBody, ...] = ()
    ephemeral: bool = False
    parent: BranchPoint | None = None
    job_id: JobId | None = None


class ImportSession(msgspec.Struct, frozen=True):
    """Create a session with a log that another program has written. Durable.

    The order is done whole or not at all, however long the log is: `read` is called in the transaction, and
    yields the times and the bodies of the entries in order. With `is_current` the chat continues in this
    session, unless it has a current session already; other sessions are ended, and can be resumed.
    """

    id: SessionId
    chat_key: ChatKey
    created_at: float
    updated_at: float
    title: str
    is_current: bool
    read: Callable[[], Iterable[tuple[float, EntryBody]]]


class Binding(StrEnum):
    """Which session a message belongs to."""

    CURRENT = "current"
    NEW = "new"
    RESUME = "resume"
    CHAIN = "chain"


class MessageName(msgspec.Struct, frozen=True):
    """A name by which a message is known if it comes again within `seconds`."""

    key: str
    seconds: float


class Amend(msgspec.Struct, frozen=True):
    """Replace the parts of the message `inbound.key`, which was accepted in `scope`, while its turn waits.
    Durable. The edit is known by `name` if it comes again. Without `may_replace` nothing is replaced: the
    order only tells whether the edit was made before."""

    inbound: Inbound
    scope: str
    name: MessageName
    may_replace: bool


class Accept(msgspec.Struct, frozen=True):
    """Bind a message to its session and write its turn. Durable.

    - `inbound.key` is unique within `scope`. If the key was used within `key_ttl` seconds, the turn of that
      message is returned; `IdempotencyConflict` is raised if `digest` differs. Without a key, `digest` is
      kept for `Store.recent_requests`.
    - `Binding.NEW` and `Binding.RESUME` change the chat's current session. An ephemeral fresh session never
      becomes a chat's current one. `Binding.RESUME` raises `NotFound` for a session of another chat.
    - A current session that was not used since `expire_before` is ended, unless one of its turns is
      unsettled; the message makes a fresh one.
    - With `begin`, an order for the same turn, the turn begins in the same transaction, unless another owner
      has the session's lease or another turn of the session waits for a person. The caller makes sure that
      no turn of the chat runs or is queued in its own process.
    - With `steers` the message joins that turn if it is `running` in the same session; `Turn.merged_into`
      names it then.
    - `Binding.CHAIN` appends `fresh.context`, and `fresh.spec` if it is another one, to the session at the
      place `behind`. Raises `HeadMoved` if that place is not the session's head. With `Binding.NEW` the fresh
      session begins with a copy of the log up to the place `behind`.
    - Without `fresh` the message needs a session that exists. If the chat has none, or it has expired,
      `NoSession` is raised and nothing is written.
    - With `only` the message is taken only if its session is this one; `NotFound` otherwise.
    - With `claim` the turn is the run of a job's slot and is bound to it; see `SlotClaim`.
    - If a message in the same `scope` had one of the `names`, `RepeatedMessage` is raised with its turn,
      which may be deleted by now.
    - With `response` a row is written by which the response can be found; see `core.responses`.
    - With `here` the gateway is one of a cluster. The turn is for the member that has the chat, and the chat
      is this member's from now on if no other has it; see `Accepted`. A turn for another member is not begun.
      With `busy` "steer" it joins the running turn there, unless other messages wait behind that and it does
      not pass them. With "interrupt" that turn is asked to stop. If `most_waiting` messages of the chat, or
      more, wait there already, `LimitReached` is raised; 0 is no limit.
    """

    turn_id: TurnId
    inbound: Inbound
    fresh: Fresh | None = None
    command: str = ""
    binding: Binding = Binding.CURRENT
    resume: SessionId | None = None
    scope: str = ""
    digest: str = ""
    key_ttl: float = 86_400.0
    begin: Begin | None = None
    expire_before: float = 0.0
    steers: TurnId | None = None
    behind: ChainPlace | None = None
    response: NewResponse | None = None
    only: SessionId | None = None
    claim: SlotClaim | None = None
    names: tuple[MessageName, ...] = ()
    here: Here | None = None
    busy: str = ""
    passes: bool = False
    most_waiting: int = 0

    @property
    def is_ephemeral(self) -> bool:
        return self.fresh is not None and self.fresh.ephemeral


class Accepted(msgspec.Struct, frozen=True):
    """The turn's row. `began` is set if the turn was begun as well. `ended` is the session that had expired
    and was ended by this order.

    `elsewhere` is the other member that the turn is for. `waits_for_place` is set if it is for a place that
    has no living member now. `has_loss`: the chat lost a place, now or before, and its log does not tell of
    it yet.
    """

    turn: Turn
    is_duplicate: bool
    is_new_session: bool
    began: Began | None = None
    ended: SessionId | None = None
    elsewhere: OwnerId | None = None
    waits_for_place: AbsentPlace | None = None
    has_loss: bool = False


class RecentRequest(msgspec.Struct, frozen=True):
    """A turn that was accepted with a digest and without a key. `is_answered`: a client has been sent the
    whole answer."""

    turn_id: TurnId
    digest: str
    accepted_at: float
    is_answered: bool


class Ended(msgspec.Struct, frozen=True):
    """The session after the order. `is_news` tells whether this order ended it."""

    session: Session
    is_news: bool


# -- running ----------------------------------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True):
    """Take the session's lease under a new fence, and set the turn running.

    The first attempt appends `user`. A turn that replaces an earlier one appends `hide` before it.
    `is_forgiven` tells that the attempt before did not crash the process.

    A `waiting` turn goes on with the attempt that was parked: nothing is appended, and neither `attempts` nor
    `crashes` grows. While a turn waits, no other turn of its session can begin.

    Raises `LeaseHeld` while another owner's lease is unexpired, another turn of the session waits for a
    person, or an earlier turn of it that another member of a cluster left in the middle has not gone on;
    `IllegalMove` when the turn is over, `TurnElsewhere` when it is for another member.
    """

    turn_id: TurnId
    owner: OwnerId
    lease_seconds: float
    user: UserMessage | None = None
    hide: Hidden | None = None
    is_forgiven: bool = False


class Began(msgspec.Struct, frozen=True):
    """`before` is the revision that a warm agent must have; `entry` is the user's entry, appended after it.
    `crashes` is the number of earlier attempts that ended with their process."""

    session: Session
    fence: Fence
    before: Revision
    entry: Entry | None
    attempts: int
    crashes: int = 0


class StepWrite(msgspec.Struct, frozen=True):
    """A step's new state. `pending` inserts the step, `started` and `ended` move it. A model step may be
    inserted as `ended`."""

    n: int
    kind: StepKind
    name: str
    state: StepState
    call_id: str = ""
    result: ToolResult | None = None


class UsageWrite(msgspec.Struct, frozen=True):
    """The usage of one model call, an attempt at step `n`, which replaces the attempt's reservation.

    `cost` is in nanodollars, None if the price is unknown; `user` is the person on whose account it is. With
    `is_estimate` the provider did not report the usage. `account` is the session to which it is charged, if
    that is not the turn's own.
    """

    n: int
    provider: str
    model: str
    tokens: TokenUsage
    cost: int | None = None
    user: str = ""
    attempt: int = 1
    is_estimate: bool = False
    account: SessionId = SessionId("")


class SideCharge(msgspec.Struct, frozen=True):
    """The end of a call beside turns, on the account of a turn of the session: its usage, or that its attempt
    (a step and a number) was not sent."""

    session_id: SessionId
    turn_id: TurnId
    usage: UsageWrite | None = None
    unsent: tuple[int, int] | None = None


class TurnEnd(msgspec.Struct, frozen=True):
    """The final state of a turn. A failure has an `error`, and the error's sentence as `reply`.

    If the turn has an address, the store writes outbox rows: the reply with its `buttons`, then `files`.
    `files` are those that the turn sent.
    """

    state: TurnState
    reply: str | None = None
    error: ErrorInfo | None = None
    usage: TokenUsage | None = None
    buttons: tuple[Button, ...] = ()
    files: tuple[SentFile, ...] = ()

    @classmethod
    def failed(cls, error: TalariaError, usage: TokenUsage | None = None) -> TurnEnd:
        info = error.info()
        return cls(TurnState.FAILED, reply=info.sentence(), error=info, usage=usage)


def ended_turn(turn: Turn, end: TurnEnd, at: float) -> Turn:
    """Return the turn as its row is after it ended so."""
    return msgspec.structs.replace(
        turn,
        state=end.state,
        ended_at=at,
        reply=end.reply,
        error=end.error,
        usage=end.usage,
        files=end.files,
    )


class Commit(msgspec.Struct, frozen=True):
    """Everything that one moment of a turn changes, under the fence of the session's lease.

    `entries` are appended behind the session's head. `specs` are stored, if new, before the entries that name
    them. `steers` are turns whose messages are among the entries: they run as part of this turn and end with
    it. `turn_id` is None for appends outside a turn. `release` gives the lease back. `unsent` are attempts at
    model calls, as steps and attempts, that were not sent: their reservations are dropped. `shortened` are
    steps that ended and whose results are among the entries, with what the steps keep of them.

    With `end` the turn gets its final state, its outbox rows are written, the lease is given back, and the
    commit is durable. Reservations of the turn that no commit has replaced or dropped are spent.

    With `ask` the turn becomes `waiting`: the questions are written, the lease is given back, and the commit
    is durable. Reservations are spent as with `end`. The questions replace those that the turn left undecided
    before. `ask` and `end` exclude each other. `delegates` park the turn in the same way, until each of them
    has an outcome; one that is there already stays as it is. Those in the `background` do not park it; the
    commit is durable too.

    Raises `StaleFence` when the fence is not that of the session's lease, `IllegalMove` for a move that the
    tables of turns and steps do not have or a question about a step that is not `pending`, `NotFound`, and
    `SteerWaiting` when a turn would be done while a message to steer it is not among its entries.
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
    unsent: tuple[tuple[int, int], ...] = ()
    shortened: tuple[tuple[int, ToolResult], ...] = ()
    delegates: tuple[Delegate, ...] = ()
    background: tuple[Delegate, ...] = ()


class Committed(msgspec.Struct, frozen=True):
    """The appended entries and the session's revision after them. `at` is the time of what was written."""

    revision: Revision
    entries: tuple[Entry, ...]
    at: float


class Renewal(msgspec.Struct, frozen=True):
    session_id: SessionId
    fence: Fence


BLAMED = "blamed"
"""The cursor with the turns that held the event loop until their process had to leave."""


def blamed_turns(cursor: str | None) -> Sequence[TurnId]:
    """Return the turns in the cursor `BLAMED`, once for each time."""
    return msgspec.json.decode(cursor, type=list[TurnId]) if cursor else ()


# -- reading ----------------------------------------------------------------------------------------------


class Page(msgspec.Struct, frozen=True):
    """`after` is the `next` of the page before; None for the first page."""

    limit: int = 50
    after: str | None = None


class SessionPage(msgspec.Struct, frozen=True):
    items: tuple[Session, ...]
    next: str | None


class TurnSum(msgspec.Struct, frozen=True):
    """Times, tokens and cost of a turn, as people see them below its answer, and its questions with their
    decisions. `cost_usd` is an exact decimal, or null if the price of a call is unknown. `said`,
    `reply` and `files` are those of a command, which no entry has."""

    id: TurnId
    state: TurnState
    accepted_at: float
    started_at: float | None
    ended_at: float | None
    error: ErrorInfo | None
    sender: str
    usage: TokenUsage | None
    cost_usd: str | None
    questions: tuple[Question, ...]
    command: str = ""
    said: str = ""
    reply: str = ""
    files: tuple[SentFile, ...] = ()


class EntryPage(msgspec.Struct, frozen=True):
    """`files` are those that the turns of these entries sent. `turns` are these turns, if they were asked
    for."""

    entries: tuple[Entry, ...]
    next: str | None
    files: tuple[SentItem, ...] = ()
    turns: tuple[TurnSum, ...] = ()


class TurnRecord(msgspec.Struct, frozen=True):
    """A turn with its steps, what was sent of its reply, what its model calls used, its questions, the
    delegates that it has handed tasks to, and what all of these used."""

    turn: Turn
    steps: tuple[Step, ...]
    replies: tuple[OutboxRow, ...] = ()
    spent: Spent = Spent()
    questions: tuple[Question, ...] = ()
    delegates: tuple[Delegate, ...] = ()
    spent_below: Spent = Spent()

    @property
    def spent_by_tree(self) -> Spent:
        """Return the usage of the turn and of all delegates below it."""
        return self.spent + self.spent_below


class AskedQuestion(msgspec.Struct, frozen=True):
    """A question with its turn. The turn's sender is the requester."""

    question: Question
    turn: Turn


class QuestionPage(msgspec.Struct, frozen=True):
    items: tuple[AskedQuestion, ...]
    next: str | None

    @property
    def questions(self) -> tuple[Question, ...]:
        return tuple(item.question for item in self.items)


class ChatSummary(msgspec.Struct, frozen=True):
    """The chat's current session, its recent sessions, and the number of turns of the current one."""

    current: Session
    sessions: tuple[Session, ...]
    turns: int


class Integrity(StrEnum):
    """The state of knowledge about damage to the database, since this process opened it."""

    CLEAN_END = "clean end"
    CHECKING = "checking"
    WHOLE = "whole"
    DAMAGED = "damaged"


class StoreStats(msgspec.Struct, frozen=True):
    """`turns` counts turns by state. `owed` counts unsettled turns, `outbox` unsent replies, `unsent` those
    by their channel; the oldest of both is `oldest_seconds` old. `trouble` says why the database cannot be
    written now, '' if it can; `trouble_type` is the type of that error."""

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
    unsent: dict[str, int] = {}
    trouble_type: str = ""


# -- messages to a chat outside of its turns: of `talaria send`, of a tool, of a job ----------------------
# A sent message is a turn that is done when it is written: its reply is the message. So it has a key
# against repeats, it is owed and delivered like every reply, `talaria why` tells of it, and it is forgotten
# like one.


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


# -- the history of one turn, for people who ask what happened; and the progress of forgetting turns ------


class StepUsage(msgspec.Struct, frozen=True):
    """The usage of the calls of one model at step `n`; `at` is when the first was recorded. The usage of
    `estimated` of the calls is an estimate. `cost` is None if a price is not known."""

    n: int
    provider: str
    model: str
    calls: int
    tokens: TokenUsage
    at: float
    cost: int | None = None
    estimated: int = 0


class TurnHistory(msgspec.Struct, frozen=True):
    """A turn's record with more detail. `ahead` is how many turns of its session were unsettled when it was
    accepted. `begun_at` and `begun_by` are those of its latest attempt; an owner is one process."""

    record: TurnRecord
    usage: tuple[StepUsage, ...] = ()
    ahead: int = 0
    begun_at: float | None = None
    begun_by: OwnerId = OwnerId("")


class PruneProgress(msgspec.Struct, frozen=True):
    """The result of one batch of forgetting: how many turns were forgotten, and the position to go on from;
    None when no more are left."""

    position: int | None
    turns: int
