"""A twentieth of `./dev chaos --only sandbox`: hostile commands in each sandbox, through a real gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import pytest

from chaos.bait import adopting, end_descendant, running_processes
from chaos.escapes import family_names
from chaos.sandbox import BACKENDS, Holes, SandboxRun, Setting, why_not
from soak.report import Progress
from talaria.workspace.sandbox.command import SandboxKind

QUIET = Progress(is_quiet=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hostile_commands_reach_nothing_outside(backend: SandboxKind) -> None:
    if reason := asyncio.run(why_not(backend)):
        pytest.skip(reason)
    setting = Setting(backend, is_root=os.geteuid() == 0)
    run = SandboxRun(len(family_names()), QUIET, settings=(setting,))
    figures = asyncio.run(run.run())
    assert [figure.name for figure in figures if not figure.is_reached] == [], run.evidence
    (outcome,) = run.outcomes
    assert isinstance(outcome, Holes)
    assert set(outcome.families) == {*family_names()}


def orphan() -> int:
    """Start a process whose parent has ended, and return its id."""
    start = ["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]
    return int(subprocess.run(start, capture_output=True, check=True).stdout)


def test_only_processes_that_the_run_has_started_are_ended() -> None:
    outside = orphan()
    try:
        with adopting():
            inside = orphan()
            for pid in (outside, inside):
                end_descendant(running_processes()[pid])
            assert os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1]) == -signal.SIGKILL
        assert outside in running_processes()
    finally:
        os.kill(outside, signal.SIGKILL)
