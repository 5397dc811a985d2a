"""What a durable turn costs on PostgreSQL, against one on SQLite. Both sync to the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.load import Client, fresh_names
from bench.processes import gateway, model_server
from bench.table import Row, Wanted
from bench.turns import SESSIONS
from support.postgres_server import running_server
from support.rig import start
from talaria.core.clock import SystemClock
from talaria.store.postgres.store import PostgresStore

DURABLE = ("fsync=on", "synchronous_commit=on", "shared_buffers=128MB", "max_connections=100")


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """CPU seconds of the gateway for one turn, alone and with `SESSIONS` sessions at once, and the turns a
    second of those."""

    alone: float
    crowd: float
    per_second: float


async def measure_engines(alone: int, each: int, rounds: int) -> tuple[EngineCosts, EngineCosts]:
    """Return the costs on SQLite and on PostgreSQL. Rounds alternate; the best of each figure counts."""
    with model_server() as model, running_server(DURABLE) as server:
        found: tuple[list[EngineCosts], list[EngineCosts]] = ([], [])
        for _ in range(rounds):
            found[0].append(await _measure(model.url, {}, alone, each))
            url = server.new_database()
            found[1].append(await _measure(model.url, {"TALARIA_STORE__URL": url}, alone, each))
            server.drop(url)
    return _best(found[0]), _best(found[1])


def _best(costs: list[EngineCosts]) -> EngineCosts:
    return EngineCosts(
        min(each.alone for each in costs),
        min(each.crowd for each in costs),
        max(each.per_second for each in costs),
    )


async def _measure(model_url: str, settings: Mapping[str, str], alone: int, each: int) -> EngineCosts:
    with gateway(model_url, settings=settings) as (served, token):
        client = Client(served.url, token)
        try:
            await client.run(fresh_names(SESSIONS), 10)
            before = served.cpu()
            await client.run(fresh_names(1), alone)
            middle = served.cpu()
            load = await client.run(fresh_names(SESSIONS), each)
            return EngineCosts(
                (middle - before) / alone, (served.cpu() - middle) / len(load.latencies), load.per_second
            )
        finally:
            await client.close()


@dataclass(frozen=True, slots=True)
class TurnTrips:
    """What one turn in a chat that goes on sends to the database: statements and round trips, of orders and
    of queries."""

    statements: float
    round_trips: float


async def count_trips(url: str, turns: int) -> TurnTrips:
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as folder:
        async with (
            await PostgresStore.open(url, SystemClock()) as store,
            start(store, Path(folder)) as rig,
        ):
            await rig.say("hello")
            before = _counted(store)
            for n in range(turns):
                await rig.say(f"message {n}")
            after = _counted(store)
    return TurnTrips((after[0] - before[0]) / turns, (after[1] - before[1]) / turns)


def _counted(store: PostgresStore) -> tuple[int, int]:
    pipes = [link.pipe for link in store.threads.links]
    return sum(pipe.statements for pipe in pipes), sum(pipe.round_trips for pipe in pipes)


async def postgres_rows(scale: float) -> list[Row]:
    """Return the rows of the table for `--store postgres`. Below a scale of 1 they are not judged."""
    rounds, is_judged = (3, Wanted.AT_MOST) if scale >= 1 else (1, Wanted.FOR_COMPARISON)
    with running_server() as server:
        trips = await count_trips(server.new_database(), max(2, round(100 * scale)))
    sqlite, postgres = await measure_engines(max(2, round(400 * scale)), max(2, round(80 * scale)), rounds)
    return [
        Row("durable turn on SQLite, alone", sqlite.alone * 1000, "ms CPU"),
        Row("durable turn on PostgreSQL, alone", postgres.alone * 1000, "ms CPU"),
        Row("… over SQLite", postgres.alone / sqlite.alone, "×", is_judged, 2.0),
        Row(f"durable turn on SQLite, {SESSIONS} sessions at once", sqlite.crowd * 1000, "ms CPU"),
        Row(f"durable turn on PostgreSQL, {SESSIONS} sessions at once", postgres.crowd * 1000, "ms CPU"),
        Row("… over SQLite", postgres.crowd / sqlite.crowd, "×", is_judged, 2.0),
        Row(f"turns with {SESSIONS} sessions on SQLite", sqlite.per_second, "/s"),
        Row(f"turns with {SESSIONS} sessions on PostgreSQL", postgres.per_second, "/s"),
        Row("statements of a turn", trips.statements, ""),
        Row("round trips of a turn", trips.round_trips, ""),
    ]
