"""Undo puts back exactly the tree from before, over kills at every point where something is written."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.ids import SessionId, TurnId
from talaria.workspace.checkpoints.shadow import Shadow

SESSION = SessionId("ses_1")
PATHS = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/f")
FOLDER_MODES, FILE_MODES = (0o700, 0o755), (0o600, 0o755, 0o400)
Items = dict[str, tuple[str, int, str]]


class Died(BaseException):
    """The process was killed."""


class _Death:
    """Once the count of writes is used up, every further write fails, as after a kill."""

    left: int | None = None
    is_installed = False

    def look(self, event: str, args: tuple[object, ...]) -> None:
        if self.left is None or not _writes(event, args):
            return
        if self.left == 0:
            raise Died
        self.left -= 1


_WRITES = frozenset(
    f"os.{name}" for name in ("rename", "remove", "mkdir", "rmdir", "chmod", "chown", "symlink", "link")
)
_death = _Death()


def _writes(event: str, args: tuple[object, ...]) -> bool:
    if event == "open":
        return isinstance(args[2], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
    return event in _WRITES


@contextmanager
def killed_after(writes: int) -> Iterator[None]:
    """Kill the work in the block before it writes once more than that."""
    if not _Death.is_installed:
        sys.addaudithook(_death.look)
        _Death.is_installed = True
    _death.left = writes
    try:
        yield
    finally:
        _death.left = None


def take(root: Path) -> Items:
    found: Items = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            status = path.lstat()
            mode = stat.S_IMODE(status.st_mode)
            if path.is_symlink():
                item = ("link", 0, str(path.readlink()))
            elif path.is_dir():
                item = ("folder", mode, "")
            else:
                item = ("file", mode, path.read_text())
            found[str(path.relative_to(root))] = item
    return found


Change = tuple[str, str, str]
changes = st.tuples(
    st.sampled_from(("write", "write", "delete", "folder", "chmod", "link")),
    st.sampled_from(PATHS),
    st.sampled_from(("x", "y", "zz")),
)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(NotADirectoryError):
            path.unlink(missing_ok=True)


def apply(root: Path, change: Change) -> None:
    kind, name, value = change
    path, number = root / name, len(name) + len(value)
    if kind not in ("delete", "chmod"):
        parent = path.parent
        if not parent.is_dir() or parent.is_symlink():
            apply(root, ("folder", str(parent.relative_to(root)), value))
    if kind == "chmod":
        with suppress(OSError):
            modes = FOLDER_MODES if path.is_dir() else FILE_MODES
            path.chmod(modes[number % len(modes)], follow_symlinks=True) if not path.is_symlink() else None
        return
    if kind == "write" and path.is_file() and not path.is_symlink() and value != "zz":
        path.chmod(0o600)
        path.write_text(value)  # in place, often with the same size
        return
    clear(path)
    if kind == "write":
        path.write_text(value)
    elif kind == "folder":
        path.mkdir(0o755)
    elif kind == "link":
        path.symlink_to(value)


@settings(max_examples=30)
@given(
    turns=st.lists(st.lists(st.lists(changes, max_size=4), max_size=2), min_size=1, max_size=3),
    undone=st.integers(1, 3),
    deaths=st.lists(st.integers(0, 12), max_size=4),
)
def test_undo_restores_the_tree_from_before_over_any_kill(
    turns: list[list[list[Change]]], undone: int, deaths: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        home, root = Path(place, "home"), Path(place, "files")
        root.mkdir()
        for change in (("write", "a", "x"), ("write", "d/a", "y"), ("link", "b", "d")):
            apply(root, change)
        pending = list(deaths)
        shadow = Shadow(home, root, "key")
        trees = [take(root)]
        for number, calls in enumerate(turns):
            turn_id = TurnId(f"turn_{number}")
            for call in calls:
                shadow.begin_call(SESSION, turn_id, lambda: False)
                for change in call:
                    apply(root, change)
                try:
                    with killed_after(pending.pop() if pending else 1000):
                        shadow.end_call(SESSION, turn_id, lambda: False)
                except Died:
                    shadow = Shadow(home, root, "key")
                    shadow.end_call(SESSION, turn_id, lambda: False)
            trees.append(take(root))
        undone = min(undone, len(turns))
        wanted = [TurnId(f"turn_{number}") for number in range(len(turns) - undone, len(turns))]
        while True:
            try:
                with killed_after(pending.pop() if pending else 1000):
                    report = shadow.undo(SESSION, wanted)
                break
            except Died:
                shadow = Shadow(home, root, "key")
        assert take(root) == trees[-1 - undone]
        assert report.kept == ()


def rich(root: Path) -> None:
    """Change a tree in every way at once."""
    for change in (
        ("write", "new/deep/file", "made"),
        ("delete", "gone", ""),
        ("folder", "file", ""),
        ("write", "file/inside", "x"),
        ("link", "folder", "/etc"),
        ("link", "link", "elsewhere"),
        ("write", "same", "y"),
    ):
        apply(root, change)
    (root / "mode").chmod(0o755)
    (root / "closed").chmod(0o755)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = tmp_path / "files"
    root.mkdir()
    for change in (
        ("write", "gone/a", "x"),
        ("write", "gone/b/c", "x"),
        ("write", "file", "x"),
        ("write", "folder/a", "x"),
        ("write", "folder/b/c", "x"),
        ("link", "link", "somewhere"),
        ("write", "same", "x"),
        ("write", "mode", "x"),
        ("folder", "closed", ""),
    ):
        apply(root, change)
    (root / "gone" / "b").chmod(0o700)
    return tmp_path


def test_a_kill_at_every_point_of_an_undo_leaves_one_that_can_be_repeated(place: Path) -> None:
    turn_id, points = TurnId("turn_1"), 0
    root = place / "files"
    before = take(root)
    for point in range(200):
        home = place / f"home-{point}"
        shadow = Shadow(home, root, "key")
        shadow.begin_call(SESSION, turn_id, lambda: False)
        rich(root)
        shadow.end_call(SESSION, turn_id, lambda: False)
        with suppress(Died), killed_after(point):
            shadow.undo(SESSION, [turn_id])
            points = point
        report = Shadow(home, root, "key").undo(SESSION, [turn_id])
        assert (take(root), report.kept) == (before, ()), f"after a kill at point {point}"
        if points:
            break
    assert points > 20
