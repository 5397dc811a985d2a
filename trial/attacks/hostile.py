"""Attacks on a running gateway while other people chat with it: hostile models, tools, clients and chats.

The gateway, the bystanders, their scripted model and the hostile model run in processes of their own. The
attackers run here. Each attack must end with a clear error while the bystanders' turns
stay quick, no lease is lost, and memory and descriptors stay within their bounds.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.hostile_answers import hostile_answers
from talaria.testing.telegram_server import TelegramServer
from trial.attacks.bystander import CALM, CHATS
from trial.measure import descriptors, left_over, memory, most_memory, percentile
from trial.report import Check, Curve, Figure, Progress, none_of, render_table

REST_SECONDS = 5.0
_MOST_SECONDS = 90.0  # for one attack
_SETTLE_SECONDS = 0.3
_SLACK_DESCRIPTORS = 8  # connection pools keep some connections open
_MOST_RSS = 400e6
PERSON = 4711
WIRES = {"chat": "openai-chat", "responses": "openai-responses", "messages": "anthropic-messages"}
_LOST = "lost the lease"


@dataclass(frozen=True, slots=True)
class Attack:
    """`run` carries the attack out and returns how it ended, in words; it raises `Unclear` otherwise."""

    name: str
    run: Callable[[Stage], Awaitable[str]]


def provider(wire: str, name: str) -> str:
    """Return the name of the provider that plays this hostile answer."""
    return f"{wire}-{name}"


class Unclear(Exception):
    """An attack did not end with a clear error."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attack and its effect on the others. `p99` is of the bystanders' turns that overlap with it."""

    name: str
    ending: str
    is_clear: bool
    seconds: float
    turns: int
    failed: int
    p99: float
    rss: int


@dataclass(slots=True)
class Stage:
    """The gateway under attack, and what attackers need to know."""

    gateway: GatewayProcess
    url: str
    token: str
    telegram: TelegramServer
    samples: list[tuple[float, float, str]] = field(default_factory=list)
    rss: int = 0

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def turn(self, chat: str, text: str, model: str = "") -> dict[str, Any]:
        """Send a message and wait until its turn has ended. Return the turn."""
        body = {"text": text} | ({"model": model} if model else {})
        taken = await self.gateway.call("POST", f"/api/sessions/{chat}/messages", json=body)
        return await self.gateway.ended_turn(taken["turn_id"])


def clear_error(turn: dict[str, Any]) -> str:
    """Return the error of a turn that must have failed. Raises `Unclear` if it has not, or has no hint."""
    error = turn.get("error") or {}
    if turn["state"] != "failed" or not error.get("message") or not error.get("hint"):
        raise Unclear(f"{turn['state']}: {error or turn.get('reply')}"[:300])
    return f"{error['message']} {error['hint']}"


class HostileRun:
    """Runs the attacks one after the other against one gateway."""

    def __init__(self, attacks: Sequence[Attack], progress: Progress, rest: float = REST_SECONDS) -> None:
        self._attacks = attacks
        self._progress = progress
        self._rest = rest
        self.outcomes: list[Attempt] = []
        self.rest_p99 = 0.0
        self.evidence: list[str] = []

    async def run(self) -> list[Figure]:
        async with open_stage() as stage:
            await asyncio.sleep(1.0)  # everybody is warm
            begin = time.monotonic()
            await asyncio.sleep(self._rest)
            self.rest_p99 = percentile(_overlapping(stage.samples, begin, time.monotonic()), 0.99)
            before = descriptors(stage.gateway.pid)
            for n, attack in enumerate(self._attacks, 1):
                self.outcomes.append(await self._attempt(stage, attack))
                self._progress.tell("attacks", n, len(self._attacks), f" ({attack.name})")
            allowed = before + _SLACK_DESCRIPTORS  # idle connections to models are kept for a while
            left = await left_over(lambda: descriptors(stage.gateway.pid), allowed, 30.0)
            log = stage.gateway.log.read_text(errors="replace")
            lost = log.count(_LOST)
            if lost:
                self.evidence += [line for line in log.splitlines() if _LOST in line][:5]
            peak = most_memory(stage.gateway.pid)
        return self._figures(lost, left, peak)

    async def _attempt(self, stage: Stage, attack: Attack) -> Attempt:
        begin, is_clear = time.monotonic(), True
        stage.rss = 0
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                ending = await attack.run(stage)
        except TimeoutError:
            ending, is_clear = f"it did not end within {_MOST_SECONDS:g} s", False
        except Exception as error:
            ending, is_clear = f"{type(error).__name__}: {error}", False
        await asyncio.sleep(_SETTLE_SECONDS)
        end = time.monotonic()
        seen = _overlapping(stage.samples, begin, end)
        failed = [state for at, took, state in stage.samples if at + took >= begin and state != "done"]
        outcome = Attempt(
            attack.name,
            ending,
            is_clear,
            end - begin,
            len(seen),
            len(failed),
            percentile(seen, 0.99),
            stage.rss,
        )
        if not is_clear or failed:
            self.evidence.append(f"{attack.name}: {ending} {set(failed) or ''}")
        return outcome

    def _figures(self, lost: int, left: int, peak: int) -> list[Figure]:
        worst = max(self.outcomes, key=lambda one: one.p99, default=None)
        allowed = max(3 * self.rest_p99, 0.05) * 1000
        slow = sum(one.p99 * 1000 > allowed for one in self.outcomes)
        count = len(self.outcomes)
        unclear = [f"{one.name}: {one.ending}" for one in self.outcomes if not one.is_clear]
        failed = sum(one.failed for one in self.outcomes)
        return [
            none_of(f"{count} attacks: not ended with a clear error", unclear),
            Figure("… turns of bystanders that failed", failed, "", 0, Check.LOST, tuple(self.evidence)),
            Figure("… p99 of a bystander's turn at rest", self.rest_p99 * 1000, "ms"),
            Figure("… its worst p99 during one attack", worst.p99 * 1000 if worst else 0, "ms", allowed),
            Figure("… attacks in which it was slower than allowed", slow, "", 0),
            Figure("… leases lost", lost, "", 0, found=tuple(self.evidence)),
            Figure("… highest memory of the gateway", peak / 1e6, "MB", _MOST_RSS / 1e6, Check.MEMORY),
            Figure("… descriptors left open", left, "", 0, Check.LEFTOVERS),
        ]


