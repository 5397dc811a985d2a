"""The cost of accepting messages: in the store one by one and in parallel, and through HTTP."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from pathlib import Path

from bench.load import Client, fresh_names
from bench.processes import gateway, model_server
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatAddress, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Fresh
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender
from talaria.store.sqlite.store import SqliteStore

TASKS = 64
_chats = (ChatAddress("main", "bench", "dm", str(number)).key() for number in itertools.count())


async def group_commit_gain(count: int) -> float:
    """Return how many times more durable accepts per second 64 tasks get than one. Each accept waits for its
    fsync."""
    with tempfile.TemporaryDirectory(prefix="talaria-bench-", dir=Path.cwd()) as folder:
        async with await SqliteStore.open(Path(folder) / "talaria.db", SystemClock()) as store:
            alone = await _per_second(store, 1, count)
            return await _per_second(store, TASKS, max(2, count // 4)) / alone


async def _per_second(store: SqliteStore, tasks: int, count: int) -> float:
    async def accept() -> None:
        chat = next(_chats)
        for _ in range(count):
            inbound = Inbound(chat, Sender("bench"), (Text("How are you today?"),))
            await store.accept(Accept(new_turn_id(), inbound, Fresh(new_session_id(), None)))

    began = time.perf_counter()
    await asyncio.gather(*(accept() for _ in range(tasks)))
    return tasks * count / (time.perf_counter() - began)


async def http_accept_cpu(count: int) -> float:
    """Return the CPU seconds of the gateway for one message that is accepted and queued behind a turn."""
    with model_server(latency=60) as model, gateway(model.url, deadline="100ms") as (served, token):
        client = Client(served.url, token)
        try:
            names = fresh_names(TASKS)
            await client.accept(names, 1)
            before = served.cpu()
            await client.accept(names, count)
            return (served.cpu() - before) / (TASKS * count)
        finally:
            await client.close()
