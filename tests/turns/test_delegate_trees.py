"""Random trees of delegates under many interleavings and over restarts: see `support.delegate_world`."""

from __future__ import annotations

import pytest

from support.delegate_world import LIMITS, explore, explore_all

SEEDS = 30


@pytest.mark.parametrize(
    "seeds",
    [range(SEEDS), pytest.param(range(1000, 2000), marks=pytest.mark.long)],
    ids=["30 trees", "1,000 trees"],
)
def test_each_result_reaches_its_parent_once_and_no_tree_exceeds_its_budget(seeds: range) -> None:
    states, ended_by = explore_all(seeds)
    assert states["done"] > len(seeds)
    assert ended_by.keys() == LIMITS.keys(), "recursion ends by each limit, and the model reads why"


def test_a_delegate_posts_nothing_into_the_chat_and_its_parent_replies() -> None:
    states, _ = explore_all(range(100, 105))
    assert states["done"], "each tree is checked for posts of its delegates"


def test_a_tree_comes_again() -> None:
    assert explore(3) == explore(3)
