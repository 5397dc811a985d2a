"""`./dev test --changed`: which tests a change selects."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mutants.blocks import ROOT
from mutants.changes import Change, differing, read_changes, select
from mutants.reach import Reach, RecordedFile, RecordedTest

MODULE = "src/talaria/core/backoff.py"
TEXT = (ROOT / MODULE).read_text()
READERS = {"tests/docs/test_docs.py", "tests/docs/test_names.py", "tests/golden/test_texts.py"}


@pytest.mark.parametrize(
    ("old", "new", "functions", "names"),
    [
        ("def f(): return 1", "def f(): return 2", {"f"}, set()),
        ("def f(): return 1", "def f():\n    return 1  # why", set(), set()),
        ("def f(): ...", "def f(): ...\ndef g(): ...", {"g"}, set()),
        ("class A:\n    def f(self): ...", "class A: ...", {"A.f"}, set()),
        ("def f():\n    def g(): return 1", "def f():\n    def g(): return 2", {"f", "f.g"}, set()),
        ("A = 1\nB = 2", "A = 1\nB = 3", set(), {"B"}),
        ("class A:\n    size: int = 1", "class A:\n    size: int = 2", set(), {"size"}),
        ("class A: ...", "class A(B): ...", set(), {"A"}),
        ("from a import b\ndef f(): b()\ndef g(): ...", "def f(): b()\ndef g(): ...", {"f"}, set()),
        ("register(A)", "register(B)", set(), {"register", "A", "B"}),
        ('"""One."""\nA = 1', '"""Two."""\n\nA = 1', set(), set()),
        ("", "A = 1\ndef f(): ...", {"f"}, {"A"}),
    ],
)
def test_what_differs_is_known_by_function_and_name(
    old: str, new: str, functions: set[str], names: set[str]
) -> None:
    assert differing(old, new) == (functions, names)


def known(seconds: float = 0.1) -> Reach:
    """Records of two files: `pause` and `pauses` of `Backoff` are entered by different tests."""
    names = [
        "core/backoff.py:Backoff.pause#0.0 x",
        "core/backoff.py:Backoff.pauses#0.0 x",
        "core/ids.py:f#0 x",
    ]
    near = [("one", "1", True), ("both", "3", True), ("red", "2", False), ("other", "4", True)]
    return Reach(
        {
            file: RecordedFile(
                "",
                names,
                [RecordedTest(f"{file}::test_{name}[1]", seconds, ok, bits) for name, bits, ok in near],
            )
            for file in ("tests/turns/test_line.py", "tests/core/test_backoff.py")
        }
    )


def selected(old: str, new: str, *, seconds: float = 0.1) -> list[str]:
    """Return the recorded tests that are selected when `old` becomes `new` in the module."""
    assert old in TEXT
    found = select([Change(MODULE, TEXT, TEXT.replace(old, new))], known(seconds), ())
    assert found.files >= READERS
    assert found.left_out == 0
    return [one.removeprefix("tests/") for one in found.arguments() if "::" in one]


def test_a_changed_function_selects_the_tests_that_enter_it_and_the_near_ones_first() -> None:
    assert selected("failures <= 0", "failures < 0") == [
        "core/test_backoff.py::test_one",
        "core/test_backoff.py::test_both",
        "turns/test_line.py::test_one",
        "turns/test_line.py::test_both",
    ]


def test_a_test_that_failed_in_the_recording_is_selected_too() -> None:
    assert [one for one in selected("yield self", "yield 1 + self") if "turns" in one] == [
        "turns/test_line.py::test_red",
        "turns/test_line.py::test_both",
    ]


def test_a_new_function_selects_the_tests_of_its_module() -> None:
    found = selected("    def pause(", "    def more(self): ...\n\n    def pause(")
    assert {one.rpartition("_")[2] for one in found} == {"one", "both", "red"}


def test_a_changed_constant_selects_tests_of_functions_that_mention_it_and_files_that_import_it() -> None:
    assert set(selected("_LARGEST_EXPONENT = 64", "_LARGEST_EXPONENT = 6")) == {
        "core/test_backoff.py::test_one",
        "core/test_backoff.py::test_both",
        "core/test_backoff.py::test_other",
        "turns/test_line.py::test_one",
        "turns/test_line.py::test_both",
    }


def test_a_comment_selects_only_the_tests_that_read_the_source() -> None:
    assert selected("# beyond any", "# more than any") == []


def test_tests_that_do_not_fit_into_a_minute_are_counted_and_the_far_ones_left_out() -> None:
    change = Change(MODULE, TEXT, TEXT.replace("failures <= 0", "failures < 0"))
    found = select([change], known(seconds=40), ())
    assert [test.node.partition("[")[0] for test in found.tests] == [
        "tests/core/test_backoff.py::test_one",
        "tests/core/test_backoff.py::test_both",
    ]
    assert found.left_out == 2


def test_without_a_record_imports_select_whole_files() -> None:
    change = Change(MODULE, TEXT, TEXT.replace("failures <= 0", "failures < 0"))
    unrecorded = ["tests/docs/test_docs.py", "tests/core/test_ids.py", "tests/models/test_endpoint.py"]
    found = select([change], Reach({}), unrecorded)
    assert found.by_import == {"tests/models/test_endpoint.py"}
    assert "tests/models/test_endpoint.py" in found.arguments()


@pytest.mark.parametrize(
    ("path", "has", "has_not"),
    [
        ("tests/core/test_ids.py", "tests/core/test_ids.py", "tests/core/test_backoff.py"),
        ("tests/support/sim.py", "tests/turns/test_races.py", "tests/core/test_backoff.py"),
        ("tests/store/conftest.py", "tests/store/test_archive.py", "tests/core/test_backoff.py"),
        ("tests/support/leftovers.py", "tests/core/test_backoff.py", "tests/core/noticing.py"),
        ("tests/golden/openapi.json", "tests/golden/test_http.py", "tests/core/test_backoff.py"),
        ("docs/jobs.md", "tests/docs/test_docs.py", "tests/golden/test_texts.py"),
        ("CHANGELOG.md", "tests/docs/test_docs.py", "tests/golden/test_http.py"),
        ("mutants/faults.py", "tests/mutants/test_mutants.py", "tests/core/test_ids.py"),
        ("src/talaria/testing/model_server.py", "tests/models/test_contract.py", "tests/core/test_ids.py"),
        ("pyproject.toml", "tests/core/test_installation.py", "tests/core/test_ids.py"),
    ],
)
def test_other_files_select_whole_test_files(path: str, has: str, has_not: str) -> None:
    found = select([Change(path, "", "")], known(), ())
    assert has in found.files
    assert has_not not in found.files
    assert found.tests == []


def test_a_file_of_the_source_that_is_not_code_selects_the_tests_of_its_folder() -> None:
    found = select([Change("src/talaria/core/words.txt", "", "")], known(), ())
    assert {test.node.rpartition("_")[2] for test in found.tests} == {
        "one[1]",
        "both[1]",
        "red[1]",
        "other[1]",
    }


def test_changes_are_those_since_a_commit_and_those_that_are_not_committed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    for name in ("kept.py", "gone.py", "edited.py", "committed.py"):
        (tmp_path / name).write_text("A = 1\n")
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    git("add", ".")
    git("commit", "-qm", "one")
    (tmp_path / "committed.py").write_text("A = 2\n")
    git("commit", "-qam", "two")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "edited.py").write_text("A = 3\n")
    for name in ("new.py", "page.md", "ignored.py"):
        (tmp_path / name).write_text("A = 4\n")
    uncommitted = {
        Change("gone.py", "A = 1\n", ""),
        Change("edited.py", "A = 1\n", "A = 3\n"),
        Change("new.py", "", "A = 4\n"),
        Change("page.md", "", ""),
    }
    assert set(read_changes("HEAD", tmp_path)) == uncommitted
    committed = {Change("committed.py", "A = 1\n", "A = 2\n")}
    assert set(read_changes("HEAD~1", tmp_path)) == uncommitted | committed
    with pytest.raises(SystemExit, match="nothing"):
        list(read_changes("nothing", tmp_path))
