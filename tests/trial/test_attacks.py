"""Short forms of the attacks of `./dev chaos`; more with `--long`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import pytest

from talaria.workspace.sandbox.command import SandboxKind
from trial.attacks import schema
from trial.attacks.addresses import AddressRun
from trial.attacks.attacks import all_attacks
from trial.attacks.bait import adopting, end_descendant, running_processes
from trial.attacks.escapes import family_names
from trial.attacks.fuzz import HttpFuzzRun
from trial.attacks.hostile import HostileRun
from trial.attacks.proxy_attacks import ProxyAttackRun, all_proxy_attacks
from trial.attacks.sandbox import BACKENDS, SandboxRun, Setting, why_not
from trial.attacks.webhooks import WebhookRun
from trial.report import Progress, missed

QUIET = Progress(is_quiet=True)
_CHOSEN = (
    "chat: event-of-values, 3 MB",
    "tools: 500 calls in one answer",
    "client: 400 messages to one chat at once",
    "telegram: a message of 4,000 brackets",
)
_MORE = (
    "responses: event-of-members, 3 MB",
    "messages: call-arguments, 3 MB",
    "tools: 100 search_files",
    "client: 300 logins without a body",
    "client: a chat completion of 500,000 messages",
)


@pytest.mark.parametrize(
    "chosen", [_CHOSEN, pytest.param(_MORE, marks=pytest.mark.long)], ids=["few", "more"]
)
def test_attacks_end_with_a_clear_error_and_cost_the_others_nothing(chosen: tuple[str, ...]) -> None:
    attacks = [attack for attack in all_attacks() if attack.name in chosen]
    assert len(attacks) == len(chosen)
    run = HostileRun(attacks, QUIET, rest=0.5)
    figures = asyncio.run(run.run())
    # Times are judged by the long run, on a machine that does nothing else.
    assert missed(one for one in figures if one.unit != "ms" and "slower than" not in one.name) == []


def test_there_are_at_least_sixty_attacks_of_all_kinds_on_all_wire_formats() -> None:
    names = [attack.name for attack in all_attacks()]
    assert len(names) == len(set(names)) >= 60
    kinds = {name.partition(":")[0] for name in names}
    assert kinds == {"chat", "responses", "messages", "tools", "client", "telegram"}


@pytest.mark.parametrize("count", [200, pytest.param(500, marks=pytest.mark.long)])
def test_fuzzed_requests_and_silent_connections_fail_no_turn(count: int) -> None:
    fuzz = HttpFuzzRun(count, count // 5, 4, QUIET)
    assert missed(asyncio.run(fuzz.run())) == []
    assert fuzz.turns["done"] > count / 25
    assert len(fuzz.statuses) > 8, fuzz.statuses
    assert fuzz.own_turns > 3  # so callers who may start turns do


def test_wrong_calls_become_no_turn_and_genuine_ones_become_one() -> None:
    run = WebhookRun(80, QUIET)
    assert missed(asyncio.run(run.run())) == []
    assert len(run.ways) == 10


@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(schema.why_not()), reason=schema.why_not())
def test_schemathesis_finds_no_undocumented_answer_and_no_server_error() -> None:
    figures = asyncio.run(schema.SchemaRun(1, "fuzzing").run())
    assert missed(figures) == []
    assert figures[1].value > 30


def test_no_address_inside_is_ever_connected_to() -> None:
    run = AddressRun(200, QUIET)
    assert missed(asyncio.run(run.run())) == []
    assert run.tried >= 200
    assert run.public  # the answers in between were taken, so the forms do get as far as the dialer


def test_the_long_run_has_at_least_500_forms_of_every_kind() -> None:
    cases = AddressRun(500, QUIET).cases()
    assert len({*cases}) >= 500
    assert {way for way, _ in cases} == {"connect", "get", "fetch", "redirect"}


def test_attacks_on_the_proxy_leave_it_working() -> None:
    run = ProxyAttackRun(all_proxy_attacks(noise=10), QUIET)
    assert missed(asyncio.run(run.run())) == []


@pytest.mark.parametrize("backend", [pytest.param(one, marks=pytest.mark.long) for one in BACKENDS])
def test_hostile_commands_reach_nothing_outside_each_sandbox(backend: SandboxKind) -> None:
    if reason := asyncio.run(why_not(backend)):
        pytest.skip(reason)
    attack(backend)


def test_hostile_commands_reach_nothing_outside() -> None:
    reasons = {backend: asyncio.run(why_not(backend)) for backend in BACKENDS}
    working = [backend for backend, reason in reasons.items() if not reason]
    if not working:
        pytest.skip(str(reasons))
    attack(working[0])


def attack(backend: SandboxKind) -> None:
    """Run one hostile command of each family, and judge what it reached."""
    setting = Setting(backend, is_root=os.geteuid() == 0)
    run = SandboxRun(len(family_names()), QUIET, settings=(setting,))
    assert missed(asyncio.run(run.run())) == []
    (outcome,) = run.outcomes
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
