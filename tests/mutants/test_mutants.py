"""`./dev mutants`: which faults it plants, and that it sees what tests reach and notice."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from mutants.__main__ import draw, listed_equivalents, show
from mutants.blocks import SOURCE, blocks, source_files, write_code, write_recording
from mutants.faults import statements
from mutants.reach import Reach, RecordedFile, RecordedTest, _record_part
from mutants.runs import folder, run_tests, sweep

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


def test_nearer_and_more_specific_tests_come_first_and_failing_ones_never() -> None:
    name = next(blocks(MODULE, ast.parse(MODULE.read_text()))).name
    fault = next(
        fault for faults in statements(MODULE, MODULE.read_text()) for fault in faults if fault.block == name
    )

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
import subprocess

def test_leaves_a_process():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    open({path!r}, "w").write(str(process.pid))
    del process
"""


def test_the_code_of_a_killed_child_process_is_recorded_and_its_faults_are_caught(tmp_path: Path) -> None:
    test = tmp_path / "test_child.py"
    test.write_text(WITH_A_CHILD)
    recording, faulty = tmp_path / "recording", tmp_path / "faulty"
    recording.mkdir()
    faulty.mkdir()
    text = MODULE.read_text()

    found = write_recording(recording, [MODULE])
    outcome = run_tests([str(test)], recording, blocks=len(found), seconds=60)
    assert [ran.passed for ran in outcome.tests] == [True], outcome.said
    entered = {found[number].name.partition(" ")[0] for ran in outcome.tests for number in ran.entered}
    assert entered == {"core/backoff.py:Backoff.pause#0.0", "core/backoff.py:Backoff.pause#0.1"}

    write_code(faulty, MODULE, text.replace("failures - 1", "failures + 1"))
    outcome = run_tests([str(test)], faulty, seconds=60)
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
    recording, plain = tmp_path / "recording", tmp_path / "plain"
    recording.mkdir()
    plain.mkdir()
    found = write_recording(recording, [MODULE])
    (ran,) = _record_part([str(test)], recording, plain, found)
    assert ran.passed
    assert len(ran.entered) == 2


def test_a_run_ends_at_its_limit_and_takes_what_it_started_along(tmp_path: Path) -> None:
    test = tmp_path / "test_detached.py"
    test.write_text(DETACHED.format(path=str(tmp_path / "pid")))
    assert run_tests([str(test)], tmp_path, seconds=60).status == 0
    status = Path("/proc", (tmp_path / "pid").read_text(), "status")
    assert not status.exists() or "State:\tZ" in status.read_text()
    assert run_tests([str(test)], tmp_path, seconds=0.01).status is None


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
