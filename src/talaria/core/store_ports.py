"""The ports of the store: the session log, the answer ledger, and what operators do with the database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from talaria.core import access, ledger
from talaria.core.clock import Clock
from talaria.core.cluster import MemberFigures
from talaria.core.cluster_port import ClusterStore
from talaria.core.delivery import DeliveryResult, OutboxRow
from talaria.core.entries import Entry
from talaria.core.errors import StoreError
from talaria.core.files import SentPage
from talaria.core.history import TurnHistory
from talaria.core.ids import ChatKey, Fence, OwnerId, SessionId, SpecId, TurnId
from talaria.core.job_port import JobStore
from talaria.core.log_port import LogStore
from talaria.core.question_port import QuestionStore
from talaria.core.recall_port import RecallStore
from talaria.core.responses import StoredResponse
from talaria.core.retention_port import RetentionStore
from talaria.core.sending import SendMessage, SentTurn
from talaria.core.sessions import Session
from talaria.core.specs import PinnedSpec
from talaria.core.spending import Overrun, Reserve, Spending, SpendingQuery
from talaria.core.tokens import AddToken, NamedToken, TokenHash
from talaria.core.trust import Taints
from talaria.core.turns import Turn


class SpendStore(Protocol):
    """The store's side of spending caps.

    `Store.commit` writes what a call cost in place of the reservation of its attempt. A reservation that no
    commit has settled belongs to a call that may have been sent, so it is spent: when its turn ends or begins
    again, when `Store.reclaim` finds its owner dead, and when its owner calls `Store.yield_turns`.
    """

    async def reserve(self, order: Reserve) -> Overrun | None:
        """Set the amount aside if every cap allows it, in one transaction.

        Returns the first cap that forbids it, and nothing is set aside then; None otherwise. Raises
        `StaleFence`, `NotFound`.
        """
        ...

    async def charge(self, order: ledger.SideCharge) -> None:
        """Record how a call beside turns ended, in place of its reservation. Raises `NotFound` if the turn is
        gone."""
        ...

    async def spending(self, whose: SpendingQuery) -> Spending: ...


class Store(SpendStore, LogStore, QuestionStore, Protocol):
    """The session log and the answer ledger.

    Every writing method is one transaction: it is done whole and returns, or it raises and nothing was done.
    A write that was submitted is finished even if its caller is cancelled; the cancellation is delivered when
    the write is done (`core.tasks.finish` relies on it). Methods marked *durable* survive a power cut once
    they return; the others survive the death of the process. Reads see all earlier commits. A read of
    something that does not exist returns None.
    """

    @property
    def outbox(self) -> Outbox: ...

    @property
    def jobs(self) -> JobStore: ...

    @property
    def recall(self) -> RecallStore: ...

    @property
    def taints(self) -> Taints: ...

    # -- writing
    async def accept(self, order: ledger.Accept) -> ledger.Accepted:
        """Write the message's turn and bind it to a session; see `Accept`. Durable."""
        ...

    async def begin(self, order: ledger.Begin) -> ledger.Began:
        """Take the session's lease and set the turn running; see `Begin`."""
        ...

    async def commit(self, order: ledger.Commit) -> ledger.Committed:
        """Append entries and move the turn's steps; see `Commit`. Durable when it ends a turn or asks a
        person."""
        ...

    async def send(self, order: SendMessage) -> SentTurn:
        """Write a message to a chat outside of its turns; see `SendMessage`. Durable."""
        ...

    async def announce(self, session_id: SessionId) -> bool:
        """Append the sent messages that wait for this session to its log. Return False, having changed
        nothing, while a turn of the session runs or waits for a person."""
        ...

    async def settle(self, turn_id: TurnId, end: ledger.TurnEnd) -> Turn:
        """End a turn that never began, and return it: a turn that was stopped in the queue, or a command that
        appends nothing. Durable.

        Raises `NotFound`, and `IllegalMove` for a turn that began, a `waiting` one included: such a turn is
        ended by `commit`, under its fence.
        """
        ...

    async def hold(self, session_id: SessionId, owner: OwnerId, lease_seconds: float) -> Fence:
        """Take the session's lease outside a turn, and return its fence.

        Raises `LeaseHeld` while any owner has it or a turn of the session waits for a person, `NotFound`.
        """
        ...

    async def renew(
        self, owner: OwnerId, renewals: Sequence[ledger.Renewal], lease_seconds: float
    ) -> frozenset[SessionId]:
        """Extend these leases, and return the sessions whose lease was lost."""
        ...

    async def end_session(self, session_id: SessionId, fence: Fence) -> ledger.Ended:
        """Give the lease back, and end the session unless it ended before or one of its turns is unsettled.

        Raises `StaleFence`, `NotFound`.
        """
        ...

    async def retitle(self, session_id: SessionId, old: str, new: str) -> bool:
        """Give the session a better title than `old`, and return whether it still had that one."""
        ...

    async def delete_session(self, session_id: SessionId, keys_since: float) -> Session:
        """Delete the session and return it as it was. Durable.

        From then on no reader finds the session, its log or its turns. Their rows are deleted by
        `RetentionStore.purge_deleted`, and `RetentionStore.removals` lists its files. What was spent stays
        counted. A message whose key was accepted since `keys_since` is still a duplicate.

        Raises `NotFound`; `LeaseHeld`, or `SessionOwes` while a turn is unsettled or a reply unsent.
        """
        ...

    async def reclaim(self, owner: OwnerId) -> Sequence[Turn]:
        """Expire the leases of every other owner, and their claims of slots without a turn, and return the
        unsettled turns, `waiting` ones included, oldest first.

        Only the holder of the home's lock may call it: it knows that no other process is alive.
        """
        ...

    async def bury(self, dead: OwnerId) -> Sequence[Turn]:
        """Expire the leases of an owner whose process is known to be dead, and its claims of slots without a
        turn. Return the unsettled turns of the sessions that it had last, oldest first. Durable."""
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
        """Give back all leases of an owner that shuts down in good order. Durable.

        Another process resumes its running turns, and this attempt does not count as a crash.
        """
        ...

    async def forgive(self, turn_id: TurnId) -> None:
        """Count none of the turn's attempts so far as a crash. Raises `NotFound`."""
        ...

    async def mark_answered(self, turn_ids: Sequence[TurnId]) -> None:
        """Note that clients have been sent the whole answers of these turns. Unknown ids are no error."""
        ...

    async def show(self, turn_id: TurnId, platform_id: str) -> None:
        """Note the platform's message that shows the turn. If the reply was not sent yet, it will edit that
        message. Raises `NotFound`."""
        ...

    async def set_cursor(self, name: str, value: str) -> None:
        """Note how far a channel has read its platform's queue: everything before is accepted. Durable."""
        ...

    async def move_chat(self, old: ChatKey, new: ChatKey) -> bool:
        """Move a chat's sessions, turns and unsent replies to the key that its platform gave it. Durable.

        Returns False, having changed nothing, when `old` is not known or `new` is in use already.
        """
        ...

    async def end_unused(self, before: float) -> Sequence[SessionId]:
        """End lasting sessions that were not used since `before`, and return their ids: at most a hundred.

        A session with a lease or with an unsettled turn is left alone, and so are those of jobs.
        """
        ...

    async def prune_ephemeral(self, older_than: float) -> int:
        """Delete ephemeral sessions that were not used since `older_than`, with all rows; return how many.

        A session with an unsettled turn is left alone.
        """
        ...

    # -- reading
    async def session(self, session_id: SessionId) -> Session | None: ...

    async def current_session(self, chat_key: ChatKey) -> Session | None: ...

    async def sessions(self, page: ledger.Page, within: str = "") -> ledger.SessionPage:
        """Return lasting sessions, the last used first, but for those of jobs. With `within`, only those of
        chats whose keys begin with it, chats of jobs too. Raises `BadRequest` for an invalid page."""
        ...

    async def sent_files(self, session_id: SessionId, page: ledger.Page) -> SentPage:
        """Return the files that turns of the session sent, oldest first. The limit of a page counts turns.
        Raises `BadRequest` for an invalid page."""
        ...

    async def spec(self, spec_id: SpecId) -> PinnedSpec | None: ...

    async def turn_record(self, turn_id: TurnId) -> ledger.TurnRecord | None: ...

    async def summary(self, session_id: SessionId) -> ledger.ChatSummary | None: ...

    async def recent_of_session(self, session_id: SessionId, limit: int) -> Sequence[Turn]:
        """Return the last turns of a session, newest first."""
        ...

    async def recent_requests(self, since: float, limit: int) -> Sequence[ledger.RecentRequest]:
        """Return the turns accepted since then that have a digest and no key, newest first. Looks at the last
        `limit` turns only."""
        ...

    async def unannounced(self) -> Sequence[SessionId]:
        """Return sessions for which sent messages wait, up to 100."""
        ...

    async def cursor(self, name: str) -> str | None: ...

    async def stats(self) -> ledger.StoreStats: ...

    async def close(self) -> None:
        """Finish what was submitted, then close. Later calls raise `StoreError`."""
        ...


