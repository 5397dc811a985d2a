"""`./dev mutants`: plant small random faults, run the tests that reach them, show the faults that survive."""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from mutants import reach
from mutants.blocks import SOURCE, source_files, write_code
from mutants.faults import Fault, statements
from mutants.reach import Reach, RecordedTest
from mutants.runs import Outcome, folder, run_tests, stop_all, sweep

EQUIVALENT = Path(__file__).parent / "equivalent.toml"
_TEST_SECONDS = 20
_IMPORT_SECONDS = 60
_QUICK_SECONDS = 0.5  # a test that is faster waits for no process and does not fail by load
_NO_TESTS = 5
_MOST_TESTS = 200


class Equivalent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault that no test can notice, and why. `line` becomes `becomes`, both without indentation."""

    path: str
    line: str
    becomes: str
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """`verdict` is `caught`, `SURVIVED` or `equivalent`; `how` is the test that failed, or the reason."""

    fault: Fault
    verdict: str
    how: str
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=20, metavar="N", help="number of faults (default: 20)")
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="which faults are drawn (default: 1)"
    )
    parser.add_argument("--path", default="", metavar="P", help="only in this file or folder of src/talaria")
    parser.add_argument(
        "--budget", type=float, default=30, metavar="S", help="seconds of tests for a fault (30)"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 2, metavar="N", help="faults tried at a time"
    )
    parser.add_argument("--list", action="store_true", help="show the faults and run nothing")
    parser.add_argument("--record", action="store_true", help="record anew which tests reach what")
    options = parser.parse_args()
    faults = draw(options.sample, options.seed, options.path)
    if options.list:
        print("\n\n".join(show(fault) for fault in faults))
        return
    sweep()
    known = reach.load(jobs=options.jobs, again=options.record, tell=lambda text: print(text, flush=True))
    results = _try_all(faults, known, options.budget, options.jobs)
    sys.exit(_report(results))


def draw(count: int, seed: int, path: str = "") -> list[Fault]:
    """Draw statements at random, and one fault of each. The same source and seed give the same faults."""
    random = Random(seed)
    root = (SOURCE / path.removeprefix("src/talaria").strip("/")).resolve()
    texts = {file: file.read_text() for file in source_files() if file == root or root in file.parents}
    found = [faults for file, text in texts.items() for faults in statements(file, text)]
    if not found:
        raise SystemExit(f"mutants: there is no statement to change in {root}")
    drawn: list[Fault] = []
    for faults in random.sample(found, len(found)):
        order = random.sample(faults, len(faults))
        fault = next((fault for fault in order if fault.is_code(texts[fault.path])), None)
        if fault is not None:
            drawn.append(fault)
        if len(drawn) >= count:
            break
    return drawn


def show(fault: Fault) -> str:
    """Return the fault as a diff."""
    text = fault.path.read_text()
    lines = difflib.unified_diff(
        text.splitlines(),
        fault.apply(text).splitlines(),
        f"{_place(fault)}  {fault.kind}",
        "",
        lineterm="",
        n=2,
    )
    return "\n".join(line for line in lines if not line.startswith("+++"))


def _place(fault: Fault) -> str:
    return f"{fault.path.relative_to(SOURCE).as_posix()}:{fault.line}"


def listed_equivalents() -> list[Equivalent]:
    return [
        msgspec.convert(one, Equivalent) for one in tomllib.loads(EQUIVALENT.read_text()).get("fault", [])
    ]


def _try_all(faults: Sequence[Fault], known: Reach, budget: float, jobs: int) -> list[Result]:
    listed = listed_equivalents()
    results: list[Result] = []
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_try, fault, known, listed, budget) for fault in faults]
        try:
            for future in as_completed(futures):
                results.append(result := future.result())
                print(f"{len(results):4} of {len(faults)}  {_line(result)}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop_all()
            raise
    return sorted(results, key=lambda result: faults.index(result.fault))


def _line(result: Result) -> str:
    place = f"{_place(result.fault):38} {result.fault.kind:22}"
    return f"{result.verdict:10} {result.seconds:4.0f} s  {place} {result.how}"


def _try(fault: Fault, known: Reach, listed: Sequence[Equivalent], budget: float) -> Result:
    path = fault.path.relative_to(SOURCE).as_posix()
    text = fault.path.read_text()
    wanted = (path, *fault.lines(text))
    for one in listed:
        if (one.path, one.line, one.becomes) == wanted:
            return Result(fault, "equivalent", one.reason)
    began = time.monotonic()
    reaching = choose(*known.of(fault), budget)
    with folder() as code:
        write_code(code, fault.path, fault.apply(text))
        how = _catch(reaching, code)
        wider = [] if how else choose(*known.around(fault, reaching), budget * 2)
        how = how or _catch(wider, code)
    seconds = time.monotonic() - began
    tried = f"{len(reaching)} tests that reach it, {len(wider)} of its module"
    return Result(fault, "caught" if how else "SURVIVED", how or tried, seconds)


def choose(near: Sequence[RecordedTest], others: Sequence[RecordedTest], budget: float) -> list[RecordedTest]:
    """Return the tests that fit into `budget` seconds, a third of it for tests of other folders.

    Tests of a file stand together, so that they share its fixtures.
    """
    chosen = _fitting(near, budget * 2 / 3)
    chosen += _fitting(others, budget - sum(test.seconds for test in chosen))
    rest = [test for test in near if test not in chosen]
    chosen += _fitting(rest, budget - sum(test.seconds for test in chosen))
    chosen = chosen or [*near, *others][:1]
    files = list(dict.fromkeys(test.node.partition("::")[0] for test in chosen))
    return sorted(chosen, key=lambda test: files.index(test.node.partition("::")[0]))


def _fitting(tests: Sequence[RecordedTest], budget: float) -> list[RecordedTest]:
    seconds = 0.0
    fitting = []
    for test in tests[:_MOST_TESTS]:
        if seconds + test.seconds <= budget:
            seconds += test.seconds
            fitting.append(test)
    return fitting


def _catch(tests: Sequence[RecordedTest], code: Path) -> str:
    """Run the tests until one fails. Return how the fault was caught, or an empty text.

    A slow test may fail by load, so its failure counts if it fails twice.
    """
    waiting = list(tests)
    while waiting:
        outcome = _run(waiting, code)
        failed = next((ran.node for ran in outcome.tests if not ran.passed), None)
        if outcome.status is None:
            return "the tests do not end"
        if outcome.status in (0, _NO_TESTS):
            return ""
        if failed is None:
            return _import_error(outcome)
        place = next(number for number, test in enumerate(waiting) if test.node == failed)
        if waiting[place].seconds < _QUICK_SECONDS or _run([waiting[place]], code).status:
            return failed
        waiting = waiting[place + 1 :]
    return ""


def _run(tests: Sequence[RecordedTest], code: Path) -> Outcome:
    files = list(dict.fromkeys(test.node.partition("::")[0] for test in tests))
    only = [test.node for test in tests]
    one = _TEST_SECONDS + 4 * max(test.seconds for test in tests)
    limit = _IMPORT_SECONDS + 4 * sum(test.seconds for test in tests) + one
    return run_tests(files, code, only=only, options=("-x", "--timeout", str(one)), seconds=limit)


def _import_error(outcome: Outcome) -> str:
    lines = [line for line in outcome.said.splitlines() if line.startswith(("ERROR", "E  ", "INTERNALERROR"))]
    if not lines and "rror" not in outcome.said:
        raise SystemExit(f"mutants: the tests did not run:\n{outcome.said[-2000:]}")
    return f"at import: {lines[0][:100] if lines else 'pytest cannot start'}"


def _report(results: Sequence[Result]) -> int:
    survivors = [result for result in results if result.verdict == "SURVIVED"]
    equivalent = [result for result in results if result.verdict == "equivalent"]
    for result in survivors:
        print(f"\n{show(result.fault)}")
    print()
    for verdict in (survivors, equivalent):
        for result in verdict:
            print(_line(result))
    tried = len(results) - len(equivalent)
    seconds = sum(result.seconds for result in results)
    caught = tried - len(survivors)
    more = f"{len(equivalent)} more are listed as equivalent"
    print(f"\n{caught} of {tried} faults caught; {more}; {seconds:.0f} s of tests")
    return 1 if survivors else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
