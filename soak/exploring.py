"""Many interleavings of pool and turns, and many steps of the pool's state machine."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import pool_world
import turn_world
from pool_machine import PoolMachine
from soak.report import Figure, Progress

STEPS_PER_EXAMPLE = 50


def explore_pool(seeds: int, progress: Progress) -> Figure:
    return _explore("pool interleavings", seeds, pool_world.explore, progress)


def explore_turns(seeds: int, progress: Progress) -> Figure:
    """Both kinds of world in turns."""

    def explore(number: int) -> object:
        seed, kind = divmod(number, 2)
        return turn_world.explore(seed, turn_world.SICK if kind else turn_world.HEALTHY)

    return _explore("turn interleavings", seeds, explore, progress)


def _explore(name: str, seeds: int, explore: Callable[[int], object], progress: Progress) -> Figure:
    broken = 0
    logging.getLogger("talaria").setLevel(logging.CRITICAL)
    try:
        for seed in range(seeds):
            try:
                explore(seed)
            except Exception:
                broken += 1
                if broken == 1:
                    traceback.print_exc()
            progress.tell(name, seed + 1, seeds, f", {broken} broken")
    finally:
        logging.getLogger("talaria").setLevel(logging.NOTSET)
    return Figure(f"{name}: broken of {seeds:,}", broken, limit=0)


def walk_the_machine(steps: int, progress: Progress) -> Figure:
    """The state machine over the pool; a failure prints its shortest story."""
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
    logging.getLogger("talaria").setLevel(logging.CRITICAL)
    try:
        run_state_machine_as_test(PoolMachine, settings=long)
    except Exception:
        broken = 1
        traceback.print_exc()
    finally:
        logging.getLogger("talaria").setLevel(logging.NOTSET)
    progress.tell("state machine", steps, steps)
    return Figure(f"pool state machine: broken in {steps:,} steps", broken, limit=0)