class Outbox(Protocol):
    """Replies to send. The store writes a row in the transaction that ends its turn. The rows of one address
    are sent in order."""

    async def due(self, channel: str, limit: int, now: float | None = None) -> Sequence[OutboxRow]:
        """Return the first unsent row of each address of the channel, if its time has come, oldest first.

        A row that is `SENDING` is returned again once the deadline of its attempt is past. `now` is the
        caller's time, by default the store's.
        """
        ...

    async def next_due(self, channel: str, after: float) -> float | None:
        """Return the earliest time later than `after` at which an unsent row of the channel is due."""
        ...

    async def split(self, row_id: int, bodies: Sequence[str], file: str | None = None) -> None:
        """Replace the text of a row by the first body, and put a row for each other body behind it. The last
        row gets `file`.

        Raises `NotFound`, and `IllegalMove` for a row that was tried already.
        """
        ...

    async def claim(self, row: OutboxRow, until: float) -> OutboxRow | None:
        """Mark the row `SENDING` before the platform is called, and return it. Durable.

        `until` is the attempt's deadline, after which the row is due again. Returns None when another caller
        claimed or settled it meanwhile.
        """
        ...

    async def mark(self, order: DeliveryResult) -> bool:
        """Record the outcome of an attempt. Durable.

        Returns False, having changed nothing, for an attempt before the last. Raises `IllegalMove`,
        `NotFound`.
        """
        ...

    async def expire(self, written_before: float, error: str) -> int:
        """Give up the unsent rows written before `written_before`, and return how many."""
        ...


