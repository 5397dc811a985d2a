"""The report of a long run: figures with their limits, a progress line, charts, and documentation."""

from __future__ import annotations

import html
import math
import platform
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TextIO

import msgspec

ROOT = Path(__file__).parents[1]
_HERE = Path(__file__).parent
_SECONDS_BETWEEN = 0.5
_MOST_FINDINGS = 40


class Check(StrEnum):
    """The question that a figure answers."""

    LOST = "lost"  # a message, job or turn without its answer
    DUPLICATED = "duplicated"  # an answer or a run that came twice
    ORDER = "order"  # answers or commits out of order, or under a foreign lease
    EFFECTS = "effects"  # effects of tools that happened twice, or that nobody reported
    LEFTOVERS = "leftovers"  # processes, folders, sockets and turns that stay
    MEMORY = "memory"
    MONEY = "money"
    OTHER = "other"  # the question of one load alone; it always decides


class Fault(StrEnum):
    """What is done to gateways; `trial/faults.py` says how."""

    KILL = "kill"
    STOP = "stop"
    PAUSE = "pause"
    CUT = "cut"
    DATABASE = "database"
    SHIM = "shim"
    DISK = "disk"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. Without a `limit` it is not judged. `found` is the evidence."""

    name: str
    value: float
    unit: str = ""
    limit: float | None = None
    check: Check = Check.OTHER
    found: tuple[str, ...] = ()

    @property
    def is_reached(self) -> bool:
        return self.limit is None or self.value <= self.limit

    def cells(self) -> list[str]:
        wanted = "" if self.limit is None else f"≤ {self.limit:g}"
        verdict = "" if self.limit is None else "reached" if self.is_reached else "MISSED"
        return [self.name, f"{_number(self.value)} {self.unit}".rstrip(), wanted, verdict]


def none_of(name: str, found: Collection[object], check: Check = Check.OTHER) -> Figure:
    """Return a figure that counts findings, of which there should be none."""
    return Figure(name, len(found), "", 0, check, tuple(map(str, found)))


def missed(figures: Iterable[Figure]) -> list[tuple[str, ...]]:
    """Return the figures beyond their limits, each with the beginning of its evidence."""
    return [
        (f"{one.name}: {_number(one.value)}", *one.found[:_MOST_FINDINGS])
        for one in figures
        if not one.is_reached
    ]


def add_up(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Return the sums of runs of the same kind, line by line. A run without a line counts as zero there."""
    sums: dict[str, Figure] = {}
    for figure in (figure for run in runs for figure in run):
        old = sums.get(figure.name)
        value = figure.value + (old.value if old else 0)
        sums[figure.name] = replace(figure, value=value, found=(*(old.found if old else ()), *figure.found))
    return list(sums.values())


def select(figures: Iterable[Figure], checks: Collection[Check]) -> list[Figure]:
    """Return the figures, of which only those of these checks are judged; of all, if none is named."""
    return [
        one if not checks or one.check in (*checks, Check.OTHER) else replace(one, limit=None)
        for one in figures
    ]


HEADS = ["figure", "measured", "wanted", ""]


