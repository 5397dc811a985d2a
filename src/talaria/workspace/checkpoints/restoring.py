"""Putting files back: what an undo has to do is planned first, then done one path at a time.

A path is put back only if it still is what the turn left. Each step can be repeated: after a kill the same
undo is planned again, and finds some paths as they were before. Names are never followed out of the folder: a
parent is opened without following links, files and links are renamed over what is there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from talaria.core.files import PRIVATE
from talaria.core.text import printable
from talaria.workspace.checkpoints.reading import open_folder
from talaria.workspace.checkpoints.tree import FileChange, Gap, ItemKind, ItemState, Tree, is_same
from talaria.workspace.rights import set_folder_mode

_UNFINISHED = f"{PRIVATE}-undo"  # readings leave it out, and a repeated undo replaces it
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = 0o300  # a folder in which its owner can make and remove files

CHANGED_SINCE = "it was changed since"
CHANGED_BETWEEN = "it was changed by someone else between the turns, and is as it was then"
GAP_REASONS = {
    Gap.EXCLUDED: "such folders are not copied",
    Gap.SIZE: "it is too large to be copied",
    Gap.BYTES: "the folder has more than is copied",
    Gap.COUNT: "the folder has more files than are copied",
    Gap.TIME: "copying took too long",
    Gap.HARD_LINK: "it is a hard link",
    Gap.SPECIAL: "it is not a regular file",
    Gap.UNREADABLE: "it could not be read",
    Gap.ROOM: "the disk had no room for a copy",
}
_NO_COPY = "its copy is gone"
_NOT_EMPTY = "it has other files in it"


@dataclass(frozen=True, slots=True)
class Move:
    """A path that has to become `target`; None means that nothing shall be there."""

    path: str
    current: ItemState | None
    target: ItemState | None

    @property
    def depth(self) -> int:
        return self.path.count("/")


@dataclass(slots=True)
class UndoPlan:
    """`done` are the paths that are already as they were, `kept` those that stay, with the reason."""

    moves: list[Move] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


def plan_undo(turns: Sequence[dict[str, FileChange]], now: Tree) -> UndoPlan:
    """Plan to take back the changes of these turns, the newest first. Pure."""
    plan = UndoPlan()
    for path in sorted({path for changes in turns for path in changes}):
        chain = [changes[path] for changes in turns if path in changes]
        if not now.knows(path):
            plan.kept[path] = GAP_REASONS[Gap.COUNT]
            continue
        current = now.items.get(path)
        target, is_reached = _go_back(current, chain)
        if (reason := _find_obstacle(current, target)) is not None:
            plan.kept[path] = reason
        elif not is_same(current, target):
            plan.moves.append(Move(path, current, target))
            if not is_reached:
                plan.kept[path] = CHANGED_BETWEEN
        elif is_reached:
            plan.done.append(path)
        else:
            plan.kept[path] = CHANGED_SINCE
    return plan


def _go_back(current: ItemState | None, chain: Sequence[FileChange]) -> tuple[ItemState | None, bool]:
    """Return the state that a path goes back to, and whether that is the one before the oldest change."""
    state, is_reached = current, False
    for change in chain:
        is_left = is_same(state, change.after) or _is_under_way(state, change)
        is_reached = is_left or is_same(state, change.before)
        state = change.before if is_left else state
    return state, is_reached


def _is_under_way(state: ItemState | None, change: FileChange) -> bool:
    """Return whether a kill during an undo can have left this state: a folder and a file cannot be exchanged
    at once, and a folder is made before it gets its mode."""
    before, after = change.before, change.after
    if before is None or (after is not None and not _is_exchange(before, after)):
        return False
    if state is None:
        return after is not None
    return state.is_listed and before.kind is ItemKind.FOLDER


def _is_exchange(one: ItemState, other: ItemState) -> bool:
    return (one.kind is ItemKind.FOLDER) is not (other.kind is ItemKind.FOLDER)


def _find_obstacle(current: ItemState | None, target: ItemState | None) -> str | None:
    if is_same(current, target):
        return None
    if target is not None and target.gap is not None:
        return GAP_REASONS[target.gap]
    gap = None if current is None else current.gap
    is_folder = current is not None and current.kind is ItemKind.FOLDER
    if gap is not None and (gap is Gap.EXCLUDED or is_folder):
        return GAP_REASONS[gap]
    return None


def explain_rests(plan: UndoPlan, failed: dict[str, str], now: Tree) -> dict[str, str]:
    """Return a better reason for each folder that the turns made and that stays only because of folders in it
    that are not copied, such as the `.git` of a clone. Pure."""
    gone = {move.path for move in plan.moves if move.target is None}
    stuck = {path for path in gone if failed.get(path) == _NOT_EMPTY}
    rests: dict[str, str] = {}
    others: set[str] = set()
    for path in sorted(now.items) if stuck else ():
        if path in stuck or (path in gone and path not in failed):
            continue
        above = stuck.intersection(path[:at] for at, char in enumerate(path) if char == "/")
        if plan.kept.get(path) != GAP_REASONS[Gap.EXCLUDED]:
            others |= above
        for folder in above:
            rests.setdefault(folder, path)
    advice = "stays in it: remove the folder by hand to make it again"
    return {folder: f"{printable(rest)} {advice}" for folder, rest in rests.items() if folder not in others}


def put_back(root: Path, moves: Sequence[Move], get: Callable[[bytes], bytes | None]) -> dict[str, str]:
    """Make the moves. Return the paths for which that failed, with the reason. `get` returns a content."""
    return _Restorer(root, get).run(moves)


class _Obstacle(Exception):
    """A reason for which a path stays as it is."""


class _Restorer:
    def __init__(self, root: Path, get: Callable[[bytes], bytes | None]) -> None:
        self._path = root
        self._get = get
        self._failed: dict[str, str] = {}

    def run(self, moves: Sequence[Move]) -> dict[str, str]:
        """Open folders first, then remove from the deepest path up, make from the top down, and set the
        modes of folders at last."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._each([move for move in moves if _opens(move)], self._set_mode)
            gone = [move for move in moves if _removes(move)]
            self._each(sorted(gone, key=lambda move: -move.depth), self._remove)
            made = [move for move in moves if move.target is not None and not _stays_folder(move)]
            self._each(sorted(made, key=lambda move: move.depth), self._make)
            folders = [move for move in moves if move.target and move.target.kind is ItemKind.FOLDER]
            self._each(sorted(folders, key=lambda move: -move.depth), self._set_mode)
        finally:
            os.close(self._root)
        return self._failed

    def _each(self, moves: Sequence[Move], work: Callable[[Move, int, str], None]) -> None:
        for move in moves:
            if move.path in self._failed:
                continue
            parent, _, name = move.path.rpartition("/")
            try:
                with open_folder(self._root, parent) as descriptor:
                    work(move, descriptor, name)
            except _Obstacle as obstacle:
                self._failed[move.path] = str(obstacle)
            except OSError as error:
                self._failed[move.path] = _explain(error)

    def _remove(self, move: Move, parent: int, name: str) -> None:
        assert move.current is not None
        if move.current.kind is ItemKind.FOLDER:
            os.rmdir(name, dir_fd=parent)
        else:
            _need_unchanged(move.current, parent, name)
            os.unlink(name, dir_fd=parent)

    def _make(self, move: Move, parent: int, name: str) -> None:
        target = move.target
        assert target is not None
        if target.kind is ItemKind.FOLDER:
            os.mkdir(name, 0o700, dir_fd=parent)
            _give_away(parent, name)
            return
        _need_unchanged(None if _removes(move) else move.current, parent, name)
        with suppress(FileNotFoundError):
            os.unlink(_UNFINISHED, dir_fd=parent)
        if target.kind is ItemKind.LINK:
            os.symlink(target.mark, os.fsencode(_UNFINISHED), dir_fd=parent)
        else:
            content = self._get(target.mark)
            if content is None:
                raise _Obstacle(_NO_COPY)
            descriptor = os.open(_UNFINISHED, _CREATE, 0o600, dir_fd=parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(descriptor, target.mode)
        _give_away(parent, _UNFINISHED)
        os.replace(_UNFINISHED, name, src_dir_fd=parent, dst_dir_fd=parent)

    def _set_mode(self, move: Move, parent: int, name: str) -> None:
        assert move.target is not None
        set_folder_mode(name, move.target.mode, parent)


def _stays_folder(move: Move) -> bool:
    return all(state is not None and state.kind is ItemKind.FOLDER for state in (move.current, move.target))


def _opens(move: Move) -> bool:
    return _stays_folder(move) and move.target is not None and move.target.mode & _OPEN == _OPEN


def _removes(move: Move) -> bool:
    """Return whether what is there has to go before the target can be made."""
    if move.current is None:
        return False
    return move.target is None or _is_exchange(move.current, move.target)


def _need_unchanged(expected: ItemState | None, parent: int, name: str) -> None:
    """Raise `_Obstacle` unless the item is as it was when the undo was planned."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        if expected is not None:
            raise _Obstacle(CHANGED_SINCE) from None
        return
    found = (status.st_ino, status.st_mtime_ns, status.st_size)  # the undo of a hard link changes the ctime
    if expected is None or found != (expected.inode, expected.modified_ns, expected.size):
        raise _Obstacle(CHANGED_SINCE)


def _give_away(parent: int, name: str) -> None:
    """Give what root made to the owner of the folder it is in, as commands run under that user."""
    if os.geteuid() == 0:
        owner = os.fstat(parent)
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=parent, follow_symlinks=False)


def _explain(error: OSError) -> str:
    match error.errno:
        case errno.ENOTEMPTY:
            return _NOT_EMPTY
        case errno.EEXIST:
            return CHANGED_SINCE
        case errno.ELOOP | errno.ENOTDIR | errno.EXDEV | errno.ENOENT:
            return "the folder it was in has been replaced"
        case errno.EACCES | errno.EPERM:
            return "the gateway may not write there"
        case errno.ENOSPC | errno.EDQUOT:
            return "the disk is full"
        case _:
            return os.strerror(error.errno or errno.EIO)
