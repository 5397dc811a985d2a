"""A short form of `./dev chaos --only webhooks`: wrong calls of every kind, and genuine ones among them."""

from __future__ import annotations

import asyncio

from chaos.webhooks import WebhookRun
from soak.report import Progress


def test_wrong_calls_become_no_turn_and_genuine_ones_become_one() -> None:
    run = WebhookRun(80, Progress(is_quiet=True))
    figures = asyncio.run(run.run())
    assert [figure.name for figure in figures if not figure.is_reached] == [], run.evidence
    assert len(run.ways) == 10
