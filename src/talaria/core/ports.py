"""Every port on one page: what a layer needs from another, wired in `app`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from talaria.core.entries import Entry
from talaria.core.ids import ChatKey, Fence, OwnerId, SessionId, SpecId, TurnId
from talaria.core.ledger import (
    Accept,
    Accepted,
    Began,
    Begin,
    ChatSummary,
    Commit,
    Committed,
    EntryPage,
    OutboxRow,
    OutboxState,
    Page,
    Renewal,
    SessionPage,
    StoreStats,
    TurnEnd,
    TurnStory,
)
from talaria.core.messages import Message
from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.core.sessions import Session
from talaria.core.specs import PinnedSpec, Prefix
from talaria.core.tools import ToolSpec
from talaria.core.turns import Turn


class Store(Protocol):
    """The session log and the answer ledger.

    Every writing method is one transaction: done whole and returned, or raised and nothing done. A write
    that was taken is finished even if its caller is cancelled, and the cancellation is delivered when it is
    done, not before (`core.tasks.finish` relies on it). Methods marked *durable* survive a power
    cut once they return; the others survive the death of the process. Reads see all earlier commits.
    """

    # -- writing
    async def accept(self, order: Accept) -> Accepted:
        """Durable."""
        ...

    async def begin(self, order: Begin) -> Began: ...

    async def commit(self, order: Commit) -> Committed:
        """Durable when it ends a turn."""
        ...

    async def settle(self, turn_id: TurnId, end: TurnEnd) -> Turn:
        """End a turn that never began: stopped in the queue, or a command that appends nothing. Durable.

        Raises `IllegalMove` for a turn that began: it is ended by `commit`, under its fence.
        """
        ...

    async def hold(self, session_id: SessionId, owner: OwnerId, lease_seconds: float) -> Fence:
        """Take the session's lease outside a turn. Raises `LeaseHeld`, `NotFound`."""
        ...

    async def renew(
        self, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float
    ) -> frozenset[SessionId]:
        """Extend these leases; answers with the sessions whose lease was lost."""
        ...

    async def end_session(self, session_id: SessionId, fence: Fence) -> Session:
        """Mark the session ended and give its lease back; ended already: unchanged."""
        ...

    async def reclaim(self, owner: OwnerId) -> Sequence[Turn]:
        """Expire the leases of every other owner and return the unsettled turns, oldest first.

        Only the holder of the home's lock may call it: the other owners are dead by construction.
        """
        ...

    async def outbox_due(self, channel: str, limit: int) -> Sequence[OutboxRow]:
        """Unsent replies of a channel whose time has come, oldest first.

        Rows that are `SENDING` are among them, so that a crash in the middle of a send is found: whoever
        marks one `SENDING` gives it a `due_at` behind the deadline of the attempt.
        """
        ...

    async def outbox_mark(
        self, row_id: int, state: OutboxState, *, due_at: float = 0.0, platform_id: str | None = None
    ) -> None:
        """Durable: `SENDING` is marked before the platform hears a word, and counts an attempt."""
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

    async def story(self, turn_id: TurnId) -> TurnStory | None: ...

    async def summary(self, session_id: SessionId) -> ChatSummary | None: ...

    async def stats(self) -> StoreStats: ...

    async def close(self) -> None:
        """Finish what was taken, then close. Later calls raise `StoreError`."""
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

    `complete` streams deltas to `sink` and returns the whole; it raises `ModelError` and, on cancellation,
    closes its connection before it lets go.
    """

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
