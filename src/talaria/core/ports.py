"""Every port on one page: what a layer needs from another, wired in `app`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from talaria.core import access
from talaria.core.delivery import DeliveryResult, OutboxRow, OutgoingMessage
from talaria.core.entries import Entry
from talaria.core.errors import StoreError
from talaria.core.events import Event, ModelLoading
from talaria.core.history import PruneProgress, TurnHistory
from talaria.core.ids import ChatKey, Fence, OwnerId, QuestionId, SessionId, SpecId, TurnId
from talaria.core.ledger import (
    Accept,
    Accepted,
    Began,
    Begin,
    ChatSummary,
    Commit,
    Committed,
    Ended,
    EntryPage,
    Integrity,
    Page,
    QuestionPage,
    Renewal,
    SessionPage,
    StoreStats,
    TurnEnd,
    TurnRecord,
    UsageWrite,
)
from talaria.core.messages import Message, TokenUsage
from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.core.questions import Decision, Question
from talaria.core.sessions import Session
from talaria.core.specs import PinnedSpec, Prefix
from talaria.core.spending import Overrun, PlannedCall, Reserve, Spending, SpendingQuery
from talaria.core.tools import ToolSpec
from talaria.core.turns import Turn


class SpendStore(Protocol):
    """The store's side of money. What a call cost is written by `Store.commit`, which also frees what was
    reserved for its step, and at the turn's end for all. `Store.reclaim` frees what dead owners had, and
    `Store.yield_turns` what its own."""

    async def reserve(self, order: Reserve) -> Overrun | None:
        """Check every cap and set the amount aside, in one transaction. Answers the first cap that forbids
        it; nothing is set aside then. Raises `StaleFence`, `NotFound`."""
        ...

    async def spending(self, whose: SpendingQuery) -> Spending: ...


class Store(SpendStore, Protocol):
    """The session log and the answer ledger.

    Every writing method is one transaction: done whole and returned, or raised and nothing done. A write
    that was taken is finished even if its caller is cancelled, and the cancellation is delivered when it is
    done, not before (`core.tasks.finish` relies on it). Methods marked *durable* survive a power
    cut once they return; the others survive the death of the process. Reads see all earlier commits.
    """

    @property
    def outbox(self) -> Outbox: ...

    # -- writing
    async def accept(self, order: Accept) -> Accepted:
        """Durable."""
        ...

    async def begin(self, order: Begin) -> Began: ...

    async def commit(self, order: Commit) -> Committed:
        """Durable when it ends a turn or asks a person."""
        ...

    async def decide(self, question_id: QuestionId, decision: Decision) -> Turn:
        """Record the decision and return the question's turn, which stays `waiting`. Durable.

        The caller resumes the turn with `begin` once each of its questions is decided. `expires_at` is not
        checked. Raises `NotFound`, and `IllegalMove` when the question has a decision already or its turn is
        not waiting.
        """
        ...

    async def settle(self, turn_id: TurnId, end: TurnEnd) -> Turn:
        """End a turn that never began: stopped in the queue, or a command that appends nothing. Durable.

        Raises `IllegalMove` for a turn that began, a `waiting` one included: it is ended by `commit`, under
        its fence.
        """
        ...

    async def hold(self, session_id: SessionId, owner: OwnerId, lease_seconds: float) -> Fence:
        """Take the session's lease outside a turn.

        Raises `LeaseHeld` while any owner has it or a turn of the session waits for a person, `NotFound`.
        """
        ...

    async def renew(
        self, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float
    ) -> frozenset[SessionId]:
        """Extend these leases; answers with the sessions whose lease was lost."""
        ...

    async def end_session(self, session_id: SessionId, fence: Fence) -> Ended:
        """Mark the session ended and give its lease back. If it ended before, or a turn of it waits, only the
        lease is given back."""
        ...

    async def reclaim(self, owner: OwnerId) -> Sequence[Turn]:
        """Expire the leases of every other owner and return the unsettled turns, `waiting` ones included,
        oldest first.

        Only the holder of the home's lock may call it: the other owners are dead by construction.
        """
        ...

    async def orphans(self, owner: OwnerId, accepted_before: float) -> Sequence[Turn]:
        """Return the unsettled turns that no process works on, oldest first. Read-only.

        These are turns of sessions without a lease: begun by another owner, or accepted before
        `accepted_before`. A turn that waits for a person has no lease and needs no process. It is returned,
        with the turns merged into it, once each of its questions was decided or expired before
        `accepted_before`, so that a decision is not lost with the process that recorded it. The other turns
        of its session are not returned meanwhile.

        The caller claims a turn with `begin`; if two callers race, the second gets `LeaseHeld`.
        """
        ...

    async def yield_turns(self, owner: OwnerId) -> None:
        """Give back every lease of this owner, who ends in good order: its turns are resumed by another, and
        the attempt is not counted against them. Durable."""
        ...

    async def forgive(self, turn_id: TurnId) -> None:
        """The turn is not what took the process down: none of its attempts so far counts as a crash."""
        ...

    async def show(self, turn_id: TurnId, platform_id: str) -> None:
        """Note the platform's message that shows the turn: its reply, if not sent yet, is an edit of it."""
        ...

    async def set_cursor(self, name: str, value: str) -> None:
        """How far a channel has read: what comes before is accepted. Durable."""
        ...

    async def move_chat(self, old: ChatKey, new: ChatKey) -> bool:
        """The platform gave a chat another id: its sessions and what waits for it go on under `new`. False
        when `old` is not known, or `new` is in use already."""
        ...

    async def end_unused(self, before: float) -> Sequence[SessionId]:
        """End lasting sessions that were not used since `before`, but never one that is leased or of which a
        turn runs or waits. Answers which, at most a hundred; each is answered once."""
        ...

    async def prune_ephemeral(self, older_than: float) -> int:
        """Delete ephemeral sessions not touched since `older_than` with all their rows, but never one with
        an unsettled turn. Answers how many."""
        ...

    # -- reading
    async def session(self, session_id: SessionId) -> Session | None: ...

    async def current_session(self, chat_key: ChatKey) -> Session | None: ...

    async def sessions(self, page: Page) -> SessionPage:
        """Lasting sessions, newest activity first."""
        ...

    async def entries(self, session_id: SessionId, page: Page) -> EntryPage: ...

    async def log(self, session_id: SessionId, after_seq: int) -> Sequence[Entry]:
        """All entries after `after_seq`, in order: what a warm agent is built from."""
        ...

    async def spec(self, spec_id: SpecId) -> PinnedSpec | None: ...

    async def turn_record(self, turn_id: TurnId) -> TurnRecord | None: ...

    async def questions(self, turn_id: TurnId) -> Sequence[Question]:
        """Return all questions of the turn in the order in which they were put, decided or not."""
        ...

    async def open_questions(self, page: Page) -> QuestionPage:
        """Return the undecided questions of `waiting` turns, oldest first."""
        ...

    async def summary(self, session_id: SessionId) -> ChatSummary | None: ...

    async def cursor(self, name: str) -> str | None: ...

    async def stats(self) -> StoreStats: ...

    async def close(self) -> None:
        """Finish what was taken, then close. Later calls raise `StoreError`."""
        ...