class Responses(Protocol):
    """Stored responses. `Store.accept` writes them."""

    async def find(self, turn_id: TurnId) -> StoredResponse | None: ...

    async def input_entries(self, stored: StoredResponse) -> Sequence[Entry]:
        """Return the entries of its input."""
        ...

    async def delete(self, turn_id: TurnId) -> bool:
        """Delete a response. Durable. Return False if there was none.

        Its chain goes with the last response of it, log and turns included; until then its entries stay.
        """
        ...

    async def prune(self, before: float) -> int:
        """Delete responses that were made before `before`; return how many (up to 100)."""
        ...


class Histories(Protocol):
    """Turns with everything that the ledger knows about them, for people who ask what happened."""

    async def find(self, name: str) -> Sequence[TurnId]:
        """Return the turns that go by this name, newest first, at most ten.

        A name is a turn's id, the platform's id of its message or of its reply, or `reply:N` for a row of the
        outbox.
        """
        ...

    async def recent(self, limit: int, within: str = "") -> Sequence[Turn]:
        """Return the last turns, newest first, of chats whose keys begin with `within`."""
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


class ThreadStore(Protocol):
    """Orders for threads beside the event loop. They block, and go on while the loop is held.

    Each raises `StoreError`, also if the database has not answered after `timeout` seconds. The order may
    still be carried out then.
    """

    def renew(
        self, owner: OwnerId, renewals: Sequence[ledger.Renewal], lease_seconds: float, timeout: float
    ) -> frozenset[SessionId]:
        """Extend these leases, and return the sessions whose lease was lost."""
        ...

    def renew_member(
        self, owner: OwnerId, figures: MemberFigures, lease_seconds: float, timeout: float
    ) -> bool:
        """See `ClusterStore.renew_member`."""
        ...

    def blame(self, owner: OwnerId, turn_id: TurnId, timeout: float) -> None:
        """Record before the owner's process leaves that this turn held its event loop. Durable.

        The attempt counts as a crash of this turn. The owner's other running turns are forgiven theirs.
        """
        ...


class Tokens(Protocol):
    """Tokens with a name and a role, for callers of the HTTP API."""

    async def find(self, token: TokenHash) -> NamedToken | None:
        """Read one row by key: what any process committed last. Expired tokens are found too."""
        ...

    async def listing(self) -> tuple[NamedToken, ...]:
        """Return all tokens, oldest first."""
        ...

    async def add(self, order: AddToken) -> NamedToken | None:
        """Add a token. Durable. Return None, having changed nothing, if an unexpired one has the name."""
        ...

    async def revoke(self, name: str) -> NamedToken | None:
        """End a token. Durable. Return None if there was none."""
        ...

    async def note_use(self, name: str) -> None:
        """Write down that the token was used now."""
        ...


class StoreEngine(Store, Protocol):
    """A store as the program opens it: all its ports, and the care of its database."""

    @property
    def from_thread(self) -> ThreadStore: ...

    @property
    def cluster(self) -> ClusterStore: ...

    @property
    def pairings(self) -> Pairings: ...

    @property
    def tokens(self) -> Tokens: ...

    @property
    def retention(self) -> RetentionStore: ...

    @property
    def histories(self) -> Histories: ...

    @property
    def responses(self) -> Responses: ...

    @property
    def clock(self) -> Clock:
        """The clock that rows are dated by. On PostgreSQL `now` is the database's time, the same for all."""
        ...

    @property
    def integrity(self) -> ledger.Integrity: ...

    @property
    def trouble(self) -> StoreError | None:
        """Why the last write failed, or that a write hangs or was slow; None once a write has succeeded in
        good time. `probe` tries whether one does. Cheap."""
        ...

    async def probe(self) -> None:
        """Write to the disk, changing nothing. Raises `StoreError` while that fails."""
        ...

    def abandon(self) -> None:
        """Wait no longer for a database that does not come back: a write whose outcome is not known raises
        `StoreError`. For the end of a process; the next start reads what there is."""
        ...

    async def look(self) -> None:
        """Look whether the database's files are still at their paths; `trouble` tells it if they are not."""
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
