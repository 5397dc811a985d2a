"""A twentieth of `./dev chaos`, with real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from chaos.disk import DELETED, FROZEN, DiskResults, DiskRun
from chaos.fuzz import HttpFuzzRun
from chaos.job_kills import JobKillRun
from chaos.kills import RANDOM, KillRun
from chaos.loop_disk import why_not
from chaos.nonces import explore_many
from chaos.pauses import PauseRun
from chaos.processes import ProcessKillRun
from chaos.reminder_kills import ReminderKillRun
from chaos.retries import RetryRun
from chaos.stops import CancelRun, DrainRun, PoisonRun
from mutants.blocks import SOURCE
from soak.report import Figure, Progress
from talaria.core.failpoints import Failpoint

QUIET = Progress(is_quiet=True)


def missed(figures: list[Figure]) -> list[str]:
    return [figure.name for figure in figures if not figure.is_reached]


@pytest.mark.parametrize("name", ["chaos", "soak", "bench", "mutants"])
def test_a_long_run_starts_without_the_folder_of_tests_on_its_path(name: str) -> None:
    words = [sys.executable, "-m", name, "--help"]
    done = subprocess.run(words, cwd=SOURCE.parents[1], capture_output=True, check=False)
    assert done.stdout.startswith(f"usage: ./dev {name}".encode()), done.stderr


def test_kills_lose_nothing_double_nothing_unmarked_and_repeat_no_effect() -> None:
    results = asyncio.run(KillRun(15, QUIET, workers=2).run())
    assert results.is_good, (results.evidence, results)
    assert results.total == 15
    assert results.kills[RANDOM] < 15, "no labelled point was reached"
    assert results.report.answered > 15


def test_kills_beside_shells_and_processes_tell_every_end_once_and_leave_nothing() -> None:
    run = ProcessKillRun(5, QUIET)
    assert missed(asyncio.run(run.run())) == [], run.results
    assert run.results.kills.total() >= 5
    assert run.results.told.total() > 3


def test_kills_beside_jobs_lose_no_run_and_tell_each_once() -> None:
    run = JobKillRun(2, QUIET)
    assert missed(asyncio.run(run.run())) == [], run.results
    assert run.results.kills.total() >= 2
    assert len(run.results.made) > 3


def test_kills_of_a_gateway_without_a_model_lose_no_reminder_and_delay_none() -> None:
    run = ReminderKillRun(24, 3, QUIET)
    assert missed(asyncio.run(run.run())) == [], run.results
    assert run.results.kills.total() >= 3
    assert len(run.results.due) == 24


def test_clients_that_retry_repeat_no_effect_over_cuts_timeouts_and_kills() -> None:
    results = asyncio.run(RetryRun(50, QUIET).run())
    assert results.is_good, (results.evidence(), results.figures())
    assert results.faults["kills"] > 0
    assert results.requests > results.asked.total() + 25, "hardly a request was sent again"


def test_a_platform_that_takes_nonces_shows_every_reply_once() -> None:
    assert missed(asyncio.run(explore_many(25, QUIET))) == []


def test_processes_paused_past_their_lease_never_commit_at_once() -> None:
    pauses = PauseRun(24, QUIET)
    assert missed(asyncio.run(pauses.run())) == []
    assert pauses.total.refused > 0, "no stale commit was tried"
    assert pauses.takeovers > 0


def test_cancels_at_any_moment_leave_nothing_behind() -> None:
    cancels = CancelRun(100, QUIET)
    assert missed(asyncio.run(cancels.run())) == [], cancels.left
    assert cancels.ends["cancelled"] > 20


def test_sigterm_with_fifty_live_turns_is_over_in_time_and_loses_none() -> None:
    drain = DrainRun(50, deadline=3.0)
    figures = asyncio.run(drain.run())
    assert figures[0].is_reached, figures
    assert drain.resumed >= 33, "those that hang end in the next life only"


def test_a_message_that_kills_the_process_is_tried_three_times_and_told() -> None:
    poison = PoisonRun()
    assert missed(asyncio.run(poison.run())) == []
    assert poison.deaths == 3


def test_fuzzed_requests_and_silent_connections_fail_no_turn() -> None:
    fuzz = HttpFuzzRun(500, 100, 4, QUIET)
    assert missed(asyncio.run(fuzz.run())) == [], fuzz.evidence
    assert fuzz.turns["done"] > 20
    assert len(fuzz.statuses) > 8, fuzz.statuses
    assert fuzz.own_turns > 3  # so callers who may start turns do


def test_a_frozen_disk_and_a_deleted_database_are_named_and_lose_nothing() -> None:
    if reason := why_not():
        pytest.skip(reason)

    async def strike() -> list[DiskResults]:
        runs = [DiskRun((fault,), QUIET, seconds=2.5) for fault in (FROZEN, DELETED)]
        await asyncio.gather(*(run.run() for run in runs))
        return [results for run in runs for results in run.results]

    for results in asyncio.run(strike()):
        assert set(results.named) == {"/readyz", "/api/status", "log"}, results
        assert (results.lost, results.unsettled) == (0, 0), results
        assert results.accepted > 16


def test_every_labelled_point_is_reached_somewhere() -> None:
    code = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert [point for point in Failpoint if f"hit(Failpoint.{point.name})" not in code] == []
