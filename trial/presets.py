"""The table of long runs: for each its load, its faults, its checks, its count and its page."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.planting import Cluster, Kills, Pauses, planted_faults
from trial import loop_disk
from trial.attacks import sandbox, schema
from trial.attacks.addresses import AddressRun
from trial.attacks.attacks import all_attacks
from trial.attacks.fuzz import HttpFuzzRun
from trial.attacks.hostile import HostileRun, render_attacks
from trial.attacks.hostile import curves as attack_curves
from trial.attacks.proxy_attacks import ProxyAttackRun, all_proxy_attacks
from trial.attacks.webhooks import WebhookRun
from trial.faults import Load, Trial
from trial.in_process.endurance import Endurance
from trial.in_process.failures import Failures
from trial.in_process.interleavings import explore_pool, explore_turns, walk_the_machine
from trial.in_process.job_load import JobLoad
from trial.in_process.long_tests import run_long_tests
from trial.in_process.mcp_servers import DyingServer
from trial.in_process.months import Months
from trial.in_process.prefix import Prefixes
from trial.in_process.reservations import Reservations
from trial.in_process.resumes import Resumes
from trial.in_process.slots import run_seasons
from trial.in_process.telegram import flood
from trial.loads.chat_platform import SHARED, ChatPlatform, curves
from trial.loads.cut_calls import CutCalls
from trial.loads.delegates import DelegateTrees
from trial.loads.disk import DELETED, FAULTS, FROZEN, DiskRun
from trial.loads.http import HttpChats
from trial.loads.jobs import REMINDERS, Jobs
from trial.loads.nonces import explore_many
from trial.loads.pauses import PauseRun
from trial.loads.retries import Retries, has_node
from trial.loads.shells import Shells
from trial.loads.start_kills import StartKillRun
from trial.loads.stops import CancelRun, DrainRun, send_poison
from trial.report import Check, Fault, Figure, Order, Outcome, add_up, render_table
from trial.world import Surroundings

CHAOS, LIMITS, COMMANDS, SOAK = "chaos.md", "limits.md", "hostile-commands.md", "soak.md"
KILLS = (Fault.KILL,)
OF_CLUSTER = (Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.STOP, Fault.DATABASE)
LOST, TWICE, LEFT, MEMORY = Check.LOST, Check.DUPLICATED, Check.LEFTOVERS, Check.MEMORY
KEPT = (LOST, TWICE, Check.ORDER, Check.EFFECTS)
_QUICK = 20

LOADS: dict[str, tuple[str, Callable[[], Load]]] = {
    "chat": ("people on Telegram: messages, tools, edits, buttons, /steer and /stop", ChatPlatform),
    "discord": ("the same people on Discord", lambda: ChatPlatform(platform="discord")),
    "slack": ("the same people on Slack, by Socket Mode", lambda: ChatPlatform(platform="slack")),
    "http": ("people over HTTP at every gateway, messages that kill it, and strangers", HttpChats),
    "delegates": ("people over HTTP whose messages hand tasks to trees of delegates", DelegateTrees),
    "jobs": ("jobs that come due: with checks, failing, silent", Jobs),
    "reminders": ("reminders that come due", lambda: Jobs(REMINDERS)),
    "shells": ("commands and background processes that wake their chats", Shells),
    "retries": ("openai-python, openai-node, the AI SDK and a plain client, which retry", Retries),
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A row. `quick` is its count with --quick: a twentieth, if it is not given."""

    name: str
    load: str
    faults: tuple[Fault, ...]
    checks: tuple[Check, ...]
    count: int
    run: Callable[[Order], Outcome | list[Figure] | Awaitable[Outcome | list[Figure]]]
    page: str
    quick: int = 0
    why_not: Callable[[], Awaitable[str]] | None = None

    def count_of(self, *, is_quick: bool) -> int:
        return (self.quick or max(1, self.count // _QUICK)) if is_quick else self.count


# -- runs of real gateways --------------------------------------------------------------------------------


def trial(loads: Sequence[Load], order: Order, around: Surroundings | None = None) -> Trial:
    return Trial(loads, order.faults, order.count, order.progress, order.seed, around=around)


async def kills(order: Order) -> Outcome:
    """Kill gateways on several homes at once, half of which poll while the others use a webhook."""
    loads = [ChatPlatform() for _ in range(order.workers)]
    shares = [order.count // order.workers + (n < order.count % order.workers) for n in range(order.workers)]
    runs = [
        Trial(
            [load], KILLS, share, order.progress, order.seed * 100 + n,
            around=Surroundings(has_webhook=n % 2 == 1),
        )
        for n, (load, share) in enumerate(zip(loads, shares, strict=True))
        if share
    ]  # fmt: skip
    found = await asyncio.gather(*(run.run() for run in runs))
    return Outcome(add_up(found), curves(loads), "kills", picture="chaos.svg")


def cluster_loads(chats: int = 12, poisons: int = 1) -> list[Load]:
    return [HttpChats(chats, poisons), ChatPlatform(SHARED), Jobs(rate=0.5)]


def cluster_around(source: Path | None = None) -> Surroundings:
    return Surroundings(gateways=3, is_postgres=True, source=source)


async def cluster(order: Order) -> Outcome:
    loads = cluster_loads(poisons=max(1, order.count // 60))
    found = await trial(loads, order, cluster_around()).run()
    names = "; ".join(
        fault.name for fault in planted_faults() if isinstance(fault.caught_by, Kills | Pauses | Cluster)
    )
    planted = f"These planted faults must be caught here (`./dev chaos --store postgres --mutants`): {names}."
    return Outcome(found, more=planted)


async def reminders(order: Order) -> list[Figure]:
    load = Jobs(REMINDERS, rate=4.0, at_least=200 if order.count >= 20 else 8 * order.count)
    return await trial([load], order, Surroundings(has_model=False)).run()


# -- attacks ----------------------------------------------------------------------------------------------


async def hostile(order: Order) -> Outcome:
    run = HostileRun(all_attacks()[:: max(1, 350 // order.count)], order.progress)
    figures = await run.run()
    slowest = sorted(run.outcomes, key=lambda one: -one.p99)[:12]
    more = f"### The slowest attacks for others\n\n{render_attacks(slowest)}\n\n"
    more += f"### All attacks\n\n{render_attacks(run.outcomes)}"
    return Outcome(figures, attack_curves(run.outcomes), "attacks", more, "limits.svg")


async def commands(order: Order) -> Outcome:
    run = sandbox.SandboxRun(order.count, order.progress, order.seed)
    figures = await run.run()
    families = dict.fromkeys(name for each in run.outcomes for name in sorted(each.families))
    heads = ["family", *(each.setting.name for each in run.outcomes)]
    rows = ([name, *(each.families[name] for each in run.outcomes)] for name in families)
    return Outcome(figures, more=f"### Commands by family\n\n{render_table(heads, rows)}")


async def disk(order: Order) -> list[Figure]:
    is_quick = order.is_quick
    return await DiskRun(
        (FROZEN, DELETED) if is_quick else FAULTS, order.progress, 3.0 if is_quick else 5.0
    ).run()


async def _lack_of_schema() -> str:
    return schema.why_not()


async def _lack_of_disk() -> str:
    return loop_disk.why_not()


# -- loads inside this process ----------------------------------------------------------------------------


async def memory(order: Order) -> Outcome:
    samples = 20 if order.is_quick else 100
    run = Endurance(order.count, order.count // 10, order.progress, leak=order.leak, samples=samples)
    figures = await run.run()
    return Outcome(figures, run.curves(), picture="soak.svg")


async def months(order: Order) -> Outcome:
    share = 0.05 if order.is_quick else order.share
    run = Months(order.progress, share=share)
    figures = await run.run()
    note = "" if share >= 1 else f"This run had {share:.0%} of each day's load."
    return Outcome(figures, run.curves(), "days", note, "soak-months.svg")


async def job_runs(order: Order) -> Outcome:
    run = JobLoad(order.count // 100, order.count, order.progress, minutes=order.minutes)
    figures = await run.run()
    note = "" if math.isinf(order.minutes) else f"This run was ended after {order.minutes:g} min."
    return Outcome(figures, run.curves(), "runs", note, "soak-runs.svg")


async def money(order: Order) -> list[Figure]:
    reserved = await Reservations(order.count, order.progress).run()
    return reserved + await CutCalls(order.count, order.progress, seed=order.seed).run()


# fmt: off
PRESETS = {row.name: row for row in (
    # name, load, faults, checks, count, run, page
    Preset("kills", "chat", KILLS, KEPT, 500, kills, CHAOS),
    Preset("cluster", "http, chat, jobs", OF_CLUSTER, KEPT, 300, cluster, CHAOS),
    Preset("processes", "shells", (Fault.KILL, Fault.SHIM), (*KEPT, LEFT), 100,
           lambda order: trial([Shells()], order).run(), CHAOS),
    Preset("starts", "starts of sandboxes", KILLS, (LEFT,), 3000,
           lambda order: StartKillRun(order.count, order.seed).run(), CHAOS),
    Preset("jobs", "jobs", KILLS, KEPT, 200, lambda order: trial([Jobs(rate=6.0)], order).run(), CHAOS),
    Preset("reminders", "reminders", KILLS, KEPT, 20, reminders, CHAOS, quick=20),
    Preset("retries", "retries", (Fault.KILL, Fault.CUT), KEPT, 1000,
           lambda order: trial([Retries(with_node=has_node())], order).run(), CHAOS),
    Preset("nonces", "a platform in memory", KILLS, (LOST, TWICE), 500,
           lambda order: explore_many(order.count, order.progress), CHAOS),
    Preset("pauses", "four processes on one store", (Fault.PAUSE,), (LOST, Check.ORDER), 500,
           lambda order: PauseRun(order.count, order.progress, order.seed).run(), CHAOS),
    Preset("cancels", "turns that are cancelled", (), (LEFT,), 2000,
           lambda order: CancelRun(order.count, order.progress, order.seed).run(), CHAOS),
    Preset("sigterm", "long turns", (Fault.STOP,), (LOST,), 50,
           lambda order: DrainRun(order.count, 3.0 if order.is_quick else 10.0).run(), CHAOS, quick=50),
    Preset("poison", "a message that kills", KILLS, (LOST,), 1, lambda order: send_poison(), CHAOS),

    Preset("hostile", "attacks while others chat", (), (LOST, LEFT, MEMORY), 350, hostile, LIMITS),
    Preset("fuzz", "fuzzed requests", (), (LEFT, MEMORY), 10_000,
           lambda order: HttpFuzzRun(order.count, order.count // 5, 16, order.progress, order.seed).run(),
           LIMITS),
    Preset("webhooks", "wrong webhook calls", (), (), 1000,
           lambda order: WebhookRun(order.count, order.progress, order.seed).run(), LIMITS),
    Preset("schema", "requests from the schema", (), (), 60,
           lambda order: schema.SchemaRun(order.count).run(), LIMITS, why_not=_lack_of_schema),
    Preset("addresses", "addresses that are not public", (), (), 500,
           lambda order: AddressRun(order.count, order.progress, order.seed).run(), LIMITS),
    Preset("proxy", "attacks on the proxy", (), (LEFT, MEMORY), 300,
           lambda order: ProxyAttackRun(all_proxy_attacks(order.count), order.progress).run(), LIMITS),
    Preset("disk", "chats on a broken disk", (Fault.DISK,), (LOST,), 5, disk, LIMITS, why_not=_lack_of_disk),
    Preset("sandbox", "hostile commands", (), (MEMORY,), 1000, commands, COMMANDS, why_not=sandbox.why_not),

    Preset("tests", "the long tests", (), (), 1, lambda order: [run_long_tests()], SOAK),
    Preset("seeds", "interleavings", KILLS, (), 20_000,
           lambda order: [*explore_pool(order.count, order.progress),
                          *explore_turns(order.count, order.progress)],
           SOAK),
    Preset("machine", "the pool's state machine", (), (), 10_000,
           lambda order: [walk_the_machine(order.count, order.progress)], SOAK),
    Preset("prefix", "prefix bytes", (), (), 200,
           lambda order: Prefixes(order.count, 25 if order.is_quick else 50, order.progress).run(), SOAK,
           quick=20),
    Preset("resumes", "shells whose sessions are evicted", (), (LEFT,), 1000,
           lambda order: Resumes(order.count, max(2, order.count // 20), order.progress).run(), SOAK),
    Preset("failures", "failing models", (), (MEMORY,), 1000,
           lambda order: Failures(order.count, order.progress).run(), SOAK),
    Preset("money", "model calls under a cap", (Fault.KILL, Fault.STOP, Fault.CUT), (Check.MONEY,), 10_000,
           money, SOAK),
    Preset("telegram", "broken updates of Telegram", (), (MEMORY,), 10_000,
           lambda order: flood(order.count, order.progress), SOAK),
    Preset("slots", "scheduled times", (Fault.KILL, Fault.PAUSE, Fault.CLOCK), (LOST, TWICE), 200,
           lambda order: run_seasons(order.count, order.progress), SOAK),
    Preset("memory", "turns in many sessions", (), (MEMORY, LEFT), 100_000, memory, SOAK),
    Preset("months", "two months of a heavy user", (Fault.CLOCK,), (LOST, MEMORY), 1, months, SOAK),
    Preset("runs", "runs of many jobs", (Fault.CLOCK,), (MEMORY, LEFT), 200_000, job_runs, SOAK),
    Preset("mcp", "an MCP server that dies at every call", KILLS, (LEFT, MEMORY), 1000,
           lambda order: DyingServer(order.count, order.progress).run(), SOAK),
)}
