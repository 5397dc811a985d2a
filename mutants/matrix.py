"""The matrix: for random faults of one commit, all tests that notice each of them.

`mutants/matrix.jsonl` has one line for each fault, in the order in which they were measured. A run that is
stopped continues with the faults that are not in it.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mutants.blocks import ROOT, SOURCE
from mutants.detection import detect
from mutants.faults import Fault
from mutants.reach import Reach
from mutants.sampling import draw, why_equivalent
from mutants.workers import run_in_threads

MATRIX = Path(__file__).parent / "matrix.jsonl"
_PRIORITY = 10
_Z = 1.96  # of a 95 % interval


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault of a commit.

    `noticed` has the test functions of each file that notice it. An empty list stands for the whole file: it
    cannot be imported. `reason` says why the fault makes no difference, or why no test ran.
    """

    commit: str
    path: str
    line: int
    kind: str
    old: str
    new: str
    verdict: str = ""
    ran: int = 0
    seconds: int = 0
    noticed: dict[str, list[str]] = {}
    reason: str = ""

    @property
    def key(self) -> tuple[str, int, str, str]:
        return (self.path, self.line, self.kind, self.new)

    @property
    def tests(self) -> set[str]:
        """The test functions, or files, that notice the fault, as pytest names them."""
        return {
            f"{file}::{name}" if name else file
            for file, names in self.noticed.items()
            for name in names or [""]
        }


def read_matrix(path: Path = MATRIX) -> list[Row]:
    """Return the rows. A last line that a kill has cut off is left out."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines if line.endswith(b"\n")]


def measure(
    count: int, load: Callable[[], Reach], budget: float, jobs: int, tell: Callable[[str], None]
) -> list[Row]:
    """Measure what is missing of `count` faults of this commit, at low priority, and return all rows."""
    commit = _commit()
    rows = read_matrix()
    if rows and rows[0].commit != commit:
        tell(f"The matrix was measured on {rows[0].commit[:8]}. Starting a new one on {commit[:8]}.")
        rows = []
    _write(rows)
    done = {row.key for row in rows}
    faults = [fault for fault in draw(count, commit) if _row(fault, commit).key not in done]
    if faults:
        os.nice(_PRIORITY)
        known = load()
        tell(f"{len(rows)} of {len(rows) + len(faults)} faults are measured already.")
        for row in run_in_threads(lambda fault: _measure(fault, commit, known, budget), faults, jobs):
            with MATRIX.open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
            rows.append(row)
            tell(f"{len(rows):4} of {count}  {render(row)}")
    return rows


def _commit() -> str:
    """Return the commit that source and tests are from. Files that were changed since are refused."""
    changed = _git("status", "--porcelain", "src", "tests")
    if changed:
        raise SystemExit(f"mutants: the matrix belongs to a commit. Commit your changes first:\n{changed}")
    return _git("rev-list", "-1", "HEAD", "--", "src", "tests")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _write(rows: Sequence[Row]) -> None:
    new = MATRIX.with_suffix(".new")
    new.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    new.replace(MATRIX)


def _measure(fault: Fault, commit: str, known: Reach, budget: float) -> Row:
    if reason := why_equivalent(fault):
        return _row(fault, commit, verdict="equivalent", reason=reason)
    began = time.monotonic()
    found = detect(fault, known, budget, is_first_enough=False)
    noticed: dict[str, list[str]] = defaultdict(list)
    for node in sorted({node.partition("[")[0] for node in found.noticed}):
        file, _, name = node.partition("::")
        noticed[file] += [name] if name else []
    return _row(
        fault,
        commit,
        verdict=found.verdict,
        ran=found.ran,
        seconds=round(time.monotonic() - began),
        noticed=dict(noticed),
        reason="" if found.noticed else found.lack,
    )


def _row(fault: Fault, commit: str, **measured: Any) -> Row:
    old, new = fault.lines(fault.path.read_text())
    path = fault.path.relative_to(SOURCE).as_posix()
    return Row(commit, path, fault.line, fault.kind, old, new, **measured)


def render(row: Row) -> str:
    tests = sorted(row.tests)
    how = f"{len(tests)} tests: {tests[0]}" if tests else row.reason or f"{row.ran} tests ran"
    return f"{row.verdict:12} {row.seconds:4} s  {f'{row.path}:{row.line}':38} {row.kind:22} {how}"


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a rate."""
    if not total:
        return 0.0, 1.0
    rate = hits / total
    middle = rate + _Z * _Z / (2 * total)
    width = _Z * math.sqrt(rate * (1 - rate) / total + _Z * _Z / (4 * total * total))
    scale = 1 + _Z * _Z / total
    return (middle - width) / scale, (middle + width) / scale


def summarize(rows: Sequence[Row]) -> str:
    """Return survivors, faults that were not measured, tests that alone notice a fault, and the rate."""
    lines: list[str] = []
    for title, verdict in (("Survivors", "SURVIVED"), ("Not measured", "NOT MEASURED")):
        found = [row for row in rows if row.verdict == verdict]
        lines += [f"\n{title}: {len(found)}"]
        lines += [
            f"  {row.path}:{row.line}  {row.kind}: {row.old}  =>  {row.new}  {row.reason}" for row in found
        ]
    alone = [row for row in rows if len(row.tests) == 1]
    lines += [f"\nTests that are the only one to notice a fault: {len({min(row.tests) for row in alone})}"]
    lines += [f"  {min(row.tests)}  {row.path}:{row.line}  {row.kind}" for row in alone]
    caught = sum(row.verdict == "caught" for row in rows)
    tried = caught + sum(row.verdict == "SURVIVED" for row in rows)
    low, high = wilson(caught, tried)
    rate = f"{100 * caught / max(tried, 1):.0f} % (95 % interval: {100 * low:.0f} % to {100 * high:.0f} %)"
    lines += [
        f"\n{caught} of {tried} faults caught: {rate}. Commit {rows[0].commit[:12] if rows else 'none'}."
    ]
    return "\n".join(lines)


def only_detectors(nodes: Sequence[str], rows: Sequence[Row]) -> Iterator[tuple[Row, set[str]]]:
    """Yield the faults that no test would notice without these test files, classes or functions."""
    wanted = [node.removeprefix("./").partition("[")[0] for node in nodes]
    for row in rows:
        if row.tests and all(any(_is_in(test, node) for node in wanted) for test in row.tests):
            yield row, row.tests


def _is_in(test: str, node: str) -> bool:
    return test == node or test.startswith((f"{node}::", f"{node.rstrip('/')}/"))
