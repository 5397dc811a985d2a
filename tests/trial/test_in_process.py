"""Small parts of `./dev soak`. Planted faults are found."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from bench.processes import model_server
from talaria.core.turns import TurnState
from talaria.testing.clock import FakeClock
from trial.in_process.endurance import ALLOCATIONS, Endurance
from trial.in_process.failures import Failures, counting
from trial.in_process.home_probe import ProbeSize
from trial.in_process.interleavings import explore_pool, explore_turns, walk_the_machine
from trial.in_process.job_load import JobLoad
from trial.in_process.mcp_servers import DyingServer
from trial.in_process.months import BEYOND_LIMIT, Months, read_stored
from trial.in_process.prefix import Prefixes
from trial.in_process.reservations import Reservations
from trial.in_process.resumes import Resumes
from trial.in_process.slots import EDGES, HOUR, Slots, daily_instants
from trial.in_process.telegram import flood
from trial.loads.cut_calls import CutCalls
from trial.measure import slope
from trial.report import Progress, missed, render_svg

QUIET = Progress(is_quiet=True)
SPRING_AND_AUTUMN = (EDGES[0], EDGES[2])


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
    assert [figure.name for figure in figures if not figure.is_reached] == ([ALLOCATIONS] if leak else [])
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
    assert missed(figures) == []
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
    assert missed(figures) == []
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
    assert missed(figures) == []
    assert failures.unexpected == failures.not_recovered == []
    assert failures.calls["400"] == 20
    assert failures.calls["429"] == 80
    assert 0 < failures.calls["500"] < 80


def test_what_is_built_is_counted() -> None:
    with counting(ssl.SSLContext) as contexts:
        ssl.create_default_context()
        assert len(contexts) == 1


def test_a_slope_is_that_of_the_best_line() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope([(1, 1)]) == slope([(1, 1), (1, 2)]) == 0


def test_days_are_lived_on_a_virtual_clock_and_results_are_stored_once() -> None:
    months = Months(QUIET, share=0.02, days=2)

    async def live(home: Path) -> None:
        with model_server() as model:
            await months.live(home, model.url, FakeClock(), range(2))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(Path(folder)))
        size, bodies, messages = read_stored(Path(folder))
    assert [day.day for day in months.days] == [1, 2]
    assert (months.failed, messages) == (0, months.days[-1].messages)
    assert messages > 300 and (size - bodies) / messages < BEYOND_LIMIT


def test_runs_of_jobs_end_in_every_way_and_leave_nothing() -> None:
    load = JobLoad(20, 40, QUIET)
    figures = asyncio.run(load.run())
    assert missed(figures) == []
    assert load.states[TurnState.DONE] > load.states[TurnState.FAILED] > 0
    assert load.samples[-1].runs >= 40 and load.edits > 10
    assert "18 MB an hour" in render_svg("runs", load.curves(), "runs")


@pytest.mark.long
def test_days_of_chats_and_runs_are_lived_measured_saved_and_forgotten() -> None:
    months = Months(QUIET, share=0.02, days=2, size=ProbeSize(1, 1, 4))
    figures = {figure.name: figure for figure in asyncio.run(months.run())}
    beyond = figures["… database beyond the bytes of the messages"]
    whole = figures["… backups, made while it ran, that were not whole"]
    assert (months.failed, whole.value, beyond.limit) == (0, 0, BEYOND_LIMIT)
    assert [day.day for day in months.days] == [1, 2]
    assert months.days[-1].messages > 300
    assert months.kept[-1] <= max(months.kept)


def test_a_server_that_dies_at_every_call_is_started_by_the_rule_only() -> None:
    soak = DyingServer(8, QUIET, large=16 << 20, kills=False)
    figures = asyncio.run(soak.run())
    assert missed(figures) == []
    assert len(soak.starts) >= 3


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
    slots = Slots(jobs, spans, QUIET, seed=4, trouble=4)
    figures = asyncio.run(slots.run())
    assert missed(figures) == []
    assert slots.counts["kills"]
    assert slots.counts["stalls"]
    assert slots.counts["jumps back"]
    assert slots.counts["jumps forward"]


def test_the_second_computation_knows_both_edges() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    spring, autumn = EDGES[1], EDGES[2]
    assert daily_instants(berlin, 2, 30, *spring) == [spring[0] + 5 * HOUR], "the end of the gap"
    assert daily_instants(berlin, 2, 30, *autumn) == [autumn[0] + 4.5 * HOUR], "the first of the two"


def test_a_flood_of_broken_updates_breaks_nothing_and_lets_nobody_in() -> None:
    figures = asyncio.run(flood(1000, QUIET))
    assert missed(figures) == []
    assert figures[2].value > 20  # the allowed person's own still come through
