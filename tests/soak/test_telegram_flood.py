"""A small number of broken Telegram updates."""

from __future__ import annotations

import asyncio

from soak.report import Progress
from soak.telegram import flood


def test_a_flood_of_broken_updates_breaks_nothing_and_lets_nobody_in() -> None:
    figures = asyncio.run(flood(1000, Progress(is_quiet=True)))
    assert [figure.name for figure in figures if not figure.is_reached] == []
    assert figures[2].value > 20  # the allowed person's own still come through
