"""Many interleavings of pool and turns, and many steps of the pool's state machine."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from support import pool_world, turn_world
from support.pool_machine import PoolMachine
from trial.report import Figure, Progress

STEPS_PER_EXAMPLE = 50
REPEAT_EVERY = 100  # seeds: one in so many runs twice, and must do the same both times
FICKLE_EVERY = 10  # seeds: in one of so many providers vanish from the configuration and come back
TURN_OUTCOMES = (
    "done",
    "failed",
    "cancelled",
    "resumed",
    "refused",
    "gone",
    "ended",
    "joined",
    "marked",
    "approved",
    "denied",
    "expired",
)
TURN_SHARE = 1 / 15  # each outcome happens at least once in so many seeds
POOL_SHARE = 1 / 50


def explore_pool(seeds: int, progress: Progress) -> list[Figure]:
    def explore(seed: int) -> msgspec.Struct:
        return pool_world.explore(seed, is_fickle=seed % FICKLE_EVERY == FICKLE_EVERY - 1)

    return _explore("pool interleavings", seeds, explore, progress, POOL_SHARE)


def explore_turns(seeds: int, progress: Progress) -> list[Figure]:
    """On a healthy disk and on a sick one, in turns."""

    def explore(number: int) -> msgspec.Struct:
        seed, kind = divmod(number, 2)
        return turn_world.explore(seed, turn_world.SICK if kind else turn_world.HEALTHY)

    return _explore("turn interleavings", seeds, explore, progress, TURN_SHARE, TURN_OUTCOMES)


def count_outcomes(explored: object) -> Counter[str]:
    """How often each thing happened, from all numbers in a seed's result."""
    return Counter(dict(_numbers(msgspec.to_builtins(explored))))


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        else:
            yield name, value


def _explore(
    name: str,
    seeds: int,
    explore: Callable[[int], msgspec.Struct],
    progress: Progress,
    share: float,
    wanted: tuple[str, ...] = (),
) -> list[Figure]:
    """`wanted`: the outcomes that must not be rare; all of them, when none are named."""
    broken = 0
    outcomes: Counter[str] = Counter()
    with _quiet_log():
        for seed in range(seeds):
            try:
                explored = explore(seed)
                outcomes.update(count_outcomes(explored))
                if seed % REPEAT_EVERY == 0:
                    assert explore(seed) == explored, f"seed {seed} does not do the same again"
            except Exception:
                broken += 1
                if broken == 1:
                    traceback.print_exc()
            progress.tell(name, seed + 1, seeds, f", {broken} broken")
    rare = [key for key in wanted or outcomes if outcomes[key] <= seeds * share]
    if rare:
        print(f"{name}: hardly ever happened: {', '.join(rare)}")
    return [
        Figure(f"{name}: broken of {seeds:,}", broken, limit=0),
        Figure("… outcomes that hardly ever happened", len(rare), limit=0),
    ]


def walk_the_machine(steps: int, progress: Progress) -> Figure:
    """The state machine over the pool. A failure prints the shortest series of steps that leads to it."""
    examples = max(1, steps // STEPS_PER_EXAMPLE)
    long = settings(
        max_examples=examples,
        stateful_step_count=STEPS_PER_EXAMPLE,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    progress.tell("state machine", 0, steps)
    broken = 0
    with _quiet_log():
        try:
            run_state_machine_as_test(PoolMachine, settings=long)
        except Exception:
            broken = 1
            traceback.print_exc()
    progress.tell("state machine", steps, steps)
    return Figure(f"pool state machine: broken in {steps:,} steps", broken, limit=0)


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Failures are part of every seed; their log lines are not worth reading."""
    log = logging.getLogger("talaria")
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(logging.NOTSET)
