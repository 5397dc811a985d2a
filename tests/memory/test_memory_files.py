"""Memory on a real disk: places, writers of several processes, people who edit, and kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import talaria
from talaria.core.access import OWNER, PersonId
from talaria.core.errors import ToolError
from talaria.core.memory import AddFact, EditOrigin, MemoryPage, MemoryPlace, WritePage
from talaria.core.whole_files import stamp_of
from talaria.memory.memory_files import MemoryFiles, folder_name
from talaria.memory.pages import Edited, apply_edit, body, facts

MINE = MemoryPlace("main", OWNER)
ANNA = MemoryPlace("main", PersonId("telegram:2"))
GROUP = MemoryPlace("main", chat="telegram:group:-5")
PAGE = MemoryPage.MEMORY


def adding(text: str, key: str = "") -> Callable[[str], Edited]:
    return partial(apply_edit, edit=AddFact(PAGE, text), origin=EditOrigin(key or text, "ses_1", 0.0))


def read(files: MemoryFiles, place: MemoryPlace = MINE) -> str:
    return body(files.pages(place)[0].text)


def test_each_place_has_a_folder_of_its_own(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path / "memory")
    for place in (MINE, ANNA, GROUP):
        files.change(place, PAGE, adding(f"of {place.person or place.chat}"))
    assert [path.relative_to(tmp_path / "memory").as_posix() for path in sorted(tmp_path.rglob("*.md"))] == [
        "main/MEMORY.md",
        "main/chats/telegram+group+-5/MEMORY.md",
        "main/people/telegram+2/MEMORY.md",
    ]
    assert "of owner" in read(files, MINE) and "of telegram:2" not in read(files, MINE)
    assert (tmp_path / "memory" / "main" / "MEMORY.md").stat().st_mode & 0o777 == 0o600


def test_a_group_has_no_page_about_a_person(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"USER\.md is not used here"):
        MemoryFiles(tmp_path).change(GROUP, MemoryPage.USER, adding("x"))
    assert [each.page for each in MemoryFiles(tmp_path).pages(GROUP)] == [PAGE]


def test_a_hand_that_edits_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    files, path = MemoryFiles(tmp_path), tmp_path / "main" / "MEMORY.md"
    files.change(MINE, PAGE, adding("first"))
    calls: list[str] = []

    def edit(text: str) -> Edited:
        if not calls:  # a person saves the file while the edit is prepared
            path.write_text("- by hand\n")
        calls.append(text)
        return adding("second")(text)

    files.change(MINE, PAGE, edit)
    assert len(calls) == 2
    assert [line.partition(" <")[0] for line in read(files).splitlines()] == ["- by hand", "- second"]


def test_an_edit_by_hand_is_seen_at_once(tmp_path: Path) -> None:
    files, path = MemoryFiles(tmp_path), tmp_path / "main" / "MEMORY.md"
    files.change(MINE, PAGE, adding("first"))
    assert files.pages(MINE) is files.pages(MINE)
    path.write_text("- by hand\n")
    assert read(files) == "- by hand"
    path.unlink()
    assert read(files) == ""


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.write_bytes(b"\xff\xfe"), "not text in UTF-8"),
        (lambda path: path.write_bytes(b"x" * 70_000), "more than 65536 bytes"),
        (lambda path: path.mkdir(), "is not a file"),
        (os.mkfifo, "is not a file"),
    ],
)
def test_a_page_that_cannot_be_used_is_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], object], why: str
) -> None:
    files, path = MemoryFiles(tmp_path), tmp_path / "main" / "MEMORY.md"
    path.parent.mkdir()
    spoil(path)
    before = stamp_of(path)
    with pytest.raises(ToolError, match=why):
        files.change(MINE, PAGE, adding("x"))
    assert why in files.pages(MINE)[0].trouble and files.pages(MINE)[0].text == ""
    assert stamp_of(path) == before


def test_a_disk_that_cannot_be_written_is_an_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(ToolError, match="The memory cannot be written: "):
        MemoryFiles(tmp_path).change(MINE, PAGE, adding("x"))


def test_pages_before_a_rewrite_are_kept_and_bounded(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path)
    for number in range(14):
        edit = partial(
            apply_edit, edit=WritePage(PAGE, f"text {number}"), origin=EditOrigin(str(number), "hand", 0.0)
        )
        files.change(MINE, PAGE, edit, keeps=True)
    kept = sorted((tmp_path / "main" / "earlier").iterdir())
    assert [path.read_text() for path in kept] == [f"text {number}\n" for number in range(3, 13)]


WRITER = """
import sys
from functools import partial
from pathlib import Path
from talaria.core import failpoints
from talaria.core.memory import AddFact, EditOrigin, MemoryPage, MemoryPlace
from talaria.core.access import OWNER
from talaria.memory.memory_files import MemoryFiles
from talaria.memory.pages import apply_edit

