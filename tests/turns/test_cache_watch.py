"""The cache watch over whole turns: it remembers the last answer over rebuilds of the agent."""

from __future__ import annotations

import pytest

from support.rig import Rig

FIRST = "[[usage 5000 0 10 0]] one"
SERVED = "[[usage 5100 4900 10 0]] two"
MISSED = "[[usage 5200 0 10 0]] three"


def misses(rig: Rig) -> dict[str, float]:
    """By cause."""
    name = "talaria_prompt_cache_misses_total{cause="
    lines = [line for line in rig.metrics.render().decode().splitlines() if line.startswith(name)]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


async def test_a_cache_that_serves_what_is_due_is_no_news(rig: Rig) -> None:
    for text in (FIRST, SERVED, SERVED):
        await rig.say(text)
    assert misses(rig) == {}


@pytest.mark.parametrize(
    ("between", "cause"),
    [
        ((), "unexplained"),
        (("/undo",), "rewritten"),
        (("/model fast",), "model"),
        (("/tools none",), "spec"),
    ],
)
async def test_a_drop_is_counted_by_its_cause(rig: Rig, between: tuple[str, ...], cause: str) -> None:
    for text in (FIRST, SERVED, *between, MISSED):
        await rig.say(text)
    assert misses(rig) == {cause: 1}


async def test_an_agent_that_left_memory_is_compared_with_nothing(rig: Rig) -> None:
    for text in (FIRST, SERVED):
        turn = await rig.say(text)
    rig.pool.release(turn.session_id)
    await rig.say(MISSED)
    assert misses(rig) == {}
