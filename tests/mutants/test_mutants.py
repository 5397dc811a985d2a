"""`./dev mutants`: which faults it plants, and that it sees what tests reach and notice."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from mutants.blocks import SOURCE, blocks, source_files, write_recording
from mutants.detection import detect, run_all
from mutants.faults import Fault, statements
from mutants.matrix import Row, only_detectors, read_matrix, summarize, wilson
from mutants.reach import Reach, RecordedFile, RecordedTest, _record_part
from mutants.runs import folder, run_tests, source_copy, sweep
from mutants.sampling import draw, listed_equivalents, show

MODULE = SOURCE / "core" / "backoff.py"

KINDS = [
    ("return a < b", "comparison changed", "return a <= b"),
    ("return a <= b < c", "comparison changed", "return a < b < c"),
    ("return x is not None", "comparison changed", "return x is None"),
    ("return a and b", "and became or", "return a or b"),
    ("return not a", "not removed", "return (a)"),
    ("if a: b()", "condition negated", "if not (a): b()"),
    ("x = [a for a in b if a]", "condition negated", "x = [a for a in b if not (a)]"),
    ("return a + b", "arithmetic changed", "return a - b"),
    ("return min(a, b)", "opposite function", "return max(a, b)"),
    ("a(2)", "number changed", "a(3)"),
    ("a(200)", "number changed", "a(100)"),
    ("a(timeout=30)", "number changed", "a(timeout=0)"),
    ("a(True)", "constant flipped", "a(False)"),
    ('return a["key"]', "word changed", 'return a["keyx"]'),
    ('return a == "word"', "word changed", 'return a == "wordx"'),
    ("await a()", "call removed", "pass"),
    ("self.a = b", "assignment removed", "pass"),
    ("a = b()", "assigns None", "a = None"),
    ("del a[b]", "deletion removed", "pass"),
    ("return a", "returns None", "return None"),
    ("return", "return removed", "pass"),
    ("raise A(b)", "raise removed", "pass"),
    ("raise A(b)", "another error raised", "raise RuntimeError(b)"),
    ("for a in b: break", "loop removed", "for a in (): break"),
    ("for a in b: break", "break became continue", "for a in b: continue"),
    ("while a: continue", "continue became break", "while a: break"),
    ("a(b=c, d=e)", "argument removed", "a(d=e)"),
    ("a(c, b=d)", "argument removed", "a(c, )"),
]


def faults_in(body: str) -> list[tuple[str, str]]:
    text = "async def f(self):\n    " + body.replace("\n", "\n    ") + "\n"
    found = [fault for faults in statements(MODULE, text) for fault in faults]
    return [(fault.kind, fault.apply(text).split("\n", 1)[1].strip()) for fault in found]


@pytest.mark.parametrize(
    ("body", "kind", "becomes"), KINDS, ids=[f"{kind}: {body}" for body, kind, _ in KINDS]
)
def test_small_faults_are_planted(body: str, kind: str, becomes: str) -> None:
    assert (kind, becomes) in faults_in(body)


def test_an_error_can_pass_its_handler() -> None:
    found = faults_in("try:\n    a()\nexcept (B, C):\n    pass")
    assert [text for kind, text in found if kind == "handler removed"] == [
        "try:\n        a()\n    except (ZeroDivisionError, C):\n        pass",
        "try:\n        a()\n    except (B, ZeroDivisionError):\n        pass",
    ]


@pytest.mark.parametrize(
    "body",
    [
        '"""Text."""',
        '_log.info("text", 1)',
        "assert a",
        "import a",
        "a: int",
        'if a:\n    _log.info("text")',
        "recv(65536)",
        "del a",
        "await asyncio.gather(a, return_exceptions=True)",
        'text = f"{a}"',
        "os.fsync(file)",
        "pass",
    ],
)
def test_wording_and_declarations_have_no_faults(body: str) -> None:
    assert [kind for kind, _ in faults_in(body) if kind not in ("call removed",)] == []


def test_words_of_messages_stay() -> None:
    assert {kind for kind, _ in faults_in('raise A("text", hint="more")')} == {
        "raise removed",
        "another error raised",
    }


def test_values_and_defaults_outside_of_functions_have_faults() -> None:
    text = "LIMIT = 5 << 20\nclass A:\n    size: int = 300\n    def f(self, deep=True): ...\n"
    found = [fault for faults in statements(MODULE, text) for fault in faults]
    assert [(fault.subject, *fault.lines(text)) for fault in found] == [
        ("LIMIT", "LIMIT = 5 << 20", "LIMIT = 0"),
        ("size", "size: int = 300", "size: int = 150"),
        ("", "def f(self, deep=True): ...", "def f(self, deep=False): ..."),
    ]


def test_a_seed_draws_the_same_faults_again_and_another_seed_others() -> None:
    first = draw(5, 1, "src/talaria/core/backoff.py")
    assert first == draw(5, 1, "core/backoff.py")
    assert first != draw(5, 2, "core/backoff.py")
    assert {fault.path for fault in first} == {MODULE}
    assert all(show(fault).startswith("--- core/backoff.py:") for fault in first)
    assert "testing" not in {path.relative_to(SOURCE).parts[0] for path in source_files()}


def test_every_listed_equivalent_can_still_be_planted() -> None:
    for listed in listed_equivalents():
        path = SOURCE / listed.path
        text = path.read_text()
        planted = {fault.lines(text) for faults in statements(path, text) for fault in faults}
        assert (listed.line, listed.becomes) in planted, listed
        assert len(listed.reason) > 10


def a_fault() -> Fault:
    """Return a fault of the first block of `MODULE`."""
    text = MODULE.read_text()
    name = next(blocks(MODULE, ast.parse(text))).name
    return next(fault for faults in statements(MODULE, text) for fault in faults if fault.block == name)


def test_nearer_and_more_specific_tests_come_first_and_failing_ones_never() -> None:
    fault = a_fault()
    name = fault.block

    def file(name_of: str, *tests: tuple[str, str, bool]) -> tuple[str, RecordedFile]:
        records = [RecordedTest(f"{name_of}::{test}", 0.1, passes, bits) for test, bits, passes in tests]
        return name_of, RecordedFile("", [name, "core/ids.py:new#0.0 x"], records)

    reach = Reach(
        dict(
            [
                file("tests/turns/test_line.py", ("far", "1", True), ("elsewhere", "2", True)),
                file("tests/core/test_ids.py", ("near", "1", True)),
                file(
                    "tests/core/test_backoff.py",
                    ("wide", "3", True),
                    ("exact", "1", True),
                    ("red", "1", False),
                ),
            ]
        )
    )
    assert [[test.node.partition("::")[2] for test in tests] for tests in reach.of(fault)] == [
        ["exact", "wide", "near"],
        ["far"],
    ]
    tried = [test for tests in reach.of(fault) for test in tests]
    assert [[test.node.partition("::")[2] for test in tests] for tests in reach.around(fault, tried)] == [
        [],
        ["elsewhere"],
    ]


WITH_A_CHILD = """
import subprocess, sys