root, plan, *texts = sys.argv[1:]
failpoints.arm(plan)
files = MemoryFiles(Path(root))
for text in texts:
    edit = partial(
        apply_edit, edit=AddFact(MemoryPage.MEMORY, text), origin=EditOrigin(text, "ses_1", 0.0)
    )
    files.change(MemoryPlace("main", OWNER), MemoryPage.MEMORY, edit)
"""


def writer(root: Path, plan: str, *texts: str) -> subprocess.Popen[bytes]:
    source = {"PYTHONPATH": str(Path(talaria.__file__).parents[1])}  # the one under test
    command = [sys.executable, "-c", WRITER, str(root), plan, *texts]
    return subprocess.Popen(command, env=os.environ | source)


@pytest.mark.parametrize(("point", "done"), [("memory.writing", False), ("memory.written", True)])
def test_a_kill_leaves_the_old_page_or_the_new_one_and_a_repeat_doubles_nothing(
    tmp_path: Path, point: str, done: bool
) -> None:
    files = MemoryFiles(tmp_path)
    assert writer(tmp_path, f"{point}=2", "one", "two").wait() == -9
    assert [fact.partition(" <")[0] for fact in facts(read(files))] == ["one", "two"][: 1 + done]
    for text in ("one", "two"):  # what is resumed is carried out again
        files.change(MINE, PAGE, adding(text))
    assert [fact.partition(" <")[0] for fact in facts(read(files))] == ["one", "two"]
    assert list((tmp_path / "main").glob(".MEMORY*")) == []


def test_writers_of_several_processes_lose_nothing(tmp_path: Path) -> None:
    texts = [[f"{process}-{number}" for number in range(12)] for process in range(3)]
    for process in [writer(tmp_path, "", *each) for each in texts]:
        assert process.wait() == 0
    found = {fact.partition(" <")[0] for fact in facts(read(MemoryFiles(tmp_path)))}
    assert found == {text for each in texts for text in each}


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("owner", "owner"),
        ("telegram:1234", "telegram+1234"),
        ("telegram:../../x", "telegram+..%2F..%2Fx"),
        ("slack:U1", "slack+%551"),
        ("http:token:a+b", "http+token+a%2Bb"),
        ("x:ü", "x+%C3%BC"),
    ],
)
def test_a_folder_has_one_name_for_each_person(text: str, folder: str) -> None:
    assert folder_name(text) == folder


def test_troubles_are_told_with_their_files(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path)
    for place in (MINE, ANNA):
        files.change(place, PAGE, adding("fine"))
    assert files.troubles() == []
    (tmp_path / "main" / "USER.md").write_bytes(b"\xff")
    (tmp_path / "main" / "people" / "telegram+2" / "MEMORY.md").write_text("x" * 9000)
    assert files.troubles() == [
        f"{tmp_path}/main/people/telegram+2/MEMORY.md has 9000 bytes, and only 8192 are read.",
        f"{tmp_path}/main/USER.md: USER.md is not text in UTF-8.",
    ]
