"""The ways to catch a planted fault: a test, or a short run of gateways that have the faulty source."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mutants.edits import NotFound
from mutants.planting import Cluster, Commands, Kills, Pauses, PlantedFault, Retries, plant, planted_faults
from mutants.reach import RECORDS
from mutants.runs import run_tests, source_copy, sweep
from talaria.core.failpoints import Failpoint
from trial.attacks.sandbox import SandboxRun, Setting
from trial.faults import Load, Trial
from trial.loads.chat_platform import ChatPlatform
from trial.loads.pauses import PauseRun
from trial.loads.retries import Retries as RetryingClients
from trial.presets import OF_CLUSTER, cluster_around, cluster_loads
from trial.report import Fault, Figure, Progress
from trial.world import Surroundings

_KILLS = 8
_SEEDS = (1, 2, 3)
_RETRIED = (Fault.KILL, Fault.CUT)
_TEST_SECONDS = 600


class Caught(msgspec.Struct, frozen=True):
    """`is_caught` is None if the test that should catch the fault is skipped, or fails without it."""

    name: str
    is_caught: bool | None
    how: str

    def __str__(self) -> str:
        verdict = {True: "caught", False: "MISSED", None: "NOT MEASURED"}[self.is_caught]
        return f"{self.name}: {verdict} ({self.how})"


def run_planted(
    names: Sequence[str],
    tell: Callable[[str], None],
    *,
    is_resumed: bool = False,
    has_cluster: bool = False,
    record: Path = RECORDS / "planted.jsonl",
) -> int:
    """Try the planted faults whose name contains one of `names`, or all. Return the exit status.

    With `is_resumed`, faults that are in `record`, which the last run wrote, are not tried again. With
    `has_cluster`, faults that kills, pauses or a cluster show are to be shown by three gateways.
    """
    sweep()
    faults = on_cluster(planted_faults()) if has_cluster else planted_faults()
    wanted = [fault for fault in faults if not names or any(name in fault.name for name in names)]
    if not wanted:
        raise SystemExit(f"mutants: no planted fault has a name with {' or '.join(map(repr, names))}")
    record.parent.mkdir(exist_ok=True)
    if not is_resumed:
        record.unlink(missing_ok=True)
    lines = record.read_bytes().splitlines() if record.exists() else []
    tried = {one.name: one for one in (msgspec.json.decode(line, type=Caught) for line in lines)}
    waiting = [fault for fault in wanted if fault.name not in tried]
    failing = find_failing([fault.caught_by for fault in waiting if isinstance(fault.caught_by, str)])
    for fault in waiting:
        tried[fault.name] = caught = _try(fault, failing, tell)
        with record.open("ab") as file:
            file.write(msgspec.json.encode(caught) + b"\n")
        tell(f"  {caught}")
    results = [tried[fault.name] for fault in wanted]
    failed = [one for one in results if not one.is_caught]
    tell("\n".join(["", *map(str, failed), f"{len(results) - len(failed)} of {len(results)} faults caught"]))
    return 1 if failed else 0


def find_failing(nodes: Sequence[str]) -> list[str]:
    """Return the tests that fail on a copy of the source without a fault. They catch nothing."""
    if not nodes:
        return []
    with source_copy({}) as copy:
        outcome = run_tests(list(dict.fromkeys(nodes)), copy, seconds=_TEST_SECONDS * len(nodes))
    return [ran.node for ran in outcome.tests if ran.result == "failed"]


def _try(fault: PlantedFault, failing: Sequence[str], tell: Callable[[str], None]) -> Caught:
    node = fault.caught_by
    if isinstance(node, str) and (found := next((one for one in failing if one.startswith(node)), None)):
        return Caught(fault.name, None, f"{found} fails without the fault too")
    try:
        return asyncio.run(attempt(fault, tell))
    except (NotFound, RuntimeError) as error:
        return Caught(fault.name, False, str(error))


async def attempt(fault: PlantedFault, tell: Callable[[str], None] = print) -> Caught:
    """Plant a fault in a copy of the source, and run what must catch it.

    Raises `NotFound` if it cannot be planted, and `RuntimeError` if its test cannot run.
    """
    tree = plant(fault)
    for moved in tree.moved:
        tell(f"  {fault.name}: {moved}")
    with source_copy(tree.texts()) as copy:
        source = copy / "src"
        match fault.caught_by:
            case str(node):
                is_caught, how = await asyncio.to_thread(_test, node, copy)
            case Kills(points=points):
                around = Surroundings(source=source)
                how = await _strike(lambda: [ChatPlatform()], [Fault.KILL], _KILLS, points, around, 8.0)
                is_caught, how = bool(how), f"kills at {', '.join(points)}: {how or 'nothing'}"
            case Pauses(count=count):
                figures = await PauseRun(count, Progress(is_quiet=True), source=source).run()
                is_caught, how = (
                    bool(_describe(figures)),
                    f"{count} pauses: {_describe(figures) or 'nothing'}",
                )
            case Retries(count=count):
                around = Surroundings(source=source)
                how = await _strike(
                    lambda: [RetryingClients()], _RETRIED, count, (), around, 60.0, seeds=_SEEDS[:1]
                )
                is_caught, how = bool(how), f"clients that retry: {how or 'nothing'}"
            case Cluster(count=count, points=points):
                around = cluster_around(source)
                how = await _strike(cluster_loads, OF_CLUSTER, count, points, around, 20.0)
                is_caught, how = bool(how), f"faults of a cluster: {how or 'nothing'}"
            case Commands():
                is_caught, how = await _command(fault.caught_by, source)
    return Caught(fault.name, is_caught, how)


def _test(node: str, copy: Path) -> tuple[bool | None, str]:
    outcome = run_tests([node], copy, options=("-x", "--timeout", "20"), seconds=_TEST_SECONDS)
    results = {ran.result for ran in outcome.tests}
    if outcome.has_begun and not outcome.is_whole:
        return True, f"{node.rpartition('::')[2]} does not end, or ends pytest"
    if not outcome.has_begun or not results:
        raise RuntimeError(f"{node} did not run:\n{outcome.said[-2000:]}")
    if results == {"skipped"}:
        return None, f"skipped: {outcome.tests[0].reason}"
    return "failed" in results, node.rpartition("::")[2]


async def _strike(
    loads: Callable[[], list[Load]],
    faults: Sequence[Fault],
    count: int,
    points: Sequence[Failpoint],
    around: Surroundings,
    patience: float,
    *,
    seeds: Sequence[int] = _SEEDS,
) -> str:
    """Hit gateways that run the faulty source, and return what was found wrong; '' if all is well."""
    quiet = Progress(is_quiet=True)
    for seed in seeds:
        run = Trial(loads(), faults, count, quiet, seed, around=around, points=points, patience=patience)
        if found := _describe(await run.run()):
            return found
    return ""


def _describe(figures: Sequence[Figure]) -> str:
    wrong = [figure for figure in figures if not figure.is_reached]
    return ", ".join(f"{figure.value:g} {figure.name.rpartition('… ')[2]}" for figure in wrong)


async def _command(commands: Commands, source: Path) -> tuple[bool, str]:
    setting = Setting(commands.backend, is_root=os.geteuid() == 0)
    quiet = Progress(is_quiet=True)
    run = SandboxRun(commands.count, quiet, settings=(setting,), families=commands.families, source=source)
    figures = await run.run()
    (outcome, *_) = run.outcomes
    is_missed = any(not figure.is_reached for figure in figures)
    return is_missed and bool(
        outcome.found
    ), f"{len(outcome.found)} escapes of {outcome.ran} hostile commands"


def on_cluster(faults: Sequence[PlantedFault]) -> list[PlantedFault]:
    """Return the faults of kills, pauses and clusters, all to be shown by three gateways on PostgreSQL."""
    found = []
    for fault in faults:
        match fault.caught_by:
            case Kills(points=points):
                found.append(msgspec.structs.replace(fault, caught_by=Cluster(points=points)))
            case Pauses():
                found.append(msgspec.structs.replace(fault, caught_by=Cluster()))
            case Cluster():
                found.append(fault)
    return found