CHILD = "import os; from talaria.core.backoff import Backoff; print(Backoff(1, 60).pause(2), flush=True);"

def test_a_killed_child():
    command = [sys.executable, "-c", f"{CHILD} os.kill(os.getpid(), 9)"]
    said = subprocess.run(command, capture_output=True)
    assert (said.returncode, said.stdout) == (-9, b"2.0\\n")
"""


DETACHED = """
import os, subprocess, sys
from pathlib import Path
import talaria

def test_leaves_processes():
    source = str(Path(talaria.__file__).parent)
    commands = ([], None), ([], {{"TMPDIR": os.environ["TMPDIR"]}}), ([source], {{}})
    started = [
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)", *more], env=env, start_new_session=True
        )
        for more, env in commands
    ]
    open({path!r}, "w").write(" ".join(str(process.pid) for process in started))
    os._exit(0)  # else a process that was not waited for fails the test
"""


def test_the_code_of_a_killed_child_process_is_recorded_and_its_faults_are_caught(tmp_path: Path) -> None:
    test = tmp_path / "test_child.py"
    test.write_text(WITH_A_CHILD)
    recording = tmp_path / "recording"
    recording.mkdir()
    text = MODULE.read_text()

    found = write_recording(recording, [MODULE])
    with source_copy({}) as copy:
        outcome = run_tests([str(test)], copy, recording=recording, blocks=len(found), seconds=60)
    assert [ran.passed for ran in outcome.tests] == [True], outcome.said
    entered = {found[number].name.partition(" ")[0] for ran in outcome.tests for number in ran.entered}
    assert entered == {"core/backoff.py:Backoff.pause#0.0", "core/backoff.py:Backoff.pause#0.1"}

    with source_copy({MODULE: text.replace("failures - 1", "failures + 1")}) as copy:
        outcome = run_tests([str(test)], copy, seconds=60)
    assert [ran.passed for ran in outcome.tests] == [False], outcome.said
    assert MODULE.read_text() == text


FAILS_ONCE = """
from pathlib import Path
from talaria.core.backoff import Backoff