class Outbox(Protocol):
    """What is to be sent back. The store writes a row in the transaction that ends its turn; rows of one
    address are sent in their order."""

    async def due(self, channel: str, limit: int) -> Sequence[OutboxRow]:
        """The first unsent row of each address of the channel whose time has come, oldest first.

        Rows that are `SENDING` are among them once the deadline of the attempt is past.
        """
        ...

    async def split(self, row_id: int, bodies: Sequence[str]) -> None:
        """Make several messages of one that was not tried yet: the first stays, the others follow it."""
        ...

    async def claim(self, row: OutboxRow, until: float) -> OutboxRow | None:
        """Mark it `SENDING`, before the platform hears a word: durable. `until` is the attempt's deadline,
        after which it is due again. None when it was claimed or settled meanwhile."""
        ...

    async def mark(self, order: DeliveryResult) -> bool:
        """Durable. False for an earlier attempt than the last. Raises `IllegalMove`, `NotFound`."""
        ...

    async def expire(self, written_before: float, error: str) -> int:
        """Give up what was not sent in all that time; how many."""
        ...


class Retention(Protocol):
    """Forgetting by rule, in small orders. What is unsettled or unsent is never touched."""

    async def forget_turns(self, after: int, before: float) -> PruneProgress:
        """Of turns settled before `before` keep only the bare row: message, reply, steps, sent messages and
        their keys go, and `Store.record` knows them no more. Goes on behind the position `after`."""
        ...

    async def prune_ended(self, before: float) -> int:
        """Delete lasting sessions that ended before `before`, with all their rows; how many. A hundred at a
        time at most."""
        ...

    async def prune_specs(self) -> int:
        """Delete specs that no session has any more; how many. A hundred at a time at most."""
        ...


