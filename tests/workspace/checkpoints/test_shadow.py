"""The copies of a folder: what they cover, what hostile trees can do to them, and what is forgotten."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from talaria.core.files import UndoReport
from talaria.core.ids import SessionId, TurnId
from talaria.core.slots import FairThreads
from talaria.workspace.checkpoints.checkpoints import FolderCheckpoints, _find_records
from talaria.workspace.checkpoints.diffs import describe_changes
from talaria.workspace.checkpoints.reading import CopyLimits, read_tree
from talaria.workspace.checkpoints.restoring import Move, put_back
from talaria.workspace.checkpoints.shadow import Shadow
from talaria.workspace.checkpoints.tree import Tree
from talaria.workspace.workspaces import ChatWorkspaces

SESSION = SessionId("ses_1")


@dataclass
class Copied:
    """A folder whose turns are recorded."""

    place: Path
    limits: CopyLimits = field(default_factory=CopyLimits)
    turns: int = 0

    def __post_init__(self) -> None:
        self.root.mkdir(exist_ok=True)
        self.shadow = Shadow(self.home, self.root, "key", self.limits)

    @property
    def root(self) -> Path:
        return self.place / "files"

    @property
    def home(self) -> Path:
        return self.place / "home"

    def turn(self, *calls: Callable[[], object]) -> TurnId:
        self.turns += 1
        turn_id = TurnId(f"turn_{self.turns:03}")
        for call in calls:
            self.shadow.begin_call(SESSION, turn_id, lambda: False)
            call()
            self.shadow.end_call(SESSION, turn_id, lambda: False)
        return turn_id

    def undo(self, *turn_ids: TurnId) -> UndoReport:
        return self.shadow.undo(SESSION, turn_ids or [TurnId(f"turn_{self.turns:03}")])

    def reasons(self, report: UndoReport) -> dict[str, str]:
        return {kept.path: kept.reason for kept in report.kept}

    def gaps(self, report: UndoReport) -> dict[str, str]:
        return {gap.path: gap.reason for gap in report.uncovered}


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


# -- coverage


def test_a_repository_s_history_is_never_touched(copied: Copied) -> None:
    head = copied.root / ".git" / "HEAD"
    head.parent.mkdir()
    head.write_text("ref: refs/heads/main\n")

    def work() -> None:
        head.write_text("ref: refs/heads/other\n")
        (copied.root / "a").write_text("x")
        (copied.root / "clone" / ".git").mkdir(parents=True)
        (copied.root / "clone" / "b").write_text("x")

    copied.turn(work)
    report = copied.undo()
    assert head.read_text() == "ref: refs/heads/other\n"
    assert copied.gaps(report) == {".git": "such folders are not copied"}
    assert copied.reasons(report) == {
        "clone": "clone/.git stays in it: remove the folder by hand to make it again",
        "clone/.git": "such folders are not copied",
    }
    assert not (copied.root / "a").exists() and not (copied.root / "clone" / "b").exists()


@pytest.mark.parametrize("name", ["node_modules", ".venv", "environment", "cache"])
def test_folders_that_can_be_made_again_are_named_and_not_copied(copied: Copied, name: str) -> None:
    folder = copied.root / name
    folder.mkdir()
    (folder / "big").write_text("x")
    marks = {"environment": "pyvenv.cfg", "cache": "CACHEDIR.TAG"}
    (folder / marks.get(name, "a")).write_text("")
    copied.turn((folder / "big").unlink, lambda: (copied.root / "a").write_text("x"))
    assert copied.gaps(copied.undo()) == {name: "such folders are not copied"}


def test_what_is_beyond_a_limit_is_named_and_nothing_in_it_is_taken_for_deleted(tmp_path: Path) -> None:
    copied = Copied(tmp_path, CopyLimits(items=12, total_bytes=1000, file_bytes=100))
    (copied.root / "large").write_bytes(b"x" * 101)
    (copied.root / "many").mkdir()
    for number in range(8):
        (copied.root / "many" / str(number)).write_bytes(b"x")
    for number in range(5):
        (copied.root / f"new-{number}").write_text("x")  # so many that the folder is not listed any more
    for number in range(5):
        (copied.root / f"new-{number}").unlink()

    def work() -> None:
        (copied.root / "large").write_bytes(b"y" * 101)
        for number in range(5):
            (copied.root / f"new-{number}").write_text("x")

    copied.turn(work)
    report = copied.undo()
    assert copied.reasons(report) == {"large": "it is too large to be copied"}
    assert copied.gaps(report) == {"large": "it is too large to be copied"}
    assert sorted(path.name for path in (copied.root / "many").iterdir()) == [str(n) for n in range(8)]
    assert not (copied.root / "new-0").exists()


def test_a_large_file_that_the_turn_made_goes(tmp_path: Path) -> None:
    copied = Copied(tmp_path, CopyLimits(file_bytes=100))
    copied.turn(lambda: (copied.root / "large").write_bytes(b"x" * 1000))
    assert copied.undo().restored == ("large",)
    assert not (copied.root / "large").exists()


def make_clone(root: Path) -> None:
    (root / "calc" / "src").mkdir(parents=True)
    (root / "calc" / ".git").mkdir()
    (root / "calc" / ".git" / "HEAD").write_text("ref: refs/heads/main")
    (root / "calc" / "src" / "calc.py").write_text("x")


def test_the_rest_of_a_clone_is_named_with_what_to_do(copied: Copied) -> None:
    copied.turn(partial(make_clone, copied.root))
    report = copied.undo()
    assert report.restored == report.removed == ("calc/src", "calc/src/calc.py")
    by_hand = "calc/.git stays in it: remove the folder by hand to make it again"
    assert copied.reasons(report) == {"calc": by_hand, "calc/.git": "such folders are not copied"}
    assert copied.reasons(copied.undo()) == copied.reasons(report)


def test_nobody_is_told_to_remove_a_folder_with_other_files(copied: Copied) -> None:
    copied.turn(partial(make_clone, copied.root))
    (copied.root / "calc" / "mine.txt").write_text("by hand")
    assert copied.reasons(copied.undo())["calc"] == "it has other files in it"


def test_a_folder_with_more_files_than_are_copied_is_left_alone(tmp_path: Path) -> None:
    copied = Copied(tmp_path, CopyLimits(items=50))
    for number in range(100):
        (copied.root / str(number)).write_text("x")
    copied.turn((copied.root / "0").unlink)
    report = copied.undo()
    assert (report.restored, report.kept) == ((), ())
    assert sorted(os.listdir(copied.root))[:2] == ["1", "10"]


def test_a_file_of_which_only_the_mode_is_new_gets_it_back(copied: Copied) -> None:
    (copied.root / "a").write_text("x")
    (copied.root / "a").chmod(0o644)
    copied.turn(lambda: (copied.root / "a").chmod(0o755))
    assert copied.undo().restored == ("a",)
    assert (copied.root / "a").stat().st_mode & 0o777 == 0o644


def test_a_person_s_work_between_two_calls_is_kept(copied: Copied) -> None:
    mine, shared = copied.root / "mine", copied.root / "shared"
    mine.write_text("old")
    shared.write_text("old")
    turn_id = copied.turn(lambda: shared.write_text("by the turn"))
    mine.write_text("by hand")
    shared.write_text("by hand")
    copied.shadow.begin_call(SESSION, turn_id, lambda: False)
    shared.write_text("by the turn again")
    copied.shadow.end_call(SESSION, turn_id, lambda: False)
    assert copied.undo().restored == ("shared",)
    assert (mine.read_text(), shared.read_text()) == ("by hand", "by hand")


def test_a_change_of_the_same_size_in_the_same_moment_is_seen(copied: Copied) -> None:
    file = copied.root / "a"
    file.write_text("x")
    status = file.stat()
    later = Shadow(copied.home, copied.root, "key")
    later.begin_call(SESSION, TurnId("turn_1"), lambda: False)
    file.write_text("y")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    later.end_call(SESSION, TurnId("turn_1"), lambda: False)
    assert later.undo(SESSION, [TurnId("turn_1")]).restored == ("a",)
    assert file.read_text() == "x"


# -- hostile trees


def test_a_link_that_is_swapped_in_leads_nowhere(copied: Copied, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("by the turn")
    folder = copied.root / "folder"
    folder.mkdir()
    (folder / "a").write_text("old")
    copied.turn(lambda: (folder / "a").write_text("by the turn"), lambda: (folder / "b").write_text("x"))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.symlink_to(outside)
    report = copied.undo()
    assert (outside / "a").read_text() == "by the turn"
    assert copied.reasons(report) == {"folder/a": "it was changed since"}


def test_a_parent_that_became_a_link_meanwhile_is_not_followed(copied: Copied, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (copied.root / "folder").symlink_to(tmp_path / "outside")
    (copied.root / "a").write_text("x")
    state = read_tree(copied.root, Tree(), copied.shadow.blobs, CopyLimits()).items["a"]
    for path in ("folder/a", "folder/b/a"):
        failed = put_back(copied.root, [Move(path, None, state)], copied.shadow.blobs.get)
        assert failed == {path: "the folder it was in has been replaced"}
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_folder_that_the_turn_replaced_by_a_link_comes_back_as_a_folder(
    copied: Copied, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (copied.root / "folder").mkdir()
    (copied.root / "folder" / "a").write_text("old")

    def work() -> None:
        (copied.root / "folder" / "a").unlink()
        (copied.root / "folder").rmdir()
        (copied.root / "folder").symlink_to(outside)

    copied.turn(work)
    copied.undo()
    assert not (copied.root / "folder").is_symlink()
    assert (copied.root / "folder" / "a").read_text() == "old"
    assert list(outside.iterdir()) == []


def test_odd_files_are_not_read_and_go_if_the_turn_made_them(copied: Copied) -> None:
    (copied.root / "old").write_text("content")
    odd = os.fsdecode(b"\xff\n\x1b[2J")

    def work() -> None:
        os.mkfifo(copied.root / "pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(copied.root / "socket"))
        (copied.root / "linked").hardlink_to(copied.root / "old")
        (copied.root / odd).write_text("x")

    copied.turn(work)
    report = copied.undo()
    assert report.kept == ()
    assert "\\udcff\\n\\x1b[2J" in report.restored
    assert os.listdir(copied.root) == ["old"]
    assert (copied.root / "old").stat().st_nlink == 1


def test_a_hard_link_to_a_file_outside_is_not_copied(copied: Copied, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not keep me")
    copied.turn(lambda: (copied.root / "mine").hardlink_to(secret))
    packs = [path.read_bytes() for path in (copied.home / "checkpoints").rglob("pack-*")]
    assert not any(b"do not keep me" in pack for pack in packs)
    copied.undo()
    assert secret.read_text() == "do not keep me"


def test_copies_are_for_the_gateway_s_user_alone(copied: Copied) -> None:
    (copied.root / "a").write_text("x")
    copied.turn(lambda: (copied.root / "a").write_text("y"))
    paths = list(copied.home.rglob("*"))
    assert [path for path in paths if path.stat().st_mode & 0o077] == []
    assert len(paths) > 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_as_root_files_come_back_with_the_owner_of_their_folder(copied: Copied) -> None:
    os.chown(copied.root, 12345, 12345)
    (copied.root / "folder").mkdir()
    (copied.root / "folder" / "a").write_text("x")
    for path in copied.root.rglob("*"):
        os.chown(path, 12345, 12345)

    def work() -> None:
        (copied.root / "folder" / "a").unlink()
        (copied.root / "folder").rmdir()

    copied.turn(work)
    copied.undo()
    assert {path.stat().st_uid for path in copied.root.rglob("*")} == {12345}


# -- what is kept


def test_a_damaged_copy_is_said_to_be_gone_and_the_file_stays(copied: Copied) -> None:
    (copied.root / "a").write_text("old content")
    copied.turn(lambda: (copied.root / "a").write_text("new"))
    (pack,) = (copied.home / "checkpoints").rglob("pack-*")
    pack.write_bytes(pack.read_bytes().replace(b"old content", b"bad content"))
    assert copied.reasons(copied.undo()) == {"a": "its copy is gone"}
    assert (copied.root / "a").read_text() == "new"


def test_a_pack_that_a_kill_cut_off_is_written_on(copied: Copied) -> None:
    (copied.root / "a").write_text("first")
    copied.turn(lambda: (copied.root / "a").write_text("second"))
    (pack,) = (copied.home / "checkpoints").rglob("pack-*")
    with pack.open("ab") as file:
        file.write(b"\x00" * 45)
    copied.shadow = Shadow(copied.home, copied.root, "key")
    copied.turn(lambda: (copied.root / "a").write_text("third"))
    copied.shadow = Shadow(copied.home, copied.root, "key")
    copied.undo(TurnId("turn_001"), TurnId("turn_002"))
    assert (copied.root / "a").read_text() == "first"


def test_the_oldest_turns_are_forgotten_with_their_contents(copied: Copied) -> None:
    (copied.root / "other").write_text("z" * 300)
    for number in range(6):
        copied.turn(partial((copied.root / "a").write_text, str(number) * 1000))
    records = _find_records(copied.home / "sessions")["key"]
    assert len(records) == 6
    left = copied.shadow.prune(records, 1, 0.0, is_idle=False)
    assert left < 3000
    assert copied.undo(*(TurnId(f"turn_{number:03}") for number in range(1, 7))).restored == ("a",)
    assert (copied.root / "a").read_text() == "4" * 1000, "as it was before the oldest turn that is kept"
    assert (copied.root / "other").read_text() == "z" * 300


async def test_records_go_with_their_session_and_contents_with_the_next_pruning(copied: Copied) -> None:
    copied.turn(lambda: (copied.root / "a").write_text("x"))
    await ChatWorkspaces(copied.home).forget(SESSION)
    assert _find_records(copied.home / "sessions") == {}
    assert copied.undo() == UndoReport()
    threads = FairThreads("copying", lambda: 1)
    FolderCheckpoints(copied.home, threads).prune(time.time() + 30 * 86_400, 0.0)
    threads.close()
    assert [path for path in copied.home.rglob("*") if path.is_file()] == []


def test_an_idle_folder_keeps_only_what_turns_changed(copied: Copied) -> None:
    (copied.root / "other").write_text("z" * 5000)
    copied.turn(lambda: (copied.root / "a").write_text("x"))
    records = _find_records(copied.home / "sessions")["key"]
    assert copied.shadow.prune(records, 50, 0.0, is_idle=True) < 1000
    assert copied.undo().restored == ("a",)
    assert copied.shadow.prune(records, 0, 0.0, is_idle=True) == 0
    assert [path for path in copied.home.rglob("*") if path.is_file()] == []


# -- differences


def test_binary_long_and_odd_changes_are_a_line_each(copied: Copied) -> None:
    (copied.root / "binary").write_bytes(b"\x00\x01")
    (copied.root / "was").mkdir()

    def work() -> None:
        (copied.root / "binary").write_bytes(b"\x00\x02\x03")
        (copied.root / "long").write_text("x" * (2 << 20))
        (copied.root / "was").rmdir()
        (copied.root / "was").symlink_to("binary")
        (copied.root / "empty").mkdir()

    turn_id = copied.turn(work)
    record = copied.shadow.record(SESSION, turn_id)
    assert record is not None
    files = describe_changes(record.changes_by_path(), copied.shadow.blobs.get)
    assert {file.path: (str(file.kind), file.note) for file in files} == {
        "binary": ("changed", "binary: 2 B → 3 B"),
        "empty": ("created", "a folder"),
        "long": ("created", "too long to compare: 0 B → 2.0 MiB"),
        "was": ("changed", "a folder → a link to binary"),
    }
    assert not any(file.lines for file in files)
