"""`./dev soak`: the long tests, interleavings, prefix bytes, shells, failing models, money, updates, memory,
the months of a heavy user, the runs of many jobs, and an MCP server that dies at every call.

--quick runs a twentieth of the counts and leaves out the long tests: those that `./dev test` leaves out too.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys

import uvloop

from soak.cut_calls import CutCalls
from soak.docs import MONTHS, RUNS, write_main, write_section
from soak.endurance import Endurance
from soak.failures import Failures
from soak.interleavings import explore_pool, explore_turns, walk_the_machine
from soak.job_load import JobLoad
from soak.long_tests import run_long_tests
from soak.mcp_servers import DyingServer
from soak.months import Months
from soak.prefix import Prefixes
from soak.report import Figure, Progress, render_text
from soak.reservations import Reservations
from soak.resumes import Resumes
from soak.slots import run_seasons
from soak.telegram import flood

PARTS = (
    "tests",
    "seeds",
    "machine",
    "prefix",
    "resumes",
    "failures",
    "money",
    "telegram",
    "slots",
    "memory",
    "months",
    "runs",
    "mcp",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="./dev soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the counts, no long tests")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (may be repeated)")
    parser.add_argument("--leak", type=int, default=0, metavar="BYTES", help="keep so much for each eviction")
    parser.add_argument("--share", type=float, default=1.0, help="so much of each day's load (months)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end the runs of jobs after so long")
    parser.add_argument("--docs", action="store_true", help="write the parts that ran to docs/soak.md")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    parts = options.only or (PARTS[1:] if options.quick else PARTS)
    progress = Progress()

    def times(count: int) -> int:
        return max(1, count // 20) if options.quick else count

    figures: list[Figure] = []
    if "tests" in parts:
        figures.append(run_long_tests())
    if "seeds" in parts:
        figures += explore_pool(times(20_000), progress) + explore_turns(times(20_000), progress)
    if "machine" in parts:
        figures.append(walk_the_machine(times(10_000), progress))
    if "prefix" in parts:
        prefixes = Prefixes(20, 25, progress) if options.quick else Prefixes(200, 50, progress)
        figures += uvloop.run(prefixes.run())
    if "resumes" in parts:
        resumes = Resumes(times(1_000), max(2, times(50)), progress)
        figures += uvloop.run(resumes.run())
        print(*resumes.differences, *resumes.left, sep="\n")
    if "failures" in parts:
        figures += uvloop.run(Failures(times(1_000), progress).run())
    if "money" in parts:
        figures += uvloop.run(Reservations(times(10_000), progress).run())
        figures += uvloop.run(CutCalls(times(10_000), progress).run())
    if "telegram" in parts:
        figures += uvloop.run(flood(times(10_000), progress))
    if "slots" in parts:
        kept, wrong = uvloop.run(run_seasons(times(200), progress))
        figures += kept
        print(*wrong, sep="\n")
    samples = 20 if options.quick else 100
    endurance = Endurance(times(100_000), times(10_000), progress, leak=options.leak, samples=samples)
    if "memory" in parts:
        figures += uvloop.run(endurance.run())
    if options.docs and figures:
        write_main(figures, endurance)
    if "months" in parts:
        share = 0.05 if options.quick else options.share
        months = Months(progress, share=share)
        lived = uvloop.run(months.run())
        figures += lived
        if options.docs:
            note = "" if share >= 1 else f"This run had {share:.0%} of each day's load."
            write_section(MONTHS, lived, months.curves(), note)
    if "runs" in parts:
        load = JobLoad(times(2_000), times(200_000), progress, minutes=options.minutes)
        ran = uvloop.run(load.run())
        figures += ran
        if options.docs:
            note = "" if math.isinf(options.minutes) else f"This run was ended after {options.minutes:g} min."
            write_section(RUNS, ran, load.curves(), note)
    if "mcp" in parts:
        figures += uvloop.run(DyingServer(times(1_000), progress).run())
    print(render_text(figures))
    sys.exit(0 if all(figure.is_reached for figure in figures) else 1)


if __name__ == "__main__":
    main()
