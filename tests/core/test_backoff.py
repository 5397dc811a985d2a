"""Exponential backoff."""

from __future__ import annotations

from itertools import islice

from talaria.core.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    assert list(islice(Backoff(0.5, 3.0).pauses(), 6)) == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_draw_shortens_the_pause() -> None:
    assert Backoff(1.0, 60.0).pause(3, draw=0.25) == 1.0


def test_any_number_of_failures_stays_within_the_longest() -> None:
    assert Backoff(1.0, 60.0).pause(100_000) == 60.0
