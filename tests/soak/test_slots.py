"""A small part of `./dev soak --only slots`: each slot of a job runs once (G13)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from soak.report import Progress
from soak.slots import EDGES, HOUR, Slots, daily_instants

SPRING_AND_AUTUMN = (EDGES[0], EDGES[2])


@pytest.fixture(autouse=True)
def no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spans", "jobs"),
    [
        pytest.param(SPRING_AND_AUTUMN, 4, id="two edges"),
        pytest.param(EDGES, 20, id="four edges", marks=pytest.mark.long),
    ],
)
def test_each_slot_runs_once_over_processes_kills_and_jumps(
    spans: Sequence[tuple[float, float]], jobs: int
) -> None:
    slots = Slots(jobs, spans, Progress(is_quiet=True), seed=4, trouble=4)
    figures = asyncio.run(slots.run())
    assert slots.wrong == []
    assert all(figure.is_reached for figure in figures)
    assert slots.counts["kills"]
    assert slots.counts["stalls"]
    assert slots.counts["jumps back"]
    assert slots.counts["jumps forward"]


def test_the_second_computation_knows_both_edges() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    spring, autumn = EDGES[1], EDGES[2]
    assert daily_instants(berlin, 2, 30, *spring) == [spring[0] + 5 * HOUR], "the end of the gap"
    assert daily_instants(berlin, 2, 30, *autumn) == [autumn[0] + 4.5 * HOUR], "the first of the two"
