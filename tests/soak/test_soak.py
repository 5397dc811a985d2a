"""A small part of `./dev soak`. Planted faults are found."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.cut_calls import CutCalls
from soak.endurance import ALLOCATIONS, Endurance, slope
from soak.failures import Failures, counting
from soak.interleavings import explore_pool, explore_turns, walk_the_machine
from soak.prefix import Prefixes
from soak.report import Curve, Figure, Progress, render_markdown, render_svg, render_text
from soak.reservations import Reservations
from soak.resumes import Resumes

QUIET = Progress(is_quiet=True)


@pytest.fixture(autouse=True)
def no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "leak",
    [
        pytest.param(0, id="as it is"),
        pytest.param(200, id="with a leak of 200 bytes", marks=pytest.mark.long),
    ],
)
def test_a_leak_for_each_eviction_is_seen_by_the_allocations(leak: int) -> None:
    endurance = Endurance(2000, 400, QUIET, leak=leak, samples=16)
    figures = asyncio.run(endurance.run())
    missed = [figure.name for figure in figures if not figure.is_reached]
    assert missed == ([ALLOCATIONS] if leak else [])
    assert len(endurance.samples) == 16


def test_prefixes_hold_over_evictions_restarts_and_a_foreign_writer() -> None:
    prefixes = Prefixes(20, 10, QUIET)
    breaks, *_ = asyncio.run(prefixes.run())
    assert (breaks.value, breaks.is_reached) == (0, True)
    assert prefixes.evicted > 0
    assert prefixes.caught_up > 0


def test_evicted_sessions_resume_the_same_over_restarts_and_leave_nothing() -> None:
    resumes = Resumes(16, 2, QUIET)
    figures = asyncio.run(resumes.run())
    assert (resumes.differences, resumes.left) == ([], [])
    assert all(figure.is_reached for figure in figures)
    assert resumes.evicted >= 16


def test_reservations_of_four_processes_never_exceed_a_cap() -> None:
    reservations = Reservations(500, QUIET)
    beyond, lost, _ = asyncio.run(reservations.run())
    assert (beyond.value, lost.value) == (0, 0)
    assert reservations.total.granted > 100
    assert reservations.total.refused > 100


@pytest.mark.long
def test_calls_that_end_in_every_way_never_exceed_a_cap() -> None:
    calls = CutCalls(600, QUIET)
    figures = asyncio.run(calls.run())
    assert [figure.name for figure in figures if not figure.is_reached] == []
    assert calls.ends["over_budget"] > calls.refused_by_day > 0
    assert calls.ends["cancelled"] > 20
    assert calls.ends["left"] > 5
    assert calls.lives["SIGKILL"] > 1


def test_interleavings_and_steps_are_counted_and_judged() -> None:
    figures = [explore_pool(20, QUIET)[0], explore_turns(6, QUIET)[0], walk_the_machine(50, QUIET)]
    assert [(figure.value, figure.limit, figure.is_reached) for figure in figures] == [(0, 0, True)] * 3


def test_outcomes_that_hardly_ever_happen_are_a_missed_figure() -> None:
    _, rare = explore_turns(1, QUIET)
    assert (rare.is_reached, rare.limit) == (False, 0)


def test_failing_messages_cost_what_the_rule_says_and_build_nothing() -> None:
    failures = Failures(20, QUIET)
    figures = asyncio.run(failures.run())
    assert [figure.name for figure in figures if not figure.is_reached] == []
    assert failures.unexpected == failures.not_recovered == []
    assert failures.calls["400"] == 20
    assert failures.calls["429"] == 80
    assert 0 < failures.calls["500"] < 80


def test_what_is_built_is_counted() -> None:
    with counting(ssl.SSLContext) as contexts:
        ssl.create_default_context()
        assert len(contexts) == 1


def test_figures_say_what_was_missed() -> None:
    figures = [Figure("one", 1.5, "MB", 2), Figure("two", 3, "", 2), Figure("three", 12_345)]
    text = render_text(figures)
    assert "1.5 MB" in text and "reached" in text and "MISSED" in text and "12,345" in text
    assert render_markdown(figures).count("\n") == 4


def test_a_picture_has_a_panel_for_each_curve() -> None:
    picture = render_svg(
        "a <title>", [Curve("one", "MB", "#000", [(0, 1), (10, 2)]), Curve("two", "", "#111", [])]
    )
    assert picture.count("<polyline") == 2
    assert "a &lt;title&gt;" in picture


def test_a_slope_is_that_of_the_best_line() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope([(1, 1)]) == slope([(1, 1), (1, 2)]) == 0
