"""What durable turns through HTTP cost the gateway's process."""

from __future__ import annotations

from dataclasses import dataclass

from bench.load import Client, Load, fresh_names
from bench.processes import Metered

SESSIONS = 16
SHORT = 2  # messages


@dataclass(frozen=True, slots=True)
class TurnLoad:
    """How much is measured. Of `rounds` the best counts: other work of the machine can only add to it."""

    rounds: int = 3
    warm_up: int = 50  # turns in each of four sessions
    alone: int = 400
    each: int = 120  # turns in each of `SESSIONS` sessions at once
    samples: int = 96  # single turns in short and in long conversations
    length: int = 1000  # messages of a long conversation


@dataclass(frozen=True, slots=True)
class TurnCosts:
    """CPU seconds for one turn, and how many turns a second `SESSIONS` sessions got."""

    alone: float
    crowd: float
    per_second: float
    short: float
    long: float


async def measure_turns(client: Client, served: Metered, load: TurnLoad) -> TurnCosts:
    await client.run(fresh_names(4), load.warm_up)
    alone = [await _batch(client, served, fresh_names(1), load.alone) for _ in range(load.rounds)]
    crowd = [await _batch(client, served, fresh_names(SESSIONS), load.each) for _ in range(load.rounds)]
    long_names = fresh_names(min(SESSIONS, load.samples))
    await client.run(long_names, load.length // 2)
    short, long = [], []
    for _ in range(load.rounds):
        names = fresh_names(load.samples)
        await client.run(names, 1)
        short.append(await _one_by_one(client, served, names))
        long.append(await _one_by_one(client, served, long_names * (load.samples // len(long_names))))
    return TurnCosts(
        min(cpu for cpu, _ in alone),
        min(cpu for cpu, _ in crowd),
        max(batch.per_second for _, batch in crowd),
        min(short),
        min(long),
    )


async def _batch(client: Client, served: Metered, names: list[str], turns: int) -> tuple[float, Load]:
    """CPU per turn of sessions side by side, and the load as the client saw it."""
    before = served.cpu()
    load = await client.run(names, turns)
    return (served.cpu() - before) / len(load.latencies), load


async def _one_by_one(client: Client, served: Metered, names: list[str]) -> float:
    """CPU per turn, one in each session, one after the other."""
    before = served.cpu()
    for name in names:
        await client.run([name], 1)
    return (served.cpu() - before) / len(names)
