"""G17: what was shown is what was approved is what runs."""

from __future__ import annotations

import pytest

from support.altered_approvals import OF_GRANTS, ROWS, SCENES, alter, untouched
from talaria.core.questions import Span

WAYS = len(SCENES) + len(ROWS) + 1 + len(OF_GRANTS)


@pytest.mark.parametrize("count", [2 * WAYS, pytest.param(1000, marks=pytest.mark.long)])
async def test_an_altered_approval_never_runs(count: int) -> None:
    tried, ran = await alter(count)
    assert len(tried) == WAYS, "each way was tried"
    assert ran == []


@pytest.mark.parametrize("span", [Span.ONCE, Span.SESSION])
async def test_an_approval_that_nobody_touched_runs(span: Span) -> None:
    assert all([await untouched(seed, span) for seed in range(10)])
