"""`./dev incidents`: runs exactly the tests that docs/incidents.md names and prints its table."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pytest

from incidents.nodes import ROOT, exists
from incidents.table import DOCUMENT, Row, read_reported, read_rows

_WIDTH = 76


class Recorder:
    """Collects outcomes by test, without parameters. A test passed if all of its outcomes are passes."""

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.outcomes[report.nodeid.partition("[")[0]].add(report.outcome)


def run_tests(node_ids: Iterable[str]) -> tuple[Mapping[str, set[str]], str]:
    """Run these tests. Returns their outcomes and the output of pytest."""
    recorder, said = Recorder(), io.StringIO()
    options = [
        "-o",
        "addopts=--strict-markers --strict-config --import-mode=importlib",
        "-q",
        "--color=no",
        "--long",
    ]
    with contextlib.redirect_stdout(said):
        pytest.main([*options, *node_ids], plugins=[recorder])
    return recorder.outcomes, said.getvalue()


def print_row(row: Row, is_shown: bool, outcomes: Mapping[str, set[str]]) -> None:
    symptom = textwrap.shorten(row.symptom.replace("`", ""), _WIDTH, placeholder=" …")
    print(f"  {'✓' if is_shown else '✗'} {row.number:>2}  {symptom:<{_WIDTH}}  {row.here}")
    for test in row.tests:
        if outcomes.get(test) != {"passed"}:
            print(f"          {test}: {', '.join(sorted(outcomes.get(test, {'no such test'})))}")


def main(arguments: Sequence[str]) -> int:
    if arguments:
        print("./dev incidents takes no arguments; ./dev pytest runs single tests.", file=sys.stderr)
        return 2
    text = DOCUMENT.read_text()
    rows = [*read_rows(text), *read_reported(text)]
    os.chdir(ROOT)
    outcomes, said = run_tests(sorted({test for row in rows for test in row.tests if exists(test)}))
    passed = 0
    for section, members in itertools.groupby(rows, lambda row: row.section):
        print(section)
        for row in members:
            is_shown = bool(row.tests) and all(outcomes.get(test) == {"passed"} for test in row.tests)
            passed += is_shown
            print_row(row, is_shown, outcomes)
    if passed < len(rows):
        print(said, file=sys.stderr)
    print(f"{passed} passed, {len(rows) - passed} failed")
    return 0 if rows and passed == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
