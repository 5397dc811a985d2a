"""What a durable turn costs on PostgreSQL, against one on SQLite. Both sync to the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.load import Client, fresh_names
from bench.processes import gateway, model_server
from bench.turns import SESSIONS
from postgres_server import running_server

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


async def count_trips(turns: int) -> TurnTrips:
    with running_server() as server:
        async with await PostgresStore.open(server.new_database(), SystemClock()) as store:
            async with start(store=store) as rig:
                await rig.say("hello")
                before = _counted(store)
                for n in range(turns):
                    await rig.say(f"message {n}")
                statements, trips = (
                    (after - first) / turns for after, first in zip(_counted(store), before, strict=True)
                )
                return TurnTrips(statements, trips)


def _counted(store: PostgresStore) -> tuple[int, int]:
    pipes = [link.pipe for link in store.threads.links]
    return sum(pipe.statements for pipe in pipes), sum(pipe.round_trips for pipe in pipes)
