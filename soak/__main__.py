"""`./dev soak`: the long tests, interleavings, prefix bytes, shells, failing models, money, updates, memory.

--quick runs a twentieth of the counts and leaves out the long tests: those that `./dev test` leaves out too.
"""

from __future__ import annotations

import argparse
import logging
import platform
import sys
from pathlib import Path

import uvloop

from soak.cut_calls import CutCalls
from soak.endurance import Endurance
from soak.failures import Failures
from soak.interleavings import explore_pool, explore_turns, walk_the_machine
from soak.long_tests import run_long_tests
from soak.prefix import Prefixes
from soak.report import Figure, Progress, render_markdown, render_svg, render_text
from soak.reservations import Reservations
from soak.resumes import Resumes
from soak.telegram import flood

PARTS = ("tests", "seeds", "machine", "prefix", "resumes", "failures", "money", "telegram", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="./dev soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the counts, no long tests")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (may be repeated)")
    parser.add_argument("--leak", type=int, default=0, metavar="BYTES", help="keep so much for each eviction")
    parser.add_argument("--docs", action="store_true", help="also write docs/soak.md and docs/soak.svg")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
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
    samples = 20 if options.quick else 100
    endurance = Endurance(times(100_000), times(10_000), progress, leak=options.leak, samples=samples)
    if "memory" in parts:
        figures += uvloop.run(endurance.run())
    print(render_text(figures))
    if options.docs:
        write_docs(figures, endurance)
    sys.exit(0 if all(figure.is_reached for figure in figures) else 1)


def write_docs(figures: list[Figure], endurance: Endurance) -> None:
    docs = Path(__file__).parent.parent / "docs"
    if endurance.samples:
        turns = endurance.samples[-1].turns
        title = f"{turns:,} turns spread evenly over the sessions: memory, pool, pace"
        (docs / "soak.svg").write_text(render_svg(title, endurance.curves()))
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    (docs / "soak.md").write_text(
        f"""# What holds over weeks

Written by `./dev soak --docs` ({machine}). It runs in one process and a temporary folder.

- *Long tests*: the tests that `./dev test` leaves out.
- *Interleavings*: pool and turns run on a seeded event loop (`talaria.testing.sim`), which draws the next
  task at random and skips waiting. Each seed is a small life with leases, failures, cancellations at any
  await, writes of other processes, changed specs and restarts. `pool_world.explore(SEED)` repeats a seed.
- *State machine*: hypothesis calls the pool in any order and checks it after each step.
- *Prefix bytes*: raw request bodies, over evictions, restarts and writes of another process.
- *Evictions and resumptions*: sessions with a shell somewhere, exported variables, a temporary file and a
  background process, in a pool that has room for one agent. Each message finds its session evicted; the
  gateway is opened again in between. Afterwards the sessions end, by `/new` and by request.
- *Failing messages*: each failure of a model a thousand times, over real sockets and in virtual time.
  Before each message the endpoint's own state says how many calls it may cost.
- *Money*: four processes on one database reserve and settle model calls under one cap. Then calls of a real
  gateway end in every way, over kills and shutdowns; the model server's own ledger is held against the caps.
- *Telegram*: updates of every kind, from an allowed user and from others, each with one to three random
  changes or cut off. Every turn must come from the allowed user.
- *Memory*: turns spread evenly over all sessions, because skewed traffic hides leaks. A tenth of them
  fail; a twentieth each change the model, undo, get a megabyte from a tool, or end the session.
  *Allocations kept* counts the interpreter's blocks while no agent is warm, so it shows one forgotten
  object per eviction long before RSS does. `./dev soak --quick --only memory --leak 200` plants such a
  leak and must miss that figure.

![memory, pool size and pace](soak.svg)

{render_markdown(figures)}
"""
    )


if __name__ == "__main__":
    main()