class Histories(Protocol):
    """The ledger for people who ask why."""

    async def find(self, name: str) -> Sequence[TurnId]:
        """The turns that are called so, newest first, at most ten: by their id, the platform's id of the
        message or of a reply to it, or `reply:N` for a row of the outbox."""
        ...

    async def history(self, turn_id: TurnId) -> TurnHistory | None: ...


class Pairings(Protocol):
    """People who are paired, and people who ask to be.

    Every order is one transaction, as in `Store`. Wrong codes are counted in the order that refuses them, so
    the counts hold over restarts and for all processes on the store. Expired rows count as absent.
    """

    async def is_paired(self, channel: str, user_id: str) -> bool:
        """Read one row by key: what any process committed last."""
        ...

    async def ask(self, order: access.RequestPairing) -> access.RequestOutcome:
        """Open a request, unless the person has one or the channel has too many."""
        ...

    async def approve(self, order: access.ApprovePairing) -> access.PairingOutcome:
        """Pair the person with this code. Durable. If several calls race, one gets `Paired`."""
        ...

    async def invite(self, order: access.CreateInvitation) -> float:
        """Open the channel's invitation, forget wrong ones, and return when it expires. Durable."""
        ...

    async def redeem(self, order: access.RedeemInvitation) -> access.PairingOutcome:
        """Pair the person who presents the channel's invitation, which is then used up. Durable."""
        ...

    async def revoke(self, channel: str, user_id: str) -> access.Paired | None:
        """End a pairing. Durable. Return None if there was none."""
        ...

    async def listing(self) -> access.PairingList: ...


class StoreEngine(Store, Protocol):
    """A store as the program opens it: all its ports, and the care of its database."""

    @property
    def pairings(self) -> Pairings: ...

    @property
    def retention(self) -> Retention: ...

    @property
    def histories(self) -> Histories: ...

    @property
    def integrity(self) -> Integrity: ...

    @property
    def trouble(self) -> StoreError | None:
        """Why the last write failed; None once a write has succeeded. `probe` tries whether one does."""
        ...

    async def probe(self) -> None:
        """Write to the disk, changing nothing. Raises `StoreError` while that fails."""
        ...

    async def verify(self) -> str | None:
        """Look whether the database is whole, beside all other work, and return the damage found, or None.

        Nothing is written any more once damage was found. Raises `StoreError` if the store closes meanwhile.
        """
        ...

    async def snapshot(self, path: Path) -> None:
        """Write a whole, compact copy of the database to the new file `path` (0600), beside all other work.

        Raises `StoreError`; then there is no file.
        """
        ...


class Budget(Protocol):
    """The money of one turn."""

    async def reserve(self, call: PlannedCall) -> None:
        """Before each try of a call: set aside the most it can cost. A further try of the same step takes the
        place of the one before. It is settled by the commit that has the call's usage, and released by the
        turn's end. Raises `OverBudget` when a cap forbids it: the call must not be made then."""
        ...

    def charge(self, n: int, provider: str, model: str, tokens: TokenUsage) -> UsageWrite:
        """What a call used, priced."""
        ...


class WireFormat(Protocol):
    """How one provider API writes a conversation. Encoding depends on the message alone, never on where it
    stands, so that bytes once sent are a prefix of all that is sent later."""

    @property
    def name(self) -> str: ...

    def render_prefix(self, prompt: str, tools: Sequence[ToolSpec]) -> Prefix: ...

    def encode(self, message: Message) -> bytes:
        """One or more JSON objects joined by commas."""
        ...


