"""A hundredth of `./dev chaos --only starts`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.start_kills import SUBREAPER, StartKillRun
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.choice import prove
from talaria.workspace.sandbox.command import ProcessLimits, SandboxCommand, hand_over, shell
from talaria.workspace.sandbox.group import children
from talaria.workspace.sandbox.process import run as run_command


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
    assert [figure.name for figure in await run.run() if not figure.is_reached] == [], run.left
