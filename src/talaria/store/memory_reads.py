"""What a `MemoryStore` holds, and its answers to questions; `memory.py` carries out the orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from talaria.core.clock import Clock
from talaria.core.entries import Entry
from talaria.core.ids import ChatKey, Fence, OwnerId, SessionId, SpecId, TurnId
from talaria.core.ledger import (
    ChatSummary,
    EntryPage,
    Page,
    SessionPage,
    StoreStats,
    TurnStory,
)
from talaria.core.sessions import Session
from talaria.core.specs import PinnedSpec
from talaria.core.spending import Spending, Whose
from talaria.core.turns import Step, Turn, TurnState
from talaria.store import rules
from talaria.store.memory_outbox import MemoryOutbox
from talaria.store.memory_spending import MemorySpending
from talaria.store.paging import check_limit, parse_entry_cursor, parse_session_cursor, session_cursor


class Lease(msgspec.Struct, frozen=True):
    """`expires_at` is 0 for a lease given back; the fence stays, so that fences only grow."""

    owner: OwnerId
    fence: Fence
    expires_at: float


class Key(msgspec.Struct, frozen=True):
    turn_id: TurnId
    digest: str
    accepted_at: float


class MemoryReads:
    """The reading half of `core.ports.Store`. Every method's first call is `_now`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_closed = False
        self._chats: dict[ChatKey, SessionId] = {}
        self._sessions: dict[SessionId, Session] = {}
        self._logs: dict[SessionId, list[Entry]] = {}
        self._leases: dict[SessionId, Lease] = {}
        self._specs: dict[SpecId, PinnedSpec] = {}
        self._turns: dict[TurnId, Turn] = {}
        self._keys: dict[tuple[str, str], Key] = {}
        self._steps: dict[TurnId, dict[int, Step]] = {}
        self._spending = MemorySpending()
        self._cursors: dict[str, str] = {}
        self._forgotten: set[TurnId] = set()
        self.outbox = MemoryOutbox(self._now)

    async def session(self, session_id: SessionId) -> Session | None:
        self._now()
        return self._sessions.get(session_id)

    async def current_session(self, chat_key: ChatKey) -> Session | None:
        self._now()
        session_id = self._chats.get(chat_key)
        return None if session_id is None else self._sessions[session_id]

    async def sessions(self, page: Page) -> SessionPage:
        self._now()
        limit = check_limit(page)
        found = _newest_first(session for session in self._sessions.values() if not session.ephemeral)
        if page.after is not None:
            last = parse_session_cursor(page.after)
            found = [session for session in found if (session.updated_at, session.id) < last]
        items = tuple(found[:limit])
        return SessionPage(items, session_cursor(items[-1]) if len(found) > limit else None)

    async def entries(self, session_id: SessionId, page: Page) -> EntryPage:
        self._now()
        limit = check_limit(page)
        found = self._logs.get(session_id, [])[parse_entry_cursor(page.after) :]
        return EntryPage(tuple(found[:limit]), str(found[limit - 1].seq) if len(found) > limit else None)

    async def log(self, session_id: SessionId, after_seq: int) -> Sequence[Entry]:
        self._now()
        return tuple(self._logs.get(session_id, [])[max(after_seq, 0) :])

    async def spec(self, spec_id: SpecId) -> PinnedSpec | None:
        self._now()
        return self._specs.get(spec_id)

    async def story(self, turn_id: TurnId) -> TurnStory | None:
        self._now()
        turn = self._turns.get(turn_id)
        if turn is None or turn_id in self._forgotten:
            return None
        steps = tuple(step for _, step in sorted(self._steps.get(turn_id, {}).items()))
        return TurnStory(turn, steps, self.outbox.of_turn(turn_id), self._spending.of_turn(turn_id))

    async def summary(self, session_id: SessionId) -> ChatSummary | None:
        self._now()
        current = self._sessions.get(session_id)
        if current is None:
            return None
        others = _newest_first(
            session
            for session in self._sessions.values()
            if session.chat_key == current.chat_key and not session.ephemeral and session.id != session_id
        )
        turns = sum(turn.session_id == session_id for turn in self._turns.values())
        return ChatSummary(current, (current, *others[: rules.SUMMARY_SESSIONS - 1]), turns)

    async def spending(self, whose: Whose) -> Spending:
        self._now()
        return self._spending.spending(whose)

    async def orphans(self, owner: OwnerId, accepted_before: float) -> Sequence[Turn]:
        now = self._now()

        def is_orphan(turn: Turn) -> bool:
            lease = self._leases.get(turn.session_id)
            if turn.state.is_final or (lease is not None and lease.expires_at > now):
                return False
            if turn.attempts:
                return lease is not None and lease.owner != owner
            return turn.accepted_at < accepted_before

        return tuple(filter(is_orphan, self._turns.values()))

    async def cursor(self, name: str) -> str | None:
        self._now()
        return self._cursors.get(name)

    async def stats(self) -> StoreStats:
        now = self._now()
        turns = {str(state): 0 for state in TurnState}
        owed = [turn.accepted_at for turn in self._turns.values() if turn.state in rules.UNSETTLED]
        owed += self.outbox.unsent_since()
        for turn in self._turns.values():
            turns[turn.state] += 1
        return StoreStats(
            engine="memory",
            schema=0,
            size_bytes=0,
            wal_bytes=0,
            sessions=sum(not session.ephemeral for session in self._sessions.values()),
            turns=turns,
            owed=sum(turns[state] for state in rules.UNSETTLED),
            outbox=len(self.outbox.unsent_since()),
            oldest_seconds=max(0.0, now - min(owed, default=now)),
        )

    async def close(self) -> None:
        self._is_closed = True

    def _now(self) -> float:
        """Every method's first call: a closed store does nothing."""
        if self._is_closed:
            raise rules.closed()
        return self._clock.now()


def _newest_first(sessions: Iterable[Session]) -> list[Session]:
    return sorted(sessions, key=lambda session: (session.updated_at, session.id), reverse=True)
