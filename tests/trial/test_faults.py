"""A hundredth of the runs of `./dev chaos` on real gateways, and with `--long` a twentieth."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mutants.blocks import SOURCE
from talaria.core.failpoints import Failpoint
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.choice import prove
from talaria.workspace.sandbox.command import ProcessLimits, SandboxCommand, hand_over, shell
from talaria.workspace.sandbox.group import children
from talaria.workspace.sandbox.process import run as run_command
from trial.__main__ import run_row
from trial.faults import Load, Trial
from trial.loads.chat_platform import ChatPlatform
from trial.loads.disk import DELETED, FROZEN, DiskResults, DiskRun
from trial.loads.nonces import explore_many
from trial.loads.pauses import PauseRun
from trial.loads.retries import Retries
from trial.loads.start_kills import SUBREAPER, StartKillRun
from trial.loads.stops import CancelRun, DrainRun
from trial.loop_disk import why_not
from trial.presets import KILLS, OF_CLUSTER, PRESETS, cluster_around, cluster_loads
from trial.report import Fault, Order, Progress, missed

QUIET = Progress(is_quiet=True)


def short_and_long(short: int, long: int) -> pytest.MarkDecorator:
    """Run a test with a small count of faults, and with `--long` also with a larger one."""
    return pytest.mark.parametrize("count", [short, pytest.param(long, marks=pytest.mark.long)])


def play(name: str, count: int) -> dict[str, float]:
    """Run a row of the table, and return its figures, all of which are reached."""
    outcome = run_row(PRESETS[name], Order(count, QUIET, faults=PRESETS[name].faults))
    assert missed(outcome.figures) == []
    return {figure.name.removeprefix("… "): figure.value for figure in outcome.figures}


def strike(loads: list[Load], faults: tuple[Fault, ...], count: int, **more: object) -> Trial:
    trial = Trial(loads, faults, count, QUIET, **more)  # type: ignore[arg-type]
    assert missed(asyncio.run(trial.run())) == []
    assert sum(trial.faults.values()) >= count
    return trial


@short_and_long(5, 15)
def test_kills_lose_nothing_double_nothing_unmarked_and_repeat_no_effect(count: int) -> None:
    figures = play("kills", count)
    assert figures["of them answered"] > count
    assert any(name.startswith("faults: kill at") and "random" not in name for name in figures)


@pytest.mark.parametrize("platform", ["discord", "slack"])
@short_and_long(2, 10)
def test_kills_on_other_chat_platforms_lose_and_repeat_nothing(count: int, platform: str) -> None:
    load = ChatPlatform(platform=platform)
    strike([load], KILLS, count)
    assert load.users.report().answered > count


@short_and_long(2, 5)
def test_kills_beside_shells_and_processes_tell_every_end_once_and_leave_nothing(count: int) -> None:
    assert play("processes", count)["ends reported"] >= count


def test_kills_beside_jobs_lose_no_run_and_tell_each_once() -> None:
    assert play("jobs", 2)["jobs and reminders"] >= 2


@short_and_long(1, 3)
def test_kills_of_a_gateway_without_a_model_lose_no_reminder_and_delay_none(count: int) -> None:
    assert play("reminders", count)["jobs and reminders"] >= 8 * count


@short_and_long(12, 50)
def test_clients_that_retry_repeat_no_effect_over_cuts_timeouts_and_kills(count: int) -> None:
    load = Retries()
    trial = strike([load], (*KILLS, Fault.CUT), count)
    assert count < 50 or any(name.startswith("kill") for name in trial.faults)
    assert load.requests > load.asked.total() + count / 2, "hardly a request was sent again"


@short_and_long(6, 15)
def test_faults_of_three_gateways_lose_nothing_double_nothing_and_keep_the_order(count: int) -> None:
    loads = cluster_loads(chats=4)
    try:
        strike(loads, OF_CLUSTER, count, seed=4, around=cluster_around())
    except LookupError as reason:
        pytest.skip(f"no PostgreSQL: {reason}")


def test_loads_that_no_row_combines_meet_a_fault_together() -> None:
    """A load is judged by itself, whatever else happens at its gateway."""
    chat, retries = ChatPlatform(), Retries(clients=4)
    strike([chat, retries], (Fault.STOP,), 2)
    assert chat.users.report().answered > 0
    assert retries.answers


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
    assert asyncio.run(drain.run())[0].is_reached
    assert drain.resumed >= 33, "those that hang end in the next life only"


def test_a_message_that_kills_the_process_is_tried_three_times_and_told() -> None:
    assert play("poison", 1)["a message that kills the gateway: attempts"] == 3


def test_a_frozen_disk_and_a_deleted_database_are_named_and_lose_nothing() -> None:
    if reason := why_not():
        pytest.skip(reason)

    async def run() -> list[DiskResults]:
        runs = [DiskRun((fault,), QUIET, seconds=2.5) for fault in (FROZEN, DELETED)]
        await asyncio.gather(*(run.run() for run in runs))
        return [results for run in runs for results in run.results]

    for results in asyncio.run(run()):
        assert set(results.named) == {"/readyz", "/api/status", "log"}, results
        assert (results.lost, results.unsettled) == (0, 0), results
        assert results.accepted > 16


def test_every_labelled_point_is_reached_somewhere() -> None:
    code = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert [point for point in Failpoint if f"hit(Failpoint.{point.name})" not in code] == []


@pytest.fixture
async def sandbox() -> BubblewrapSandbox:
    found = BubblewrapSandbox()
    if reason := (await prove(found, Path("/nowhere"))).why_not:
        pytest.skip(reason)
    return found


@pytest.fixture
def subreaper() -> Iterator[None]:
    prctl = ctypes.CDLL(None).prctl
    prctl(SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(SUBREAPER, 0, 0, 0, 0)


@pytest.mark.usefixtures("subreaper")
async def test_a_gateway_that_inherits_processes_reaps_them(
    tmp_path: Path, sandbox: BubblewrapSandbox
) -> None:
    before = children()
    places = (tmp_path / "folder", tmp_path / "home", tmp_path / "tmp")
    for place in places:
        place.mkdir()
    hand_over(places)
    command = SandboxCommand(shell("exit 3"), *places)
    assert (await run_command(sandbox, command)).ending.code == 3
    ended = replace(command, argv=shell("sleep 1000"), limits=ProcessLimits(seconds=0.1))
    assert (await run_command(sandbox, ended)).ending.timed_out
    assert children() == before


@pytest.mark.usefixtures("sandbox")
async def test_a_kill_while_a_sandbox_starts_leaves_no_process() -> None:
    run = StartKillRun(36)
    assert missed(await run.run()) == []
