"""The sessions that the benchmark of sizes puts into a database: real enough to go on with."""

from __future__ import annotations

from bench.postgres_sizes import fill
from contracts.store_orders import accepting, new_clock
from support.postgres_server import postgres, postgres_database  # noqa: F401 - fixtures
from talaria.core.ledger import Page
from talaria.store.postgres.store import PostgresStore


async def test_filled_sessions_are_read_and_go_on(postgres_database: str) -> None:  # noqa: F811 - the fixture
    fill(postgres_database, 30)
    async with await PostgresStore.open(postgres_database, new_clock()) as store:
        stats = await store.stats()
        assert (stats.sessions, stats.turns["done"]) == (30, 60)
        (session, *_) = (await store.sessions(Page(1))).items
        entries = await store.log(session.id, 0)
        assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
        (turn, _) = await store.recent_of_session(session.id, 5)
        assert turn.id == entries[-1].turn_id
        again = await store.accept(accepting(chat=session.chat_key))
        assert again.turn.session_id == session.id
