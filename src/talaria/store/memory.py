"""`MemoryStore`: the store's port on plain dictionaries, for tests and for gateways that may forget.

A method never awaits between its first look and its last change, so it is one transaction. It checks all
that it was asked before it changes anything, so a refusal changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from talaria.core.clock import Clock
from talaria.core.entries import Entry, EntryBody, Revision, SpecSet
from talaria.core.errors import LeaseHeld
from talaria.core.ids import ChatKey, Fence, OwnerId, SessionId, SpecId, TurnId
from talaria.core.ledger import (
    Accept,
    Accepted,
    Began,
    Begin,
    Binding,
    ChatSummary,
    Commit,
    Committed,
    EntryPage,
    Fresh,
    OutboxRow,
    OutboxState,
    Page,
    Renewal,
    SessionPage,
    StepWrite,
    StoreStats,
    TurnEnd,
    TurnStory,
    UsageWrite,
)
from talaria.core.messages import TokenUsage
from talaria.core.sessions import Session
from talaria.core.specs import PinnedSpec
from talaria.core.turns import Step, StepState, Turn, TurnState, check_turn_move
from talaria.store import rules
from talaria.store.paging import check_limit, parse_entry_cursor, parse_session_cursor, session_cursor

_UNSENT = (OutboxState.PENDING, OutboxState.SENDING)


class _Lease(msgspec.Struct, frozen=True):
    """`expires_at` is 0 for a lease given back; the fence stays, so that fences only grow."""

    owner: OwnerId
    fence: Fence
    expires_at: float


class _Key(msgspec.Struct, frozen=True):
    turn_id: TurnId
    digest: str
    accepted_at: float


class MemoryStore:
    """See `core.ports.Store` for what each method promises; durable means until `close`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_closed = False
        self._chats: dict[ChatKey, SessionId] = {}
        self._sessions: dict[SessionId, Session] = {}
        self._logs: dict[SessionId, list[Entry]] = {}
        self._leases: dict[SessionId, _Lease] = {}
        self._specs: dict[SpecId, PinnedSpec] = {}
        self._turns: dict[TurnId, Turn] = {}
        self._keys: dict[tuple[str, str], _Key] = {}
        self._steps: dict[TurnId, dict[int, Step]] = {}
        self._usage: dict[TurnId, list[UsageWrite]] = {}
        self._outbox: dict[int, OutboxRow] = {}
        self._last_outbox_id = 0

    # -- writing

    async def accept(self, order: Accept) -> Accepted:
        now = self._now()
        inbound = order.inbound
        place = None if inbound.key is None else (order.scope, inbound.key)
        known = None if place is None else self._keys.get(place)
        if known is not None and now - known.accepted_at < order.key_ttl:
            if known.digest != order.digest:
                raise rules.key_conflict(inbound.key or "")
            return Accepted(self._turns[known.turn_id], is_duplicate=True, is_new_session=False)
        if order.turn_id in self._turns:
            raise rules.already_exists(f"Turn {order.turn_id}")
        ended = self._expire(order, now)
        session_id = self._bound_session(order, now)
        is_new_session = session_id is None
        if session_id is None:
            session_id = self._make_session(inbound.chat_key, order.fresh, now)
        turn = Turn(
            order.turn_id, inbound.chat_key, session_id, TurnState.ACCEPTED, inbound, now, order.command
        )
        self._turns[turn.id] = turn
        if place is not None:
            self._keys[place] = _Key(turn.id, order.digest, now)
        began = None
        if order.start is not None:
            with suppress(LeaseHeld):
                began = await self.begin(rules.begin_order(turn.id, order.start))
        return Accepted(
            self._turns[turn.id],
            is_duplicate=False,
            is_new_session=is_new_session,
            began=began,
            ended=ended,
        )

    async def begin(self, order: Begin) -> Began:
        now = self._now()
        turn = self._turn(order.turn_id)
        check_turn_move(turn.id, turn.state, TurnState.RUNNING)
        session = self._sessions[turn.session_id]
        lease = self._leases.get(session.id)
        if lease is not None and lease.owner != order.owner and lease.expires_at > now:
            raise rules.lease_held(session.id)
        fence = self._take_lease(session.id, order.owner, now + order.lease_seconds)
        start = rules.start_entries(session, order, turn.attempts, now)
        self._append(session, [entry.body for entry in start.entries], turn.id, now)
        started_at = now if turn.started_at is None else turn.started_at
        self._turns[turn.id] = msgspec.structs.replace(
            turn, state=TurnState.RUNNING, attempts=turn.attempts + 1, started_at=started_at
        )
        return Began(self._sessions[session.id], fence, start.before, start.user, turn.attempts + 1)

    async def commit(self, order: Commit) -> Committed:
        now = self._now()
        rules.check_commit_shape(order)
        session = self._fenced(order.session_id, order.fence)
        turn = None
        if order.turn_id is not None:
            turn = self._turn(order.turn_id)
            if turn.session_id != session.id:
                raise rules.no_turn(turn.id)
            rules.check_turn_commit(turn.id, turn.state, order.end)
        self._check_specs(order)
        steps = None if turn is None else self._moved_steps(turn.id, order.steps, now)

        for pinned in order.specs:
            self._specs.setdefault(pinned.id, pinned)
        entries = self._append(session, order.entries, order.turn_id, now)
        if turn is not None:
            if steps:
                self._steps[turn.id] = steps
            self._usage.setdefault(turn.id, []).extend(order.usage)
            for write in order.outbox:
                self._last_outbox_id += 1
                row = OutboxRow(self._last_outbox_id, turn.id, write, OutboxState.PENDING, 0, now)
                self._outbox[row.id] = row
            if order.end is not None:
                self._turns[turn.id] = rules.ended_turn(turn, order.end, now)
        if order.end is not None or order.release:
            self._give_lease_back(session.id)
        return Committed(self._sessions[session.id].revision, entries)

    async def settle(self, turn_id: TurnId, end: TurnEnd) -> Turn:
        now = self._now()
        turn = self._turn(turn_id)
        rules.check_settle(turn_id, turn.state, end)
        self._turns[turn_id] = rules.ended_turn(turn, end, now)
        return self._turns[turn_id]

    async def hold(self, session_id: SessionId, owner: OwnerId, lease_seconds: float) -> Fence:
        now = self._now()
        if session_id not in self._sessions:
            raise rules.no_session(session_id)
        lease = self._leases.get(session_id)
        if lease is not None and lease.expires_at > now:
            raise rules.lease_held(session_id)
        return self._take_lease(session_id, owner, now + lease_seconds)

    async def renew(
        self, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float
    ) -> frozenset[SessionId]:
        until = self._now() + lease_seconds
        lost = set()
        for renewal in renewals:
            lease = self._leases.get(renewal.session_id)
            if lease and lease.owner == owner and lease.fence == renewal.fence and lease.expires_at:
                self._leases[renewal.session_id] = _Lease(owner, lease.fence, until)
            else:
                lost.add(renewal.session_id)
        return frozenset(lost)

    async def end_session(self, session_id: SessionId, fence: Fence) -> Session:
        now = self._now()
        session = self._fenced(session_id, fence)
        self._give_lease_back(session_id)
        if session.ended_at is None:
            self._sessions[session_id] = msgspec.structs.replace(session, ended_at=now)
        return self._sessions[session_id]

    async def reclaim(self, owner: OwnerId) -> Sequence[Turn]:
        self._now()
        for session_id, lease in self._leases.items():
            if lease.owner != owner:
                self._give_lease_back(session_id)
        return tuple(turn for turn in self._turns.values() if turn.state in rules.UNSETTLED)

    async def outbox_due(self, channel: str, limit: int) -> Sequence[OutboxRow]:
        now = self._now()
        due = [
            row
            for row in self._outbox.values()
            if row.write.channel == channel and row.state in _UNSENT and row.due_at <= now
        ]
        return tuple(due[:limit])

    async def outbox_mark(
        self, row_id: int, state: OutboxState, *, due_at: float = 0.0, platform_id: str | None = None
    ) -> None:
        self._now()
        row = self._outbox.get(row_id)
        if row is None:
            raise rules.no_outbox_row(row_id)
        self._outbox[row_id] = msgspec.structs.replace(
            row,
            state=state,
            attempts=row.attempts + (state is OutboxState.SENDING),
            due_at=due_at,
            platform_id=row.platform_id if platform_id is None else platform_id,
        )

    async def end_unused(self, before: float) -> Sequence[SessionId]:
        now = self._now()
        unused = [
            session
            for session in self._sessions.values()
            if not session.ephemeral and session.updated_at < before and self._may_end(session, now)
        ]
        unused.sort(key=lambda session: session.updated_at)
        for session in unused[: rules.END_BATCH]:
            self._sessions[session.id] = msgspec.structs.replace(session, ended_at=now)
        return [session.id for session in unused[: rules.END_BATCH]]

    def _may_end(self, session: Session, now: float) -> bool:
        lease = self._leases.get(session.id)
        return (
            session.ended_at is None
            and (lease is None or lease.expires_at <= now)
            and not any(
                turn.session_id == session.id and turn.state in rules.UNSETTLED
                for turn in self._turns.values()
            )
        )

    async def prune_ephemeral(self, older_than: float) -> int:
        self._now()
        owing = {turn.session_id for turn in self._turns.values() if turn.state in rules.UNSETTLED}
        doomed = {
            session.id
            for session in self._sessions.values()
            if session.ephemeral and session.updated_at < older_than and session.id not in owing
        }
        turns = {turn.id for turn in self._turns.values() if turn.session_id in doomed}
        for session_id in doomed:
            del self._sessions[session_id], self._logs[session_id]
            self._leases.pop(session_id, None)
        for turn_id in turns:
            del self._turns[turn_id]
            self._steps.pop(turn_id, None)
            self._usage.pop(turn_id, None)
        self._keys = {place: key for place, key in self._keys.items() if key.turn_id not in turns}
        self._outbox = {row.id: row for row in self._outbox.values() if row.turn_id not in turns}
        return len(doomed)

    # -- reading

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
        if turn is None:
            return None
        return TurnStory(turn, tuple(step for _, step in sorted(self._steps.get(turn_id, {}).items())))

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
        turns = [turn.id for turn in self._turns.values() if turn.session_id == session_id]
        calls = [call.tokens for turn_id in turns for call in self._usage.get(turn_id, [])]
        return ChatSummary(
            current,
            (current, *others[: rules.SUMMARY_SESSIONS - 1]),
            len(turns),
            sum(calls, TokenUsage()),
            len(calls),
        )

    async def stats(self) -> StoreStats:
        self._now()
        turns = {str(state): 0 for state in TurnState}
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
            outbox=sum(row.state in _UNSENT for row in self._outbox.values()),
        )

    async def close(self) -> None:
        self._is_closed = True

    # -- within one order

    def _now(self) -> float:
        """Every method's first call: a closed store does nothing."""
        if self._is_closed:
            raise rules.closed()
        return self._clock.now()

    def _turn(self, turn_id: TurnId) -> Turn:
        turn = self._turns.get(turn_id)
        if turn is None:
            raise rules.no_turn(turn_id)
        return turn

    def _expire(self, order: Accept, now: float) -> SessionId | None:
        current = self._sessions.get(self._chats.get(order.inbound.chat_key, SessionId("")))
        if order.binding is not Binding.CURRENT or current is None:
            return None
        if current.updated_at >= order.expire_before or not self._may_end(current, now):
            return None
        self._sessions[current.id] = msgspec.structs.replace(current, ended_at=now)
        return current.id

    def _bound_session(self, order: Accept, now: float) -> SessionId | None:
        """The existing session that the message belongs to; None when a fresh one is to be made."""
        chat_key = order.inbound.chat_key
        match order.binding:
            case Binding.NEW:
                return None
            case Binding.CURRENT:
                current = self._chats.get(chat_key)
                return current if current and self._sessions[current].ended_at is None else None
            case Binding.RESUME:
                session = None if order.resume is None else self._sessions.get(order.resume)
                if session is None or session.chat_key != chat_key or session.ephemeral:
                    raise rules.no_session_here(order.resume)
                self._sessions[session.id] = msgspec.structs.replace(session, ended_at=None, updated_at=now)
                self._chats[chat_key] = session.id
                return session.id

    def _make_session(self, chat_key: ChatKey, fresh: Fresh, now: float) -> SessionId:
        if fresh.session_id in self._sessions:
            raise rules.already_exists(f"Session {fresh.session_id}")
        session = Session(
            fresh.session_id, chat_key, now, now, Revision(0, 0), None, ephemeral=fresh.ephemeral
        )
        bodies: list[EntryBody] = list(fresh.context)
        if fresh.spec is not None:
            self._specs.setdefault(fresh.spec.id, fresh.spec)
            bodies.insert(0, SpecSet(fresh.spec.id))
        self._sessions[session.id] = session
        self._logs[session.id] = []
        self._append(session, bodies, None, now)
        if not fresh.ephemeral:
            self._chats[chat_key] = session.id
        return session.id

    def _append(
        self, session: Session, bodies: Sequence[EntryBody], turn_id: TurnId | None, now: float
    ) -> tuple[Entry, ...]:
        head, entries = rules.number(session.id, session.revision, bodies, turn_id, now)
        if entries:
            self._logs[session.id].extend(entries)
            spec_id, title = rules.latest_marks(bodies, session.spec_id, session.title)
            self._sessions[session.id] = msgspec.structs.replace(
                session, revision=head, updated_at=now, spec_id=spec_id, title=title
            )
        return entries

    def _check_specs(self, order: Commit) -> None:
        brought = {pinned.id for pinned in order.specs}
        for body in order.entries:
            if isinstance(body, SpecSet) and body.spec_id not in brought and body.spec_id not in self._specs:
                raise rules.no_spec(body.spec_id)

    def _moved_steps(self, turn_id: TurnId, writes: Iterable[StepWrite], now: float) -> dict[int, Step]:
        """The turn's steps after these writes, on a copy."""
        steps = dict(self._steps.get(turn_id, {}))
        for write in writes:
            old = steps.get(write.n)
            rules.check_step(turn_id, write, None if old is None else old.state)
            ended_at = now if write.state is StepState.ENDED else None
            if old is None:
                steps[write.n] = Step(
                    turn_id,
                    write.n,
                    write.kind,
                    write.name,
                    write.state,
                    write.call_id,
                    write.result,
                    None,
                    ended_at,
                )
            elif write.state is StepState.STARTED:
                steps[write.n] = msgspec.structs.replace(old, state=write.state, started_at=now)
            else:
                steps[write.n] = msgspec.structs.replace(
                    old, state=write.state, ended_at=ended_at, result=write.result
                )
        return steps

    def _fenced(self, session_id: SessionId, fence: Fence) -> Session:
        """The session, if `fence` is that of its lease now."""
        session = self._sessions.get(session_id)
        if session is None:
            raise rules.no_session(session_id)
        lease = self._leases.get(session_id)
        if lease is None or lease.fence != fence or not lease.expires_at:
            raise rules.stale_fence(session_id)
        return session

    def _take_lease(self, session_id: SessionId, owner: OwnerId, until: float) -> Fence:
        last = self._leases.get(session_id)
        fence = Fence(1 if last is None else last.fence + 1)
        self._leases[session_id] = _Lease(owner, fence, until)
        return fence

    def _give_lease_back(self, session_id: SessionId) -> None:
        self._leases[session_id] = msgspec.structs.replace(self._leases[session_id], expires_at=0.0)


def _newest_first(sessions: Iterable[Session]) -> list[Session]:
    return sorted(sessions, key=lambda session: (session.updated_at, session.id), reverse=True)
