"""kill -9 while the index is filled: nothing is lost or doubled, and the next process goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from contracts.store_orders import new_clock
from support.search_world import HOME, SearchWorld, said
from talaria.core.access import EVERYTHING
from talaria.core.failpoints import Failpoint
from talaria.core.messages import AssistantMessage
from talaria.search.side_file import open_side_file
from talaria.store.sqlite.store import SqliteStore

ENTRIES = 600
FILL = """
import asyncio, sys
from pathlib import Path
from talaria.core.clock import SystemClock
from talaria.core.failpoints import arm
from talaria.search.index import open_index
from talaria.store.sqlite.store import SqliteStore

async def fill(home, plan):
    async with await SqliteStore.open(home / "talaria.db", SystemClock()) as store:
        async with open_index(home, store.recall, SystemClock()) as index:
            arm(plan)
            await index.catch_up(60)

asyncio.run(fill(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize(
    "plan", [f"{Failpoint.INDEXING}=1", f"{Failpoint.INDEXING}=3", f"{Failpoint.INDEXED}=2"]
)
async def test_a_kill_while_it_is_filled_loses_and_doubles_nothing(tmp_path: Path, plan: str) -> None:
    clock = new_clock()
    async with await SqliteStore.open(tmp_path / "talaria.db", clock) as store:
        world = SearchWorld(store, tmp_path, clock)
        session = await world.talk(*(said(f"walrus number{n} " + "padding " * 60) for n in range(ENTRIES)))
        other = await world.talk(said("the penguin"), AssistantMessage("yes"))
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", FILL, str(tmp_path), plan)
        assert await child.wait() == -signal.SIGKILL
        hits = (await world.index.search("penguin", EVERYTHING)).hits
        assert [hit.session_id for hit in hits] == [other]
        for n in (0, ENTRIES // 2, ENTRIES - 1):
            page = await world.index.search(f"number{n}", EVERYTHING)
            assert [(hit.session_id, hit.seq, hit.chat_key) for hit in page.hits] == [(session, n + 1, HOME)]
        await world.close()
    file = open_side_file(tmp_path / "search.db")
    assert file.count() == ENTRIES + 2
    file.close()