# -- the stage --------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    """Start every process. Leaving ends them all."""
    with tempfile.TemporaryDirectory(prefix="talaria-hostile-") as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        async with (
            _child("talaria.testing.model_server", "--port", "0", "--fast") as calm,
            _child("talaria.testing.model_server", "--port", "0", "--fast") as hostile,
            TelegramServer() as telegram,
        ):
            telegram.platform.private(telegram.person(PERSON))
            (home / "config.toml").write_text(_config(_address(calm[1]), _address(hostile[1]), telegram))
            async with GatewayProcess(home, Path(folder) / "log", {"LOG__LEVEL": "warning"}) as gateway:
                await gateway.start()
                await gateway.call("GET", "/api/status")
                stage = Stage(gateway, gateway.url, (home / "http.token").read_text().strip(), telegram)
                async with _child(
                    "trial.attacks.bystander",
                    stage.url,
                    stage.token,
                    str(CHATS),
                    f"{CALM}/scripted",
                    first_line=False,
                ) as bystander:
                    watch = asyncio.gather(_collect(bystander[0], stage), _sample_rss(stage))
                    try:
                        yield stage
                    finally:
                        watch.cancel()
                        with suppress(asyncio.CancelledError):
                            await watch


def _config(calm: str, hostile: str, telegram: TelegramServer) -> str:
    providers = "\n".join(
        f'[providers.{provider(wire, name)}]\napi = "{api}"\nbase_url = "{hostile}"\nmax_retries = 1\n'
        'silence = "5s"\nfirst_token = "10s"'
        for wire, api in WIRES.items()
        for name in hostile_answers(api)
    )
    return f"""
[model]
provider = "scripted"
name = "scripted"
[providers.scripted]
base_url = "{hostile}"
[providers.{CALM}]
base_url = "{calm}"
{providers}
[limits]
request_head = "2s"
request_body = "3s"
slow_reader = "3s"
[channels.telegram]
token = "{telegram.token}"
api_url = "{telegram.url}"
allowed = [{PERSON}]
"""


@asynccontextmanager
async def _child(
    module: str, *arguments: str, first_line: bool = True
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run a module in its own process, and read the first line that it prints."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, cwd=Path(__file__).parents[2],
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        yield child, (await child.stdout.readline()).decode() if first_line else ""
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _address(greeting: str) -> str:
    """Return the address in the first line of a fake server."""
    return next(word for word in greeting.split() if word.startswith("http")).rstrip(";,.")


async def _collect(bystander: asyncio.subprocess.Process, stage: Stage) -> None:
    assert bystander.stdout is not None
    while line := await bystander.stdout.readline():
        begin, seconds, state = line.decode().split()
        stage.samples.append((float(begin), float(seconds), state))


async def _sample_rss(stage: Stage) -> None:
    while True:
        with suppress(OSError):
            stage.rss = max(stage.rss, memory(stage.gateway.pid))
        await asyncio.sleep(0.05)


# -- measuring --------------------------------------------------------------------------------------------


def _overlapping(samples: Sequence[tuple[float, float, str]], begin: float, end: float) -> list[float]:
    return [took for at, took, _ in samples if at < end and at + took > begin]


# -- the page ---------------------------------------------------------------------------------------------


def render_attacks(outcomes: Sequence[Attempt]) -> str:
    rows = (
        (one.name, one.ending[:160].replace("|", "/"), f"{one.seconds:.1f}", f"{one.p99 * 1000:.0f} ms",
         f"{one.rss / 1e6:.0f} MB")
        for one in outcomes
    )  # fmt: skip
    return render_table(["attack", "ended with", "seconds", "p99 of the others", "memory"], rows)


def curves(outcomes: Sequence[Attempt]) -> list[Curve]:
    p99 = [(n, one.p99 * 1000) for n, one in enumerate(outcomes, 1)]
    resident = [(n, one.rss / 1e6) for n, one in enumerate(outcomes, 1)]
    return [
        Curve("p99 of a bystander's turn during the attack", "ms", "#c0392b", p99),
        Curve("memory of the gateway", "MB", "#2c6fbb", resident),
    ]