def render_text(figures: Sequence[Figure]) -> str:
    table = [HEADS, *(figure.cells() for figure in figures)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def render_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def render_markdown(figures: Sequence[Figure]) -> str:
    return render_table(HEADS, (figure.cells() for figure in figures))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


class Progress:
    """A progress line: rewritten on a terminal, printed now and then elsewhere."""

    def __init__(self, out: TextIO | None = None, *, is_quiet: bool = False) -> None:
        self._out = out or sys.stderr
        self._is_quiet = is_quiet
        self._is_live = self._out.isatty()
        self._last = 0.0

    def tell(self, what: str, done: int, total: int, more: str = "") -> None:
        now = time.monotonic()
        wait = _SECONDS_BETWEEN if self._is_live else 20 * _SECONDS_BETWEEN
        if self._is_quiet or (now - self._last < wait and done < total):
            return
        self._last = now
        line = f"  {what}: {done:,} of {total:,}{more}"
        ending = "\n" if not self._is_live or done >= total else ""
        self._out.write(f"\r\033[K{line}{ending}" if self._is_live else line + ending)
        self._out.flush()


@dataclass(frozen=True, slots=True)
class Order:
    """What a row of the table is asked to do. `share` is the part of each day's load that months replay."""

    count: int
    progress: Progress
    seed: int = 1
    is_quick: bool = False
    minutes: float = math.inf
    share: float = 1.0
    leak: int = 0
    workers: int = 2
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    unit: str
    colour: str
    points: Sequence[tuple[float, float]]
    beside: Sequence[tuple[float, float]] = ()  # drawn in grey, for comparison


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a row. `over` is the unit of the x axis of the curves, and `picture` their file in
    docs/. `more` is Markdown."""

    figures: list[Figure]
    curves: Sequence[Curve] = ()
    over: str = "turns"
    more: str = ""
    picture: str = ""


# -- pages ------------------------------------------------------------------------------------------------


class StoredFigure(msgspec.Struct, frozen=True, array_like=True):
    name: str
    value: float
    unit: str
    limit: float | None


class StoredRun(msgspec.Struct, frozen=True):
    """The last run of a row that was written to its page."""

    commit: str
    machine: str
    seed: int
    count: int
    figures: list[StoredFigure]
    more: str = ""
    picture: str = ""


class Pages:
    """Pages of documentation: the templates of `trial/pages`, where each row of the table has its place."""

    def __init__(self, results: Path = _HERE / "results.json", docs: Path = ROOT / "docs") -> None:
        self._results = results
        self._docs = docs
        text = results.read_bytes() if results.exists() else b"{}"
        self._runs = msgspec.json.decode(text, type=dict[str, StoredRun])

    def keep(self, row: str, outcome: Outcome, seed: int, count: int) -> None:
        """Store the results of a row and draw its picture."""
        picture = outcome.picture if any(curve.points for curve in outcome.curves) else ""
        if picture:
            title = outcome.figures[0].name.partition(":")[0]
            (self._docs / picture).write_text(render_svg(title, outcome.curves, outcome.over))
        figures = [StoredFigure(one.name, one.value, one.unit, one.limit) for one in outcome.figures]
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        self._runs[row] = StoredRun(commit(), machine, seed, count, figures, outcome.more, picture)
        self._results.write_bytes(msgspec.json.format(msgspec.json.encode(self._runs), indent=1) + b"\n")

    def write(self, page: str) -> None:
        """Write a whole page from the stored runs. A row that never ran says so."""
        template = (_HERE / "pages" / page).read_text()
        (self._docs / page).write_text(re.sub(r"{{(.+?)}}", lambda found: self._render(found[1]), template))

    def _render(self, row: str) -> str:
        run = self._runs.get(row)
        if run is None:
            return f"Not measured yet. Run `./dev trial {row} --docs`."
        words = f"./dev trial {row} --count {run.count} --seed {run.seed}"
        told = f"`{words}` at commit {run.commit} ({run.machine}):"
        figures = [Figure(one.name, one.value, one.unit, one.limit) for one in run.figures]
        picture = f"![{row}]({run.picture})" if run.picture else ""
        return "\n\n".join(filter(None, (told, picture, render_markdown(figures), run.more)))


def commit() -> str:
    """Return the short id of the commit that is checked out, and whether files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def render_svg(title: str, curves: Sequence[Curve], over: str = "turns") -> str:
    """Return a chart with a panel for each curve. All have the same x axis; each y axis begins at zero."""
    width, left, right, panel, gap = 860, 70, 20, 120, 44
    height = (panel + gap) * len(curves) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<text x="8" y="20" font-weight="bold">{html.escape(title)}</text>',
    ]
    for index, curve in enumerate(curves):
        top = 50 + index * (panel + gap)
        last = max((x for x, _ in curve.points), default=1) or 1
        high = max((y for _, y in (*curve.points, *curve.beside)), default=1) or 1
        highest = html.escape(f"{high:,.0f} {curve.unit}")
        spots, grey = (
            " ".join(
                f"{left + x / last * (width - left - right):.1f},{top + panel - y / high * panel:.1f}"
                for x, y in points
            )
            for points in (curve.points, curve.beside)
        )
        parts += [
            f'<text x="{left}" y="{top - 6}">{html.escape(curve.name)}</text>',
            f'<path d="M{left} {top}V{top + panel}H{width - right}" fill="none" stroke="#b8bcc4"/>',
            f'<text x="{left - 6}" y="{top + 10}" text-anchor="end">{highest}</text>',
            f'<text x="{left - 6}" y="{top + panel}" text-anchor="end">0</text>',
            f'<text x="{width - right}" y="{top + panel + 16}" text-anchor="end">{last:,.0f} {over}</text>',
            f'<polyline points="{spots}" fill="none" stroke="{curve.colour}" stroke-width="1.6"/>',
        ]
        if grey:
            parts.append(f'<polyline points="{grey}" fill="none" stroke="#9aa0aa" stroke-dasharray="5 4"/>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
