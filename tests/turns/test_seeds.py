"""Intake, lanes and runner under many interleavings, with people who stop, leave and restart things.

`./dev soak --only seeds` explores 20,000 seeds.
"""

from __future__ import annotations

from collections import Counter

import pytest

from support.turn_world import HEALTHY, SICK, Mix, explore
from trial.in_process.interleavings import TURN_OUTCOMES, TURN_SHARE, count_outcomes

SEEDS = 50


@pytest.mark.parametrize("mix", [HEALTHY, SICK], ids=["on a healthy disk", "on a sick disk"])
def test_no_interleaving_loses_doubles_or_mixes_up_a_turn(mix: Mix) -> None:
    covered: Counter[str] = Counter()
    for seed in range(SEEDS):
        covered.update(count_outcomes(explore(seed, mix)))
    assert all(covered[outcome] > SEEDS * TURN_SHARE for outcome in TURN_OUTCOMES), covered


def test_a_seed_comes_again() -> None:
    assert [explore(seed, SICK) for seed in range(5)] == [explore(seed, SICK) for seed in range(5)]
