"""`./dev mutants`: plant faults in a copy of the source, run tests, and show the faults that survive.

The faults are small and random, or known ones of the past (`--planted`), each of which must be caught.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mutants import reach
from mutants.detection import detect
from mutants.faults import Fault
from mutants.matrix import measure, only_detectors, read_matrix, summarize
from mutants.reach import Reach
from mutants.runs import sweep
from mutants.sampling import draw, place, show, why_equivalent
from mutants.workers import run_in_threads


@dataclass(frozen=True, slots=True)
class Result:
    """`verdict` is that of a detection, or `equivalent`; `how` is the test that failed, or the reason."""

    fault: Fault
    verdict: str
    how: str
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__)
    add = parser.add_argument
    add("--sample", type=int, default=20, metavar="N", help="number of faults (default: 20)")
    add("--seed", type=int, default=1, metavar="S", help="which faults are drawn (default: 1)")
    add("--path", default="", metavar="P", help="plant faults only in this file or folder of src/talaria")
    add(
        "--tests", default="tests", metavar="P", help="run only tests of this file or folder (default: tests)"
    )
    add("--budget", type=float, default=30, metavar="S", help="seconds of tests for a fault (default: 30)")
    add("--jobs", type=int, default=os.cpu_count() or 2, metavar="N", help="faults tried at a time")
    add("--list", action="store_true", help="show the faults and run nothing")
    add(
        "--record", nargs="?", const="stale", choices=("stale", "all"),
        help="only record which tests reach which code: where no record fits, or all again",
    )  # fmt: skip
    add(
        "--matrix", type=int, nargs="?", const=120, metavar="N",
        help="record all tests that notice each of N faults (default: 120), seeded by the commit; "
        "run it again to continue",
    )  # fmt: skip
    add(
        "--only-detector", nargs="+", metavar="TEST",
        help="say whether only these test files or tests notice a fault of the matrix",
    )  # fmt: skip
    add(
        "--planted", nargs="*", metavar="NAME",
        help="plant known faults instead: all, or those whose name contains NAME",
    )  # fmt: skip
    add("--resume", action="store_true", help="with --planted: skip the faults that the last run has tried")
    options = parser.parse_args()
    if options.matrix is not None and options.tests != "tests":
        parser.error("--matrix needs all tests: leave --tests out")
    if options.planted is not None:
        from trial.catching import run_planted  # noqa: PLC0415 - random faults need no gateways

        sys.exit(run_planted(options.planted, _tell, is_resumed=options.resume))
    if options.only_detector:
        sys.exit(_tell_only_detectors(options.only_detector))

    def load() -> Reach:
        sweep()
        again = options.record == "all"
        return reach.load(jobs=options.jobs, again=again, tell=_tell, below=options.tests)

    if options.record:
        load()
        return
    if options.matrix is not None:
        rows = measure(options.matrix, load, options.budget, options.jobs, _tell)
        _tell(summarize(rows))
        sys.exit(0 if all(row.verdict in ("caught", "equivalent") for row in rows) else 1)
    faults = draw(options.sample, options.seed, options.path)
    if options.list:
        print("\n\n".join(show(fault) for fault in faults))
        return
    sys.exit(_report(_try_all(faults, load(), options.budget, options.jobs)))


def _tell(text: str) -> None:
    print(text, flush=True)


def _tell_only_detectors(nodes: Sequence[str]) -> int:
    rows = read_matrix()
    if not rows:
        raise SystemExit("mutants: there is no matrix yet. Create it with ./dev mutants --matrix")
    found = list(only_detectors(nodes, rows))
    for row, tests in found:
        _tell(f"{row.path}:{row.line}  {row.kind}: {row.old}  =>  {row.new}")
        _tell(f"    noticed only by {', '.join(sorted(tests))}")
    _tell(f"{len(found)} of {len(rows)} recorded faults are noticed by these tests only.")
    return 1 if found else 0


def _try_all(faults: Sequence[Fault], known: Reach, budget: float, jobs: int) -> list[Result]:
    results: list[Result] = []
    for result in run_in_threads(lambda fault: _try(fault, known, budget), faults, jobs):
        results.append(result)
        _tell(f"{len(results):4} of {len(faults)}  {_line(result)}")
    return sorted(results, key=lambda result: faults.index(result.fault))


def _line(result: Result) -> str:
    where = f"{place(result.fault):38} {result.fault.kind:22}"
    return f"{result.verdict:12} {result.seconds:4.0f} s  {where} {result.how}"


def _try(fault: Fault, known: Reach, budget: float) -> Result:
    if reason := why_equivalent(fault):
        return Result(fault, "equivalent", reason)
    began = time.monotonic()
    found = detect(fault, known, budget)
    test, reason = next(iter(found.noticed.items()), ("", f"{found.ran} tests ran. {found.lack}"))
    return Result(fault, found.verdict, f"{test} {reason}".strip(), time.monotonic() - began)


def _report(results: Sequence[Result]) -> int:
    by = {
        verdict: [result for result in results if result.verdict == verdict]
        for verdict in ("caught", "SURVIVED", "NOT MEASURED", "equivalent")
    }
    for result in by["SURVIVED"]:
        print(f"\n{show(result.fault)}")
    print()
    for result in by["SURVIVED"] + by["NOT MEASURED"] + by["equivalent"]:
        print(_line(result))
    caught, tried = len(by["caught"]), len(by["caught"] + by["SURVIVED"])
    seconds = sum(result.seconds for result in results)
    more = f"{len(by['equivalent'])} more are listed as equivalent"
    print(f"\n{caught} of {tried} faults caught; {more}; {seconds:.0f} s of tests")
    if by["NOT MEASURED"]:
        print(
            f"{len(by['NOT MEASURED'])} were not measured, because their tests are skipped on this machine. "
            "Install what is missing (see above), then run with --record all."
        )
    return 1 if by["SURVIVED"] or by["NOT MEASURED"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
