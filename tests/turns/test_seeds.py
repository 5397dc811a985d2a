"""Intake, mailbox and runner under many interleavings, with people who stop, leave and restart things."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from turn_world import HEALTHY, SICK, Mix, explore

SEEDS = 150


@pytest.mark.parametrize(
    ("mix", "wanted"),
    [
        (HEALTHY, ("done", "failed", "cancelled", "resumed", "refused", "gone", "ended", "joined", "marked")),
        (SICK, ("done", "failed", "cancelled", "resumed", "refused", "gone", "ended", "joined", "marked")),
    ],
    ids=["on a healthy disk", "on a sick disk"],
)
def test_no_interleaving_loses_doubles_or_mixes_up_a_turn(mix: Mix, wanted: tuple[str, ...]) -> None:
    covered: Counter[str] = Counter()
    for seed in range(SEEDS):
        explored = msgspec.structs.asdict(explore(seed, mix))
        covered.update(explored.pop("states"))
        covered.update(explored)
    assert all(covered[key] > 10 for key in wanted), covered


def test_a_seed_comes_again() -> None:
    assert [explore(seed, SICK) for seed in range(20)] == [explore(seed, SICK) for seed in range(20)]