class Model(Protocol):
    """One place to call models at.

    `complete` streams deltas to `sink` and returns the whole; it raises `ModelError` (`EndpointResting` when
    no call was made) and, on cancellation, closes its connection before it lets go.
    """

    @property
    def max_retries(self) -> int:
        """How often a call that failed for now may be tried again."""
        ...

    @property
    def is_resting(self) -> bool:
        """Whether a call would be turned away now, unmade, because too many have failed in a row."""
        ...

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion: ...


class Models(Protocol):
    """The models of this process by provider name. Raises `NoModel` for one that cannot be used."""

    def wire(self, provider: str) -> WireFormat:
        """How the provider's requests are written; connects to nothing."""
        ...

    def get(self, provider: str) -> Model: ...

    def credential(self, provider: str) -> str:
        """The fingerprint of the provider's secrets as they are now."""
        ...


class PendingModels(Protocol):
    """Models that are still on their way to this machine. A turn waits for its own before it begins, so that
    the wait is nobody's attempt and no deadline's time."""

    @property
    def is_any(self) -> bool:
        """Whether anything is on its way; costs nothing to ask."""
        ...

    def is_coming(self, provider: str, model: str) -> bool: ...

    async def arrival(self, tell: Callable[[ModelLoading], None]) -> bool:
        """Until nothing is on its way any more, whatever became of it. False: let go, the gateway ends."""
        ...

    def let_go(self) -> None:
        """Nobody waits any longer."""
        ...


class TurnFeed(Protocol):
    """A turn under way, as the channel that shows it sees it.

    `shown_id` is the platform's message that shows it already: of this attempt, or of one before a restart.
    """

    @property
    def turn(self) -> Turn: ...

    @property
    def shown_id(self) -> str | None: ...

    def events(self) -> AsyncIterator[Event]:
        """From the beginning to the final one; ends early when this process lets go of the turn."""
        ...

    async def shown(self, platform_id: str) -> None:
        """Stored at once: the final reply will be an edit of this message."""
        ...


class Outlet(Protocol):
    """The way back to the people of one channel. An address is what the channel wrote into `Inbound`."""

    @property
    def takes_nonce(self) -> bool:
        """Whether the platform drops a second message with the same nonce."""
        ...

    def split(self, reply: str) -> tuple[str, ...]:
        """The messages in which a reply is sent, each within the platform's limit. Pure."""
        ...

    async def deliver(self, post: OutgoingMessage) -> str:
        """Send or edit; answers with the platform's id of the message. Raises `DeliveryError` of the kind
        that says what is known; anything else counts as `DeliveryUnknown`."""
        ...

    async def show(self, view: TurnFeed) -> None:
        """Show a turn while it runs: typing, what it does, text as it comes. Cancelled, or left to end by
        itself, before the reply is delivered; an error here costs the show and nothing else."""
        ...


class WorkspaceHandle(Protocol):
    """What an agent and the tools of its turns hold of a session's workspace: use, and no way to end it.

    It touches nothing before it is used. Whatever the session has (working directory, environment, background
    processes, a browser) is found again through the next handle.
    """

    @property
    def session_id(self) -> SessionId: ...

    @property
    def folder(self) -> Path:
        """Where the chat's files are; made when a tool first needs it."""
        ...

    def release(self) -> Coroutine[Any, Any, None] | None:
        """Give the handle back: the agent leaves memory and the session goes on. Answers with what is left to
        wait for, if anything; it may be cancelled, and nothing of the session is lost by that."""
        ...


class Workspaces(Protocol):
    """What tools act on: files belong to the chat, the rest to the session. Owned by `app`."""

    def open(self, session_id: SessionId, chat_key: ChatKey) -> WorkspaceHandle:
        """A handle for an agent of this session. Costs nothing: no disk, no process."""
        ...

    async def end(self, session_id: SessionId) -> None:
        """The session is over: stop its processes, close its browser. Files stay, and so do working directory
        and environment, for when it is resumed; nobody waits with that for the end to be through, so what is
        started afterwards must not be hit. A session that has nothing: nothing happens."""
        ...

    async def close(self) -> None:
        """Let go of everything without ending any session; what can outlive the gateway does."""
        ...
