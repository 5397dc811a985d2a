"""The pool under many interleavings: what must hold, holds in each.

`./dev soak --only seeds` explores 20,000 seeds.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from support.pool_world import explore
from talaria.pool.policy import AgentState
from talaria.pool.pool import Pool, Wanted, _Slot
from trial.in_process.interleavings import POOL_SHARE, count_outcomes

SEEDS = 200


def test_no_interleaving_breaks_the_pool() -> None:
    covered: Counter[str] = Counter()
    for seed in range(SEEDS):
        covered.update(count_outcomes(explore(seed)))
    assert all(count > SEEDS * POOL_SHARE for count in covered.values()), covered


def test_a_seed_comes_again() -> None:
    assert [explore(seed) for seed in range(30)] == [explore(seed) for seed in range(30)]


class PinsLate(Pool):
    """The ancestor's fault in the real pool: between finding an idle agent and pinning it, others run."""

    async def _take(self, wanted: Wanted) -> _Slot:
        slot = self._slots.get(wanted.session_id)
        if slot is None or slot.state is not AgentState.IDLE:
            return await super()._take(wanted)
        await asyncio.sleep(0)
        slot.state = AgentState.BUSY
        await self._reconcile(wanted, slot)
        return slot


def is_broken(seed: int) -> bool:
    try:
        explore(seed, kind=PinsLate)
    except ExceptionGroup as raised:
        return raised.subgroup(AssertionError) is not None
    return False


def test_a_pin_taken_after_an_await_is_found() -> None:
    assert any(is_broken(seed) for seed in range(5 * SEEDS))


def test_no_interleaving_breaks_the_pool_when_providers_come_and_go() -> None:
    for seed in range(SEEDS // 10):
        explore(seed, is_fickle=True)
