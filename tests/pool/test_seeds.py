"""The pool under a thousand interleavings: what must hold, holds in each."""

from __future__ import annotations

from collections import Counter

import msgspec

from pool_world import explore

SEEDS = 1000


def test_no_interleaving_breaks_the_pool() -> None:
    covered: Counter[str] = Counter()
    for seed in range(SEEDS):
        explored = explore(seed)
        covered.update(msgspec.structs.asdict(explored.counters))
        covered.update(cancelled=explored.cancelled, failed=explored.failed)
    assert all(count > 20 for count in covered.values()), covered


def test_a_seed_comes_again() -> None:
    assert [explore(seed) for seed in range(30)] == [explore(seed) for seed in range(30)]


def test_no_interleaving_breaks_the_pool_when_providers_come_and_go() -> None:
    for seed in range(SEEDS // 10):
        explore(seed, is_fickle=True)
