"""`MemoryStore`: the store's port on plain dictionaries, for tests and for gateways that may forget.

A method never awaits between its first look and its last change, so it is one transaction. It checks all
that it was asked before it changes anything, so a refusal changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

import msgspec

from talaria.core.clock import Clock
from talaria.core.entries import Entry, EntryBody, Revision, SpecSet
from talaria.core.errors import LeaseHeld
from talaria.core.ids import ChatKey, Fence, OwnerId, SessionId, TurnId
from talaria.core.ledger import (
    Accept,
    Accepted,
    Began,
    Begin,
    Binding,
    Commit,
    Committed,
    Ended,
    Fresh,
    Renewal,
    StepWrite,
    TurnEnd,
)
from talaria.core.sessions import Session
from talaria.core.spending import Overrun, Reserve
from talaria.core.turns import Step, StepState, Turn, TurnState, check_turn_move
from talaria.store import rules
from talaria.store.memory_reads import Key, Lease, MemoryReads
from talaria.store.memory_retention import MemoryRetention


class MemoryStore(MemoryReads):
    """See `core.ports.Store` for what each method promises; durable means until `close`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.retention = MemoryRetention(self)

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
        if order.steers is not None and self._is_host(order.steers, session_id):
            turn = msgspec.structs.replace(turn, merged_into=order.steers)
        self._turns[turn.id] = turn
        if place is not None:
            self._keys[place] = Key(turn.id, order.digest, now)
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
        forgiven = rules.forgiven(order, turn.attempts, turn.forgiven)
        attempts = turn.attempts + 1
        self._turns[turn.id] = msgspec.structs.replace(
            turn, state=TurnState.RUNNING, attempts=attempts, started_at=started_at, forgiven=forgiven
        )
        crashes = turn.attempts - forgiven
        return Began(self._sessions[session.id], fence, start.before, start.user, attempts, crashes)

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
        self._check_steers(order)

        for pinned in order.specs:
            self._specs.setdefault(pinned.id, pinned)
        entries = self._append(session, order.entries, order.turn_id, now)
        if turn is not None:
            if steps:
                self._steps[turn.id] = steps
            self._spending.settle(turn.id, order, now)
            for steer in order.steers:
                self._turns[steer] = rules.begun_turn(self._turns[steer], now)
            if order.end is not None:
                self._end_turn(turn, order.end, now)
        if order.end is not None or order.release:
            self._give_lease_back(session.id)
        return Committed(self._sessions[session.id].revision, entries)

    async def settle(self, turn_id: TurnId, end: TurnEnd) -> Turn:
        now = self._now()
        turn = self._turn(turn_id)
        rules.check_settle(turn_id, turn.state, end)
        self._end_turn(turn, end, now)
        return self._turns[turn_id]

    async def reserve(self, order: Reserve) -> Overrun | None:
        self._now()
        session = self._fenced(order.session_id, order.fence)
        return self._spending.reserve(self._leases[session.id].owner, order)

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
                self._leases[renewal.session_id] = Lease(owner, lease.fence, until)
            else:
                lost.add(renewal.session_id)
        return frozenset(lost)

    async def end_session(self, session_id: SessionId, fence: Fence) -> Ended:
        now = self._now()
        session = self._fenced(session_id, fence)
        self._give_lease_back(session_id)
        is_news = self._may_end(session, now)
        if is_news:
            self._sessions[session_id] = msgspec.structs.replace(session, ended_at=now)
        return Ended(self._sessions[session_id], is_news)

    async def reclaim(self, owner: OwnerId) -> Sequence[Turn]:
        self._now()
        self._spending.release_others(owner)
        for session_id, lease in self._leases.items():
            if lease.owner != owner:
                self._give_lease_back(session_id)
        self.outbox.make_due()
        return tuple(turn for turn in self._turns.values() if turn.state in rules.UNSETTLED)

    async def yield_turns(self, owner: OwnerId) -> None:
        self._now()
        self._spending.release_own(owner)
        for session_id, lease in self._leases.items():
            if lease.owner == owner and lease.expires_at:
                self._give_lease_back(session_id)
                self._forgive(session_id)

    async def forgive(self, turn_id: TurnId) -> None:
        self._now()
        turn = self._turn(turn_id)
        self._turns[turn_id] = msgspec.structs.replace(turn, forgiven=turn.attempts)

    async def show(self, turn_id: TurnId, platform_id: str) -> None:
        now = self._now()
        turn = msgspec.structs.replace(self._turn(turn_id), shown_id=platform_id)
        self._turns[turn_id] = turn
        if turn.state.is_final and not self.outbox.make_edit(turn_id, platform_id):
            self.outbox.write(rules.late_replies(turn, now))

    async def set_cursor(self, name: str, value: str) -> None:
        self._now()
        self._cursors[name] = value

    async def move_chat(self, old: ChatKey, new: ChatKey) -> bool:
        self._now()
        if new in self._chats or old not in self._chats:
            return False
        self._chats[new] = self._chats.pop(old)
        for session in list(self._sessions.values()):
            if session.chat_key == old:
                self._sessions[session.id] = msgspec.structs.replace(session, chat_key=new)
        for turn in list(self._turns.values()):
            if turn.chat_key == old:
                self._turns[turn.id] = msgspec.structs.replace(turn, chat_key=new)
        self.outbox.move_chat(old, new)
        return True

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
        return (
            session.ended_at is None
            and not self._is_leased(session.id, now)
            and not any(
                turn.session_id == session.id and turn.state in rules.UNSETTLED
                for turn in self._turns.values()
            )
        )

    def _is_leased(self, session_id: SessionId, now: float) -> bool:
        lease = self._leases.get(session_id)
        return lease is not None and lease.expires_at > now

    async def prune_ephemeral(self, older_than: float) -> int:
        return self.retention.prune_ephemeral(older_than)

    def _free_keys(self, turns: Collection[TurnId]) -> None:
        self._keys = {place: key for place, key in self._keys.items() if key.turn_id not in turns}

    # -- within one order

    def _turn(self, turn_id: TurnId) -> Turn:
        turn = self._turns.get(turn_id)
        if turn is None:
            raise rules.no_turn(turn_id)
        return turn

    def _is_host(self, turn_id: TurnId, session_id: SessionId) -> bool:
        host = self._turns.get(turn_id)
        return (
            host is not None
            and host.session_id == session_id
            and host.state is TurnState.RUNNING
            and host.merged_into is None
        )

    def _steers_of(self, turn_id: TurnId) -> list[Turn]:
        return [turn for turn in self._turns.values() if turn.merged_into == turn_id]

    def _check_steers(self, order: Commit) -> None:
        if order.turn_id is None:
            return
        waiting = {turn.id for turn in self._steers_of(order.turn_id) if turn.state is TurnState.ACCEPTED}
        for steer in order.steers:
            if steer not in waiting:
                raise rules.no_steer(steer, order.turn_id)
        if order.end is not None and order.end.state is TurnState.DONE and waiting.difference(order.steers):
            raise rules.steer_waiting(order.turn_id)

    def _end_turn(self, turn: Turn, end: TurnEnd, now: float) -> None:
        """With those that were taken in; those that were not are turns of their own."""
        self._turns[turn.id] = rules.ended_turn(turn, end, now)
        for steer in self._steers_of(turn.id):
            is_taken = steer.state is TurnState.RUNNING
            self._turns[steer.id] = (
                rules.ended_turn(steer, end, now)
                if is_taken
                else msgspec.structs.replace(steer, merged_into=None)
            )
        self.outbox.write(rules.replies(turn, end, now))

    def _forgive(self, session_id: SessionId) -> None:
        for turn in list(self._turns.values()):
            if turn.session_id == session_id and turn.state is TurnState.RUNNING and turn.merged_into is None:
                forgiven = min(turn.attempts, turn.forgiven + 1)
                self._turns[turn.id] = msgspec.structs.replace(turn, forgiven=forgiven)

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
        self._leases[session_id] = Lease(owner, fence, until)
        return fence

    def _give_lease_back(self, session_id: SessionId) -> None:
        self._leases[session_id] = msgspec.structs.replace(self._leases[session_id], expires_at=0.0)
