"""Prefix bytes stay: over turns with tool calls, evictions and a restart, compared on raw bodies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

from support.gateway import without_http
from support.prefixes import PrefixWatch
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.gateway import Gateway
from talaria.testing.model_server import ModelServer

SESSIONS, TURNS = 20, 10
SMALL_POOL = {"pool": {"max_agents": 3}}  # so that agents come and go


async def speak(gateway: Gateway, turns: Iterable[int]) -> None:
    async def one(session: int) -> None:
        key = ChatAddress("main", "test", "dm", str(session)).key()
        for turn in turns:
            name = f"note-{turn}.txt"
            text = f'<{session}> [[call write_file {{"path":"{name}","content":"ünï {turn}"}}]]'
            text += f'[[think hm]][[call read_file {{"path":"{name}"}}]]+[[call list_files {{}}]] go'
            inbound = Inbound(key, Sender("tester"), (Text(text),))
            done = await gateway.turns.wait(await gateway.turns.submit(inbound))
            assert done.state is TurnState.DONE, done

    await asyncio.gather(*(one(session) for session in range(SESSIONS)))


def session_of(raw: bytes) -> str:
    found = re.search(rb"<(\d+)>", raw)
    assert found
    return found[1].decode()


async def test_no_request_breaks_the_prefix_of_the_one_before(tmp_path: Path) -> None:
    async with ModelServer() as server:
        async with without_http(tmp_path, server, tables=SMALL_POOL) as gateway:
            await speak(gateway, range(TURNS // 2))
            assert gateway.pool.counters.evicted_cap > 0
        async with without_http(tmp_path, server, tables=SMALL_POOL) as gateway:
            await speak(gateway, range(TURNS // 2, TURNS))
        watch = PrefixWatch(session_of)
        watch.see_all(server.bodies)
        assert watch.breaks == []
        assert len(watch.requests) == SESSIONS
        assert set(watch.requests.values()) == {TURNS * 3}, "two steps with tools and the answer"
