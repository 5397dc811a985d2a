"""A twentieth of `./dev chaos --store postgres`, with real gateways and a real PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest

from chaos.cluster import ClusterRun
from soak.report import Progress


def test_faults_of_three_gateways_lose_nothing_double_nothing_and_keep_the_order() -> None:
    run = ClusterRun(15, Progress(is_quiet=True), seed=4, chats=4)
    try:
        figures = asyncio.run(run.run())
    except LookupError as reason:
        pytest.skip(f"no PostgreSQL: {reason}")
    missed = [figure.name for figure in figures if not figure.is_reached]
    assert missed == [], run.findings()[:20_000]
    assert sum(run.faults.values()) >= 15
    assert run.report.said.total() > 30