def test_by_load():
    mark = Path({path!r})
    if not mark.exists():
        mark.touch()
        raise TimeoutError
    assert Backoff(1, 60).pause(2) == 2.0
"""


def test_a_test_that_fails_by_load_is_recorded_again(tmp_path: Path) -> None:
    """What it entered before it failed is not all that it enters."""
    test = tmp_path / "test_load.py"
    test.write_text(FAILS_ONCE.format(path=str(tmp_path / "mark")))
    recording = tmp_path / "recording"
    recording.mkdir()
    found = write_recording(recording, [MODULE])
    with source_copy({}) as copy:
        (ran,) = _record_part([str(test)], copy, recording, found)
    assert ran.passed
    assert len(ran.entered) == 2


def test_a_run_ends_at_its_limit_and_takes_what_it_started_along(tmp_path: Path) -> None:
    test = tmp_path / "test_detached.py"
    test.write_text(DETACHED.format(path=str(tmp_path / "pid")))
    with source_copy({}) as copy:
        assert run_tests([str(test)], copy, seconds=60).status == 0
    left = [Path("/proc", pid, "status") for pid in (tmp_path / "pid").read_text().split()]
    assert len(left) == 3
    assert [one for one in left if one.exists() and "State:\tZ" not in one.read_text()] == []
    assert run_tests([str(test)], tmp_path, seconds=0.01).status is None


def test_postgresql_tests_run_also_as_root_and_notice_a_fault() -> None:
    """As root, PostgreSQL runs as `nobody`: the folders of a run must be open to other users."""
    node = "tests/store/test_postgres_races.py::test_a_turn_is_begun_by_one_owner"
    module = SOURCE / "store" / "postgres" / "link.py"
    text = module.read_text()
    assert text.count("        return self._pipe\n") == 1
    with source_copy({}) as copy:
        (ran,) = run_tests([node], copy, seconds=120).tests
    assert (ran.result, ran.reason) == ("passed", "")
    with source_copy({module: text.replace("        return self._pipe\n", "        return None\n")}) as copy:
        (ran,) = run_tests([node], copy, seconds=120).tests
    assert ran.result == "failed"


def test_a_fault_of_a_program_that_is_run_by_its_path_is_planted_too() -> None:
    """`grep` runs matcher.py with `python -I`, where no import hook works."""
    module = SOURCE / "tools" / "matcher.py"
    text = module.read_text()
    assert text.count('__name__ == "__main__"') == 1
    with source_copy({module: text.replace('__name__ == "__main__"', "False")}) as copy:
        (ran,) = run_tests(["tests/tools/test_search.py"], copy, options=("-x",), seconds=120).tests[-1:]
    assert ran.result == "failed"


NOTICING = "tests/mutants/noticing.py"
QUICK = ("quiet", "skipped", "expected", "fails", "hangs", "ends_the_process", "fails_too")


def noticing(*tests: str) -> list[RecordedTest]:
    """Return tests of noticing.py. The last two are slow enough to fail by load."""
    return [
        RecordedTest(f"{NOTICING}::test_{name}", 0.1 if name in QUICK else 5.0, True, "0")
        for name in tests or (*QUICK, "fails_once", "fails_by_load")
    ]


def names(nodes: Iterable[str]) -> list[str]:
    return [node.partition("::test_")[2] for node in nodes]


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NOTICING_MARK", str(tmp_path / "mark"))
    with source_copy({MODULE: MODULE.read_text().replace("failures - 1", "failures + 1")}) as copy:
        yield copy


def test_all_tests_that_notice_a_fault_are_found_also_after_one_that_ends_pytest(
    faulty: Path,
) -> None:
    found = run_all(noticing(), faulty, is_first_enough=False)
    assert names(found.noticed) == ["fails", "hangs", "ends_the_process", "fails_too"]
    assert (found.verdict, found.ran, found.skipped) == ("caught", 8, {"no printer": 1})


def test_the_first_test_that_notices_a_fault_is_enough_if_no_matrix_is_made(
    faulty: Path,
) -> None:
    assert names(run_all(noticing(), faulty, is_first_enough=True).noticed) == ["fails"]


def test_a_skipped_test_did_not_run_so_its_fault_is_not_measured(faulty: Path) -> None:
    found = run_all(noticing("skipped"), faulty, is_first_enough=True)
    assert (found.verdict, found.ran, found.lack) == ("NOT MEASURED", 0, "1 skipped: no printer")
    found = run_all(noticing("quiet", "skipped", "expected"), faulty, is_first_enough=True)
    assert (found.verdict, found.ran) == ("SURVIVED", 2)


def test_a_fault_that_no_test_reaches_is_measured_only_if_no_test_was_skipped() -> None:
    def verdict(skipped: str) -> tuple[str, str]:
        test = RecordedTest("tests/core/test_ids.py::test_one", 0.1, not skipped, "1", skipped)
        found = detect(a_fault(), Reach({"tests/core/test_ids.py": RecordedFile("", ["x#0"], [test])}), 5)
        return found.verdict, found.lack

    assert verdict("") == ("SURVIVED", "")
    assert verdict("no PostgreSQL") == ("NOT MEASURED", "1 skipped: no PostgreSQL")


def test_a_file_that_cannot_be_imported_notices_a_fault_as_a_whole() -> None:
    with source_copy({MODULE: "raise OSError('broken')\n"}) as copy:
        found = run_all(noticing(), copy, is_first_enough=False)
    assert found.noticed == {NOTICING: "E   OSError: broken"}


def test_a_matrix_continues_after_a_kill_and_names_tests_that_nobody_may_delete(tmp_path: Path) -> None:
    rows = [
        Row("c1", "a.py", 1, "k", "x", "y", "caught", 2, 3, {"tests/test_a.py": ["test_1", "test_2"]}),
        Row("c1", "a.py", 2, "k", "x", "y", "caught", 2, 3, {"tests/test_a.py": ["test_1"]}),
        Row("c1", "a.py", 3, "k", "x", "y", "SURVIVED", 9),
        Row("c1", "a.py", 4, "k", "x", "y", "NOT MEASURED", reason="1 skipped: no printer"),
        Row("c1", "a.py", 5, "k", "x", "y", "equivalent", reason="no difference"),
    ]
    path = tmp_path / "matrix.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows) + b'{"commit":"c1","pa')
    assert read_matrix(path) == rows
    said = summarize(rows)
    assert "only one to notice a fault: 1\n  tests/test_a.py::test_1  a.py:2" in said
    assert "2 of 3 faults caught: 67 % (95 % interval: 21 % to 94 %)" in said

    def lost_without(*tests: str) -> list[int]:
        return [row.line for row, _ in only_detectors(tests, rows)]

    assert lost_without("tests/test_a.py") == lost_without("tests") == [1, 2]
    assert lost_without("tests/test_a.py::test_1") == [2]
    assert lost_without("tests/test_a.py::test_2") == lost_without("tests/test_b.py") == []


def test_the_interval_of_a_rate_is_wilsons() -> None:
    assert [round(one, 4) for one in wilson(5, 10)] == [0.2366, 0.7634]
    assert wilson(0, 0) == (0.0, 1.0)


def test_what_a_killed_run_left_behind_is_swept_away() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    left = Path(tempfile.gettempdir(), f"mut-{gone.pid}-left")
    left.mkdir()
    with folder() as ours:
        orphan = subprocess.Popen(["sleep", "600"], env={**os.environ, "MUTANTS_RUN": left.name})
        child = subprocess.Popen(["sleep", "600"], env={**os.environ, "MUTANTS_RUN": ours.name})
        try:
            sweep()
            assert orphan.wait(30) == -signal.SIGKILL
            assert not left.exists()
            assert child.poll() is None
            assert ours.exists()
        finally:
            for process in (orphan, child):
                process.kill()
                process.wait()
