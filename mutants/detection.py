"""Which tests notice a fault: choose tests that fit into a time budget, and run them on faulty source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mutants.faults import Fault
from mutants.reach import Reach, RecordedTest
from mutants.runs import Outcome, run_tests, source_copy

_TEST_SECONDS = 20
_IMPORT_SECONDS = 60
_QUICK_SECONDS = 0.5  # a faster test waits for no process and does not fail by load
_MOST_TESTS = 200
_MOST_RUNS = 6


@dataclass(slots=True)
class Detection:
    """The tests that notice a fault, the number of tests that ran, and why others were skipped.

    `noticed` has a reason for a test that did not simply fail. A file that cannot be imported notices a fault
    by its path.
    """

    noticed: dict[str, str] = field(default_factory=dict)
    ran: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, other: Detection) -> None:
        self.noticed |= other.noticed
        self.ran += other.ran
        self.skipped += other.skipped

    @property
    def verdict(self) -> str:
        """`caught`, `SURVIVED`, or `NOT MEASURED` if all tests were skipped."""
        if self.noticed:
            return "caught"
        return "NOT MEASURED" if self.skipped and not self.ran else "SURVIVED"

    @property
    def lack(self) -> str:
        """Say why tests were skipped, the most frequent reasons first."""
        reasons = self.skipped.most_common(3)
        return "; ".join(f"{count} skipped: {' '.join(reason.split())[:160]}" for reason, count in reasons)


def detect(fault: Fault, known: Reach, budget: float, *, is_first_enough: bool = True) -> Detection:
    """Run the tests that enter the block of a fault, and then, unless one notices, more tests of its module.

    If no test reaches the fault, the reasons of the tests that were skipped in the recording are returned.
    """
    reaching = choose(*known.of(fault), budget)
    with source_copy({fault.path: fault.apply(fault.path.read_text())}) as copy:
        found = run_all(reaching, copy, is_first_enough=is_first_enough)
        if not found.noticed:
            wider = choose(*known.around(fault, reaching), budget * 2)
            found.add(run_all(wider, copy, is_first_enough=is_first_enough))
    if not found.ran and not found.skipped:
        found.skipped = known.skipped()
    return found


def choose(near: Sequence[RecordedTest], others: Sequence[RecordedTest], budget: float) -> list[RecordedTest]:
    """Return the tests that fit into `budget` seconds, a third of it for tests of other folders.

    Tests of a file stand together, so that they share its fixtures.
    """
    chosen = _fitting(near, budget * 2 / 3)
    chosen += _fitting(others, budget - sum(test.seconds for test in chosen))
    rest = [test for test in near if test not in chosen]
    chosen += _fitting(rest, budget - sum(test.seconds for test in chosen))
    chosen = chosen or [*near, *others][:1]
    files = list(dict.fromkeys(_file(test) for test in chosen))
    return sorted(chosen, key=lambda test: files.index(_file(test)))


def _fitting(tests: Sequence[RecordedTest], budget: float) -> list[RecordedTest]:
    seconds = 0.0
    fitting = []
    for test in tests[:_MOST_TESTS]:
        if seconds + test.seconds <= budget:
            seconds += test.seconds
            fitting.append(test)
    return fitting


def _file(test: RecordedTest) -> str:
    return test.node.partition("::")[0]


def run_all(tests: Sequence[RecordedTest], copy: Path, *, is_first_enough: bool) -> Detection:
    """Run the tests on a copy of the source, all of them or until one notices the fault.

    A test notices it by failing, by not ending in time, or by ending the process of pytest. In the latter two
    cases the tests after it run in another process.
    """
    found = Detection()
    waiting = list(tests)
    for _ in range(_MOST_RUNS):
        if not waiting or (is_first_enough and found.noticed):
            break
        outcome = _run(waiting, copy, "-x" if is_first_enough else "--continue-on-collection-errors")
        if not outcome.has_begun:
            found.ran += 1
            found.noticed |= _import_error(outcome)
            break
        failed = {ran.node: ran.reason for ran in outcome.tests if ran.result == "failed"}
        found.ran += sum(ran.result != "skipped" for ran in outcome.tests)
        found.skipped.update(ran.reason for ran in outcome.tests if ran.result == "skipped")
        found.noticed |= _confirm(failed, waiting, copy)
        seen = {ran.node for ran in outcome.tests}
        waiting = [test for test in waiting if test.node not in seen and _file(test) not in seen]
        if not outcome.is_whole and waiting:
            found.ran += 1
            found.noticed[waiting.pop(0).node] = "the test does not end, or ends pytest"
        if outcome.status is None or (outcome.is_whole and not (is_first_enough and failed)):
            break  # too much time is gone, or tests that were not seen do not exist with this source
    return found


def _confirm(failed: Mapping[str, str], tests: Sequence[RecordedTest], copy: Path) -> dict[str, str]:
    """Return the failures without those of slow tests that may have failed by load.

    A slow test notices the fault if it fails a second time, and then passes without the fault.
    """
    slow = [test for test in tests if test.node in failed and test.seconds >= _QUICK_SECONDS]
    again = slow and [test for test in slow if test.node not in _passed(slow, copy)]
    with source_copy({}) as clean:
        noticing = again and _passed(again, clean)
    dropped = {test.node for test in slow} - set(noticing)
    return {node: reason for node, reason in failed.items() if node not in dropped}


def _passed(tests: Sequence[RecordedTest], copy: Path) -> set[str]:
    return {ran.node for ran in _run(tests, copy).tests if ran.passed}


def _run(tests: Sequence[RecordedTest], copy: Path, *options: str) -> Outcome:
    files = list(dict.fromkeys(map(_file, tests)))
    only = [test.node for test in tests]
    one = _TEST_SECONDS + 4 * max(test.seconds for test in tests)
    limit = _IMPORT_SECONDS + 4 * sum(test.seconds for test in tests) + one
    return run_tests(files, copy, only=only, options=(*options, "--timeout", str(one)), seconds=limit)


def _import_error(outcome: Outcome) -> dict[str, str]:
    """Return why pytest could not collect any test. A file that cannot be imported has its own reason."""
    if found := {ran.node: ran.reason for ran in outcome.tests}:
        return found
    lines = [line for line in outcome.said.splitlines() if line.startswith(("ERROR", "E  ", "INTERNALERROR"))]
    if outcome.status is not None and not lines and "rror" not in outcome.said:
        raise SystemExit(f"mutants: the tests did not run:\n{outcome.said[-2000:]}")
    return {"at import": lines[0][:100] if lines else "pytest cannot start"}
