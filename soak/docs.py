"""docs/soak.md: a table of the ordinary parts, and a section for each long life. A run writes its parts."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import msgspec

from soak.endurance import Endurance
from soak.report import Curve, Figure, render_markdown, render_svg

_DOCS = Path(__file__).parent.parent / "docs"
_PAGE = _DOCS / "soak.md"
_SECTION = "\n## "
_HEAD = """# What holds over weeks

Written by `./dev soak --docs` ({machine}). It runs in one process and a temporary folder.

- *Long tests*: the tests that `./dev test` leaves out.
- *Interleavings*: pool and turns run on a seeded event loop (`tests/support/sim.py`), which draws the next
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
- *Slots*: three processes with a scheduler each, on one database and a clock that goes over both changes of
  summer time in two zones, jumps and sleeps. They are killed at the labelled points around a claim and
  anywhere else, and stall until their claims are void. The instants are computed a second time, from the
  offsets of the zones alone; every one must have one row, and one turn or a reason.
- *Memory*: turns spread evenly over all sessions, because skewed traffic hides leaks. A tenth of them
  fail; a twentieth each change the model, undo, get a megabyte from a tool, or end the session.
  *Allocations kept* counts the interpreter's blocks while no agent is warm, so it shows one forgotten
  object per eviction long before RSS does. `./dev soak --quick --only memory --leak 200` plants such a
  leak and must miss that figure.

![memory, pool size and pace](soak.svg)

{figures}
"""


class Section(msgspec.Struct, frozen=True):
    """A part of the page that is written alone, with its picture."""

    title: str
    picture: str
    text: str
    over: str  # the unit of the picture's x axis


MONTHS = Section(
    "Two months of a heavy user",
    "soak-months.svg",
    """`./dev soak --only months` replays a load that was reported of the gateway before this one: 63 days,
54,647 sessions, 760,000 messages and 114 jobs. There the database came to 17 GB, three backups were corrupt,
and starts hung. A whole gateway lives through it on a virtual clock, with the scripted model behind real
sockets. Nearly all sessions are runs of jobs. After the first day and at the end, `talaria serve` is started
on a copy of the home and measured. The part with retention is a tenth of the load for twelve days.""",
    "days",
)

RUNS = Section(
    "Runs of many jobs",
    "soak-runs.svg",
    """`./dev soak --only runs` lets 2,000 jobs run every ten minutes of a virtual clock, through the
scheduler and the whole gateway. Most runs get a fresh session, which is pruned after an hour. A twentieth get
a megabyte from a tool, a tenth fail, a twentieth hang until their deadline, and a fiftieth of the jobs is
edited each minute. The gateway before this one grew by 18 MB an hour under scheduled work: the grey line.""",
    "runs",
)


def write_main(figures: Sequence[Figure], endurance: Endurance) -> None:
    """Write the table. The sections stay as they are."""
    if endurance.samples:
        turns = endurance.samples[-1].turns
        title = f"{turns:,} turns spread evenly over the sessions: memory, pool, pace"
        (_DOCS / "soak.svg").write_text(render_svg(title, endurance.curves()))
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    _, *sections = _PAGE.read_text().split(_SECTION)
    head = _HEAD.format(machine=machine, figures=render_markdown(figures))
    _PAGE.write_text(_SECTION.join([head, *sections]))


def write_section(
    section: Section, figures: Sequence[Figure], curves: Sequence[Curve], note: str = ""
) -> None:
    """Write one section and its picture, with a note on how long the run was. The rest of the page stays as
    it is."""
    (_DOCS / section.picture).write_text(render_svg(section.title, curves, section.over))
    head, *sections = _PAGE.read_text().split(_SECTION)
    kept = [part.rstrip() + "\n" for part in sections if not part.startswith(f"{section.title}\n")]
    picture = f"![{section.title.lower()}]({section.picture})"
    text = f"{section.text}\n\n{note}" if note else section.text
    body = f"{section.title}\n\n{text}\n\n{picture}\n\n{render_markdown(figures)}\n"
    _PAGE.write_text(_SECTION.join([head.rstrip() + "\n", *kept, body]))
