"""The pool as a state machine: whatever is asked of it, in whatever order, what must hold holds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from support.pool_machine import PoolMachine

# More than a thousand steps; `./dev soak` takes ten thousand.
QUICK = settings(max_examples=60, stateful_step_count=50, deadline=None)


def test_no_order_of_requests_breaks_the_pool() -> None:
    run_state_machine_as_test(PoolMachine, settings=QUICK)
