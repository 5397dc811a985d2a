"""`./dev trial`, and its presets `./dev chaos` and `./dev soak`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Collection, Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import TypeVar

import uvloop

from talaria.core.failpoints import Failpoint
from trial.catching import run_planted
from trial.faults import MEANINGS, Trial, why_impossible
from trial.presets import CHAOS, COMMANDS, LIMITS, LOADS, PRESETS, SOAK, Preset
from trial.report import Check, Fault, Figure, Order, Outcome, Pages, Progress, missed, render_text, select
from trial.world import Surroundings

_Kind = TypeVar("_Kind", bound=StrEnum)
_OF_CHAOS = [row.name for row in PRESETS.values() if row.page != SOAK and row.name != "cluster"]
_OF_SOAK = [row.name for row in PRESETS.values() if row.page == SOAK]
_OLD_NAMES = {"http": "fuzz"}  # of `./dev chaos --only`


def main(words: Sequence[str] | None = None) -> None:
    name, *more = words if words is not None else sys.argv[1:]
    parser = argparse.ArgumentParser(
        prog=f"./dev {name}", formatter_class=argparse.RawDescriptionHelpFormatter, description=_ABOUT[name]
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a twentieth of the counts")
    add("--seed", type=int, default=1, metavar="N", help="other random choices (default: 1)")
    add("--docs", action="store_true", help="store the results and write their pages in docs/")
    {"trial": _add_trial, "chaos": _add_chaos, "soak": _add_soak}[name](parser)
    options = parser.parse_args(more)
    logging.basicConfig(level=logging.CRITICAL)
    if getattr(options, "mutants", None) is not None:
        tell, is_cluster = partial(print, flush=True), options.store is not None
        sys.exit(run_planted(options.mutants, tell, is_resumed=options.resume, has_cluster=is_cluster))
    if name == "trial":
        rows = _chosen(parser, options)
        checks = _members(parser, Check, options.checks)
        counts = {row.name: options.count for row in rows} if options.count else {}
    elif name == "chaos":
        only = [_OLD_NAMES.get(one, one) for one in options.only or _OF_CHAOS]
        rows = [PRESETS[one] for one in (["cluster"] if options.store else only)]
        checks, counts = [], {"cluster": options.faults, "kills": options.kills}
    else:
        parts = options.only or [one for one in _OF_SOAK if one != "tests" or not options.quick]
        rows, checks, counts = [PRESETS[one] for one in parts], [], {}
    sys.exit(0 if run_all(rows, options, checks, counts) else 1)


def run_all(
    rows: Iterable[Preset],
    options: argparse.Namespace,
    checks: Collection[Check],
    counts: dict[str, int | None],
) -> bool:
    """Run the rows one after the other. Return whether all their figures are reached."""
    is_good, pages = True, Pages()
    for row in rows:
        if row.why_not and (reason := asyncio.run(_ask(row))):
            print(f"{row.name}: not run, because {reason}")
            continue
        count = counts.get(row.name) or row.count_of(is_quick=options.quick)
        order = Order(
            count, Progress(), options.seed, options.quick,
            getattr(options, "minutes", math.inf), getattr(options, "share", 1.0),
            getattr(options, "leak", 0), getattr(options, "workers", 2), row.faults,
        )  # fmt: skip
        outcome = run_row(row, order)
        figures = select(outcome.figures, checks)
        print(render_text(figures), flush=True)
        for findings in missed(figures):
            print(f"seed {options.seed}:", *findings, sep="\n  ")
            is_good = False
        if options.docs and row.name in PRESETS:
            pages.keep(row.name, outcome, options.seed, count)
            pages.write(row.page)
    return is_good


def run_row(row: Preset, order: Order) -> Outcome:
    """Run a row. Loads inside this process use uvloop, as the gateway does."""

    async def wait(found: Awaitable[Outcome | list[Figure]]) -> Outcome | list[Figure]:
        return await found

    found = row.run(order)
    if isinstance(found, Awaitable):
        found = uvloop.run(wait(found)) if row.page == SOAK else asyncio.run(wait(found))
    outcome = found if isinstance(found, Outcome) else Outcome(found)
    judged = {figure.check for figure in outcome.figures if figure.limit is not None}
    if more := judged - {*row.checks, Check.OTHER}:
        raise RuntimeError(f"the row {row.name} does not list its checks: {', '.join(more)}")
    return outcome


async def _ask(row: Preset) -> str:
    assert row.why_not
    return await row.why_not()


# -- what is chosen ---------------------------------------------------------------------------------------


def _chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Preset]:
    """Return rows of the table, or one for loads and faults that were named."""
    is_custom = options.faults or options.points or options.store or options.gateways
    names = options.load.split(",")
    if not is_custom and all(name in PRESETS for name in names):
        return [PRESETS[name] for name in names]
    if other := [name for name in names if name not in LOADS]:
        known = ", ".join(LOADS)
        if other[0] in PRESETS:
            parser.error(
                f"{other[0]} has its own faults. Leave the options out. Loads that take faults: {known}"
            )
        parser.error(
            f"there is no load or preset {other[0]!r}. Loads: {known}. Presets: {', '.join(PRESETS)}"
        )
    faults = _members(parser, Fault, options.faults) or [Fault.KILL]
    points = _members(parser, Failpoint, options.points)
    is_postgres = options.store == "postgres"
    around = Surroundings(options.gateways or (3 if is_postgres else 1), is_postgres)
    if lack := why_impossible([LOADS[name][1]() for name in names], faults, around):
        parser.error(lack)

    def run(order: Order) -> Trial:
        loads = [LOADS[name][1]() for name in names]
        return Trial(loads, faults, order.count, order.progress, order.seed, around=around, points=points)

    every = (*Check,)
    return [Preset(options.load, options.load, (*faults,), every, 100, lambda order: run(order).run(), CHAOS)]


def _members(parser: argparse.ArgumentParser, kind: type[_Kind], text: str) -> list[_Kind]:
    found = []
    for word in filter(None, text.split(",")):
        if word not in [*kind]:
            parser.error(f"{word!r} is not one of: {', '.join(kind)}")
        found.append(kind(word))
    return found


def _add_trial(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("load", metavar="LOAD", help="loads, joined by commas, or presets")
    add("--faults", default="", metavar="LIST", help="faults that hit the gateways (default: kill)")
    add("--points", default="", metavar="LIST", help="kill only at these labelled points, such as tool.ran")
    add("--checks", default="", metavar="LIST", help="checks that decide (default: all)")
    add("--count", type=int, metavar="N", help="number of faults, or the count of a preset")
    add("--gateways", type=int, choices=(1, 2, 3), help="gateways (default: 1, on PostgreSQL 3)")
    add("--store", choices=("sqlite", "postgres"), help="the database (default: sqlite)")


def _add_chaos(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    only = [*_OF_CHAOS, *_OLD_NAMES]
    add("--only", choices=only, action="append", help="this part (may be repeated)")
    add("--kills", type=int, metavar="N", help="number of kills (default: 500)")
    add("--workers", type=int, default=2, metavar="N", help="gateways at once (default: 2)")
    add("--store", choices=("postgres",), help="faults of three gateways on PostgreSQL, and nothing else")
    add("--faults", type=int, metavar="N", help="with --store (default: 300)")
    add("--mutants", nargs="*", metavar="NAME", help="plant known faults, as `./dev mutants --planted` does")
    add("--resume", action="store_true", help="with --mutants: continue the last run")


def _add_soak(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--only", choices=_OF_SOAK, action="append", help="this part (may be repeated)")
    add("--leak", type=int, default=0, metavar="BYTES", help="keep so many bytes for each eviction (memory)")
    add("--share", type=float, default=1.0, help="the part of each day's load that is replayed (months)")
    add("--minutes", type=float, default=math.inf, help="end the runs of jobs after so many minutes")


def _lines(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"  {name:11} {text}" for name, text in pairs)


def _describe(row: Preset) -> str:
    faults = f", faults: {', '.join(row.faults)}" if row.faults else ""
    return f"{row.load}{faults}; {row.count:,}"


_CHECKS = {
    Check.LOST: "every message, job and reminder has its answer, and nothing is owed",
    Check.DUPLICATED: "no answer without a mark and no run comes twice",
    Check.ORDER: "answers come in the order of their messages; no commit under a foreign lease",
    Check.EFFECTS: "no tool takes effect twice, and missing effects are reported",
    Check.LEFTOVERS: "no process, folder, socket, thread or turn stays",
    Check.MEMORY: "memory follows the work, not the history",
    Check.MONEY: "no call is billed beyond a cap or without a record",
}
_ABOUT = {
    "trial": "Hit gateways with faults while loads use them, and check the damage.\n\n"
    "  ./dev trial http,jobs --faults kill,stop --count 50\n"
    "  ./dev trial chat --faults kill --points tool.ran,outbox.claimed --checks lost,effects\n"
    "  ./dev trial months\n\n"
    f"Loads:\n{_lines((name, about) for name, (about, _) in LOADS.items())}\n\n"
    f"Faults:\n{_lines(MEANINGS.items())}\n\n"
    f"Checks:\n{_lines(_CHECKS.items())}\n\n"
    f"Presets, with loads and faults of their own:\n"
    f"{_lines((row.name, _describe(row)) for row in PRESETS.values())}",
    "chaos": "Kills, pauses and stops of gateways in their own processes, and attacks on them.\n"
    f"Results: docs/{CHAOS}, docs/{LIMITS}, docs/{COMMANDS}.",
    "soak": "The long tests, interleavings, prefix bytes, shells, failing models, money, updates, memory,\n"
    "the months of a heavy user, the runs of many jobs, and an MCP server that dies at every call.\n"
    f"Results: docs/{SOAK}. --quick leaves out the long tests.",
}


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # all processes and folders are gone by now
        sys.exit(130)
