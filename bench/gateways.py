"""What a durable turn costs with 1 to N gateways on one PostgreSQL, and how fast one wakes another."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random

import psycopg

from bench.load import Client, fresh_names
from bench.postgres import DURABLE
from bench.processes import Metered, gateway, model_server
from bench.table import Row, Wanted
from support.postgres_server import PostgresServer, running_server
from talaria.core.clock import SystemClock
from talaria.core.cluster import Wake
from talaria.core.ids import new_owner_id
from talaria.store.postgres.store import PostgresStore

SESSIONS = 16
_IDLE_SECONDS = 5.0
_COUNTS = """
SELECT pg_current_wal_lsn() - '0/0', xact_commit + xact_rollback, tup_inserted + tup_updated + tup_deleted
FROM pg_stat_database WHERE datname = current_database()
"""
_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'talaria%'"


@dataclass(frozen=True, slots=True)
class ClusterCosts:
    """For one turn: CPU seconds of all gateways, with each chat at one of them (`sticky`) and with each
    message at any (`spread`); bytes of WAL and rows written. At rest: transactions a second of one gateway,
    and its connections."""

    gateways: int
    sticky: float
    spread: float
    per_second: float
    wal_bytes: float
    rows: float
    idle: float
    connections: float


async def measure_gateways(count: int, each: int) -> ClusterCosts:
    """Run `each` turns in each of `SESSIONS` chats, twice."""
    with ExitStack() as scopes:
        model = scopes.enter_context(model_server())
        server = scopes.enter_context(running_server(DURABLE))
        url = server.new_database()
        settings = {"TALARIA_STORE__URL": url, "TALARIA_CLUSTER_TOKEN": "one-token-for-all-gateways"}
        started = [scopes.enter_context(gateway(model.url, settings=settings)) for _ in range(count)]
        clients = [Client(served.url, token) for served, token in started]
        try:
            return await _measure(server, url, [served for served, _ in started], clients, each)
        finally:
            await asyncio.gather(*(client.close() for client in clients))


async def _measure(
    server: PostgresServer, url: str, gateways: list[Metered], clients: list[Client], each: int
) -> ClusterCosts:
    names = fresh_names(SESSIONS)
    for number, client in enumerate(clients):
        await client.run(names[number :: len(clients)], 5)
    wal, _, rows = _count(url)
    before = _cpu(gateways)
    loads = await asyncio.gather(
        *(client.run(names[number :: len(clients)], each) for number, client in enumerate(clients))
    )
    turns = sum(len(load.latencies) for load in loads)
    sticky = (_cpu(gateways) - before) / turns
    wal_after, _, rows_after = _count(url)
    before = _cpu(gateways)
    random = Random(1)

    async def talk(name: str) -> None:
        for _ in range(each):
            await random.choice(clients).turn(name, "How are you today?")

    await asyncio.gather(*map(talk, names))
    spread = (_cpu(gateways) - before) / (len(names) * each)
    _, idle_before, _ = _count(url)
    await asyncio.sleep(_IDLE_SECONDS)
    _, idle_after, _ = _count(url)
    connections = server.execute(_CONNECTIONS)[0][0]
    return ClusterCosts(
        len(gateways),
        sticky,
        spread,
        turns / max(load.seconds for load in loads),
        (wal_after - wal) / turns,
        (rows_after - rows) / turns,
        (idle_after - idle_before) / _IDLE_SECONDS / len(gateways),
        connections / len(gateways),
    )


def _cpu(gateways: list[Metered]) -> float:
    return sum(served.cpu() for served in gateways)


def _count(url: str) -> tuple[float, float, float]:
    time.sleep(1.1)  # the server's counts are up to a second late
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(_COUNTS).fetchone()
    assert row is not None
    return float(row[0]), float(row[1]), float(row[2])


async def measure_wakes(times: int) -> list[float]:
    """Return the seconds from a wake-up to its arrival at another gateway's event loop."""
    with running_server(DURABLE) as server:
        url, owner = server.new_database(), new_owner_id()
        heard: asyncio.Queue[Wake] = asyncio.Queue()
        async with (
            await PostgresStore.open(url, SystemClock()) as one,
            await PostgresStore.open(url, SystemClock()) as other,
            other.cluster.listen(owner, heard.put_nowait),
        ):
            while heard.empty():  # until the other one listens
                await one.cluster.wake(Wake.TURNS, owner)
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            while not heard.empty():
                heard.get_nowait()
            seconds = []
            for _ in range(times):
                began = time.perf_counter()
                await one.cluster.wake(Wake.TURNS, owner)
                await heard.get()
                seconds.append(time.perf_counter() - began)
    return seconds


async def cluster_rows(most: int, scale: float) -> list[Row]:
    """Return the rows for 1 to `most` gateways. Below a scale of 1 they are not judged."""
    judged = Wanted.AT_MOST if scale >= 1 else Wanted.FOR_COMPARISON
    wakes = await measure_wakes(max(5, round(200 * scale)))
    costs = [await measure_gateways(count, max(2, round(60 * scale))) for count in range(1, most + 1)]
    rows = [
        Row("wake-up of another gateway, p50", statistics.median(wakes) * 1000, "ms", judged, 20.0),
        Row("wake-up of another gateway, slowest", max(wakes) * 1000, "ms"),
    ]
    for cost in costs:
        name = f"{cost.gateways} gateway{'s' if cost.gateways > 1 else ''}"
        rows += [
            Row(f"{name}: durable turn, each chat at one of them", cost.sticky * 1000, "ms CPU"),
            Row("… each message at any of them", cost.spread * 1000, "ms CPU"),
            Row(f"… turns with {SESSIONS} sessions", cost.per_second, "/s"),
            Row("… WAL of a turn", cost.wal_bytes / 1000, "kB"),
            Row("… rows written by a turn", cost.rows, ""),
            Row("… transactions of a gateway at rest", cost.idle, "/s"),
            Row("… connections of a gateway", cost.connections, ""),
        ]
    flat = max(cost.sticky for cost in costs) / costs[0].sticky
    rows.append(Row(f"CPU of a turn, dearest of 1 to {most} gateways over one", flat, "×", judged, 1.25))
    return rows
