"""A twentieth of `./dev chaos --only sandbox`: hostile commands in each sandbox, through a real gateway."""

from __future__ import annotations

import asyncio

import pytest

from chaos.escapes import family_names
from chaos.sandbox import Holes, SandboxRun, Setting, settings_here, why_not
from soak.report import Progress

QUIET = Progress(is_quiet=True)


@pytest.mark.parametrize("setting", settings_here()[:2], ids=lambda setting: setting.name)
def test_hostile_commands_reach_nothing_outside(setting: Setting) -> None:
    if reason := why_not():
        pytest.skip(reason)
    run = SandboxRun(len(family_names()), QUIET, settings=(setting,))
    figures = asyncio.run(run.run())
    assert [figure.name for figure in figures if not figure.is_reached] == [], run.evidence
    (outcome,) = run.outcomes
    assert isinstance(outcome, Holes)
    assert set(outcome.families) == {*family_names()}
