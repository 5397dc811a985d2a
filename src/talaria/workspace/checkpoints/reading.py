"""Reading a folder's tree: stat what is there, and copy the contents that are new.

The folder may be hostile: names, links and kinds of files may change while it is read. Each folder is opened
below the root without following a link, and each file relative to its folder's descriptor, without blocking.
Whatever exceeds a limit has no copy, and the tree says so.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from talaria.core.files import PRIVATE
from talaria.core.slots import Pace
from talaria.workspace.checkpoints.tree import Blobs, Gap, ItemKind, ItemState, Tree
from talaria.workspace.rights import find_openat2

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MODE = 0o777
_SLICE = 16  # items between two looks at the clock
_RACY_NS = 100_000_000  # a file that was written so shortly before its stat may have been written again since

# The history of a repository is never touched, and the rest can be made again.
EXCLUDED = frozenset(
    (".git", ".hg", ".svn", ".jj", "node_modules", ".venv", "__pycache__", ".tox", ".nox", ".cache")
)
_MADE_AGAIN = ("CACHEDIR.TAG", "pyvenv.cfg")  # a folder with such a file is a cache or an environment


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """The most that is copied of one folder: items, bytes of all files together and of one, and the
    computing time of one reading."""

    items: int = 20_000
    total_bytes: int = 256 << 20
    file_bytes: int = 16 << 20
    cpu_seconds: float = 5.0


def read_tree(
    root: Path,
    known: Tree,
    blobs: Blobs,
    limits: CopyLimits,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Tree:
    """Return the tree of the folder `root`, with a copy of each content in `blobs`.

    A file whose stat is that in `known` is not read. Raises `OSError` if the folder cannot be read, and
    `ReadingStopped` if it `is_cancelled`.
    """
    return _Reading(root, known, blobs, limits, is_cancelled).run()


class ReadingStopped(Exception):
    """The tree is no longer wanted."""


class _Reading:
    """The state of reading a tree. Folders are taken breadth first, so that limits hit the deepest ones."""

    def __init__(
        self,
        root: Path,
        known: Tree,
        blobs: Blobs,
        limits: CopyLimits,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._root = root
        self._known = known
        self._blobs = blobs
        self._limits = limits
        self._is_cancelled = is_cancelled
        self._pace = Pace(limits.cpu_seconds, is_cancelled)
        self._items: dict[str, ItemState] = {}
        self._room = limits.total_bytes
        self._began_ns = time.time_ns()
        self._trusted_ns = known.taken_at_ns - _RACY_NS

    def run(self) -> Tree:
        try:
            root = os.open(self._root, _ROOT)
        except FileNotFoundError:
            return Tree({}, self._began_ns)
        try:
            self._device = os.fstat(root).st_dev
            found = self._list(root, "")
            pending = deque(() if isinstance(found, Gap) else found)
            while pending:
                path = pending.popleft()
                inner = self._enter(root, path)
                if isinstance(inner, Gap):
                    self._items[path] = msgspec.structs.replace(self._items[path], mark=inner.encode())
                else:
                    pending.extend(inner)
        finally:
            self._blobs.close()
            os.close(root)
        return Tree(self._items, self._began_ns, is_root_listed=not isinstance(found, Gap))

    def _enter(self, root: int, path: str) -> list[str] | Gap:
        try:
            with open_folder(root, path) as descriptor:
                return self._list(descriptor, path)
        except OSError:
            return Gap.UNREADABLE

    def _list(self, descriptor: int, folder: str) -> list[str] | Gap:
        """Add the items of a folder and return the folders among them; add none and return the reason if
        there are too many."""
        room = self._limits.items - len(self._items)
        with os.scandir(descriptor) as entries:
            listed = list(islice(entries, room + 1))
            if len(listed) > room:
                return Gap.COUNT
            if folder and any(entry.name in _MADE_AGAIN for entry in listed):
                return Gap.EXCLUDED
            found: dict[str, ItemState] = {}
            prefix = f"{folder}/" if folder else ""
            for number, entry in enumerate(sorted(listed, key=lambda entry: entry.name)):
                if number % _SLICE == 0 and not self._pace.may_go_on():
                    if self._is_cancelled():
                        raise ReadingStopped
                    return Gap.TIME
                if entry.name.startswith(PRIVATE):
                    continue  # the gateway's own
                path = prefix + entry.name
                if (state := self._state(descriptor, path, entry)) is not None:
                    found[path] = state
        self._items |= found
        return [path for path, state in found.items() if state.is_listed]

    def _state(self, parent: int, path: str, entry: os.DirEntry[str]) -> ItemState | None:
        """Return the state of an item; None if it was removed since it was listed."""
        try:
            return self._look(parent, path, entry.name, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _look(self, parent: int, path: str, name: str, status: os.stat_result) -> ItemState:
        mode = status.st_mode
        if stat.S_ISREG(mode):
            known = self._known.items.get(path)
            if known is not None and self._is_unchanged(known, status):
                self._room -= known.size
                return known
        if stat.S_ISDIR(mode):
            is_apart = name in EXCLUDED or status.st_dev != self._device
            return _state(ItemKind.FOLDER, status, Gap.EXCLUDED.encode() if is_apart else b"")
        gap = Gap.EXCLUDED if name in EXCLUDED else None  # the .git of a worktree is a file
        if stat.S_ISLNK(mode) and gap is None:
            return _state(ItemKind.LINK, status, os.fsencode(os.readlink(name, dir_fd=parent)))
        if not stat.S_ISREG(mode):
            gap = gap or Gap.SPECIAL
        if (gap := gap or self._find_gap(status)) is not None:
            return _state(ItemKind.OPAQUE, status, gap.encode())
        self._room -= status.st_size
        return self._copy(parent, name, status)

    def _is_unchanged(self, known: ItemState, status: os.stat_result) -> bool:
        return (
            known.changed_ns == status.st_ctime_ns
            and known.modified_ns == status.st_mtime_ns
            and known.inode == status.st_ino
            and known.size == status.st_size
            and known.mode == status.st_mode & _MODE
            and known.kind is ItemKind.FILE
            and status.st_nlink == 1
            and known.size <= self._room
            and max(known.modified_ns, known.changed_ns) < self._trusted_ns
            and self._blobs.has(known.mark)
        )

    def _find_gap(self, status: os.stat_result) -> Gap | None:
        if status.st_nlink > 1:
            return Gap.HARD_LINK  # the other name may be outside
        if status.st_size > self._limits.file_bytes:
            return Gap.SIZE
        if status.st_size > self._room:
            return Gap.BYTES
        return None

    def _copy(self, parent: int, name: str, listed: os.stat_result) -> ItemState:
        try:
            descriptor = os.open(name, _READ, dir_fd=parent)
        except FileNotFoundError:
            raise
        except OSError:
            return _state(ItemKind.OPAQUE, listed, Gap.UNREADABLE.encode())
        # The stat from before the reading: a write beside it makes the next reading look again.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):  # it took the file's place meanwhile
            os.close(descriptor)
            return _state(ItemKind.OPAQUE, status, Gap.SPECIAL.encode())
        with os.fdopen(descriptor, "rb") as file:
            gap = self._find_gap(status)
            data = b""
            if gap is None:
                try:
                    data = file.read(self._limits.file_bytes + 1)
                except OSError:
                    gap = Gap.UNREADABLE
            if len(data) > self._limits.file_bytes:
                gap = Gap.SIZE
        if gap is None:
            try:
                return _state(ItemKind.FILE, status, self._blobs.put(data))
            except OSError:
                gap = Gap.ROOM
        return _state(ItemKind.OPAQUE, status, gap.encode())


@contextmanager
def open_folder(root: int, path: str) -> Iterator[int]:
    """Open a folder below the descriptor `root` without following a link, and close it behind the block.
    Raises `OSError`."""
    descriptor = _open_below(root, path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_below(root: int, path: str) -> int:
    if not path:
        return os.open(".", _FOLDER, dir_fd=root)
    if (open_below := find_openat2()) is not None:
        return open_below(root, path)
    descriptor = os.open(".", _FOLDER, dir_fd=root)
    for name in path.split("/"):
        try:
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _state(kind: ItemKind, status: os.stat_result, mark: bytes = b"") -> ItemState:
    return ItemState(
        kind,
        status.st_mode & _MODE,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        mark,
    )
