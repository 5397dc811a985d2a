"""Forgetting, in memory: a part of `MemoryStore`, on whose tables it works."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from talaria.core.history import Forgotten
from talaria.core.ids import SessionId, TurnId
from talaria.core.turns import Inbound, Sender, Turn
from talaria.store import rules

if TYPE_CHECKING:
    from talaria.store.memory import MemoryStore


class MemoryRetention:
    """See `core.ports.Retention`. Each order does all there is to do."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def forget_turns(self, after: int, before: float) -> Forgotten:
        self._store._now()
        old = [turn for turn in self._store._turns.values() if self._may_forget(turn, before)]
        for turn in old:
            self._store._turns[turn.id] = msgspec.structs.replace(
                turn, inbound=Inbound(turn.chat_key, Sender(""), ()), reply=None, error=None
            )
            self._store._steps.pop(turn.id, None)
        gone = {turn.id for turn in old}
        self._store._forgotten |= gone
        self._store.outbox.forget(gone)
        self._store._free_keys(gone)
        return Forgotten(None, len(old))

    def _may_forget(self, turn: Turn, before: float) -> bool:
        return (
            turn.id not in self._store._forgotten
            and turn.ended_at is not None
            and turn.ended_at < before
            and not self._has_unsent(turn.id)
        )

    async def prune_ended(self, before: float) -> int:
        now = self._store._now()
        owing = {
            turn.session_id
            for turn in self._store._turns.values()
            if turn.state in rules.UNSETTLED or self._has_unsent(turn.id)
        }
        doomed = {
            session.id
            for session in self._store._sessions.values()
            if not session.ephemeral
            and session.ended_at is not None
            and session.ended_at < before
            and session.id not in owing
            and not self._store._is_leased(session.id, now)
        }
        self._drop_sessions(doomed)
        return len(doomed)

    def prune_ephemeral(self, older_than: float) -> int:
        self._store._now()
        owing = {turn.session_id for turn in self._store._turns.values() if turn.state in rules.UNSETTLED}
        doomed = {
            session.id
            for session in self._store._sessions.values()
            if session.ephemeral and session.updated_at < older_than and session.id not in owing
        }
        self._drop_sessions(doomed)
        return len(doomed)

    def _drop_sessions(self, doomed: Collection[SessionId]) -> None:
        store = self._store
        turns = {turn.id for turn in store._turns.values() if turn.session_id in doomed}
        for session_id in doomed:
            del store._sessions[session_id], store._logs[session_id]
            store._leases.pop(session_id, None)
        store._chats = {key: current for key, current in store._chats.items() if current not in doomed}
        store._spending.forget(doomed, turns)
        for turn_id in turns:
            del store._turns[turn_id]
            store._steps.pop(turn_id, None)
        store._free_keys(turns)
        store.outbox.forget(turns)

    async def prune_specs(self) -> int:
        self._store._now()
        used = {session.spec_id for session in self._store._sessions.values()}
        unused = [spec_id for spec_id in self._store._specs if spec_id not in used]
        for spec_id in unused:
            del self._store._specs[spec_id]
        return len(unused)

    def _has_unsent(self, turn_id: TurnId) -> bool:
        return any(row.state in rules.UNSENT for row in self._store.outbox.of_turn(turn_id))
