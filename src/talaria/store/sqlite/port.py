"""`SqlStore`: the store's port in SQL, on whatever reaches the database."""

from __future__ import annotations

from collections.abc import Sequence

from talaria.core.clock import Clock
from talaria.core.ids import OwnerId
from talaria.core.ledger import Commit, Committed, StoreStats
from talaria.core.turns import Turn
from talaria.store import rules
from talaria.store.sqlite import orders, queries, upkeep
from talaria.store.sqlite import questions as asked
from talaria.store.sqlite import spending as money
from talaria.store.sqlite.engine import engine_version
from talaria.store.sqlite.history import SqliteHistories
from talaria.store.sqlite.outbox import SqliteOutbox
from talaria.store.sqlite.pairing import SqlitePairings
from talaria.store.sqlite.reach import Part, Reach, reads, writes
from talaria.store.sqlite.retention import SqliteRetention
from talaria.store.sqlite.schema import latest_version


class SqlStore(Part):
    """See `core.ports.Store` for what each method promises. Closing is for whoever made the `reach`."""

    def __init__(self, reach: Reach, clock: Clock) -> None:
        super().__init__(reach)
        self._clock = clock
        self.outbox = SqliteOutbox(reach, clock)
        self.retention = SqliteRetention(reach)
        self.histories = SqliteHistories(reach)
        self.pairings = SqlitePairings(reach)

    # -- writing

    accept = writes(orders.accept, is_durable=True)
    begin = writes(orders.begin)
    settle = writes(orders.settle, is_durable=True)
    decide = writes(asked.decide, is_durable=True)
    reserve = writes(money.reserve)
    hold = writes(upkeep.hold)
    renew = writes(upkeep.renew)
    end_session = writes(upkeep.end_session)
    reclaim = writes(upkeep.reclaim)
    yield_turns = writes(upkeep.yield_turns, is_durable=True)
    forgive = writes(upkeep.forgive)
    show = writes(upkeep.show)
    set_cursor = writes(upkeep.set_cursor, is_durable=True)
    move_chat = writes(upkeep.move_chat, is_durable=True)
    end_unused = writes(upkeep.end_unused)

    async def commit(self, order: Commit) -> Committed:
        is_durable = order.end is not None or bool(order.ask)
        return await self._reach.write(orders.commit, order, is_durable=is_durable)

    async def prune_ephemeral(self, older_than: float) -> int:
        """Whole sessions at a time, in as many transactions as it takes."""
        total = 0
        while True:
            pruned = await self._reach.write(upkeep.prune_ephemeral, older_than)
            total += pruned
            if pruned < rules.BATCH:
                return total

    # -- reading

    cursor = reads(upkeep.cursor)
    session = reads(queries.session)
    current_session = reads(queries.current_session)
    sessions = reads(queries.sessions)
    entries = reads(queries.entries)
    log = reads(queries.log)
    spec = reads(queries.spec)
    turn_record = reads(queries.turn_record)
    questions = reads(asked.questions)
    open_questions = reads(asked.open_questions)
    summary = reads(queries.summary)
    spending = reads(money.spending)

    async def orphans(self, owner: OwnerId, accepted_before: float) -> Sequence[Turn]:
        return await self._orphans(self._clock.now(), owner, accepted_before)

    _orphans = reads(upkeep.orphans)

    async def stats(self) -> StoreStats:
        sessions, turns, unsent, oldest = await self._reach.read(queries.counts, None)
        return StoreStats(
            engine=f"sqlite {engine_version}",
            schema=latest_version(),
            size_bytes=0,
            wal_bytes=0,
            sessions=sessions,
            turns=turns,
            owed=sum(turns[state] for state in rules.UNSETTLED),
            outbox=unsent,
            oldest_seconds=0.0 if oldest is None else max(0.0, self._clock.now() - oldest),
        )
