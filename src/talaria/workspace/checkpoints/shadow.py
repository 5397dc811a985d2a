"""The shadow of one folder: contents, the trees of open calls, and a record for each turn that changed files.

    checkpoints/KEY/blobs/                  contents, in packs
    checkpoints/KEY/trees/DIGEST            the tree before an open call; the newest is the stat cache
    sessions/SESSION/checkpoints/KEY/TURN   what a turn did; it goes with its session

Before a call the tree is saved and the turn's record names it as its `base`. After the call the record gets
the changes and no base, in one write. A record that still has a base belongs to a call that a kill ended:
`settle` finds out then what it left. Every method blocks and takes the shadow's lock.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from urllib.parse import quote, unquote

import msgspec

from talaria.core.files import KeptPath, UndoReport
from talaria.core.ids import SessionId, TurnId
from talaria.core.text import printable
from talaria.core.whole_files import replace_file
from talaria.workspace.checkpoints.reading import CopyLimits, read_tree
from talaria.workspace.checkpoints.restoring import GAP_REASONS, explain_rests, plan_undo, put_back
from talaria.workspace.checkpoints.tree import (
    Blobs,
    FileChange,
    Gap,
    Tree,
    decode_tree,
    encode_tree,
    find_changes,
    merge_changes,
)
from talaria.workspace.places import make_private, session_folder

RECORDS = "checkpoints"  # in the folder of a session
_MOST_GAPS = 1000
_Wanted = Callable[[], bool]


class ChangeRecord(msgspec.Struct, frozen=True, array_like=True):
    """The changes that a turn made in the folder. `base` names the tree before the call that is open, if one
    is. `gaps` are the paths without a copy when the turn began, at most `_MOST_GAPS`."""

    base: str
    changes: dict[bytes, FileChange]
    gaps: dict[bytes, Gap]
    is_undone: bool = False

    def changes_by_path(self) -> dict[str, FileChange]:
        return {os.fsdecode(path): change for path, change in self.changes.items()}

    def uncovered(self) -> tuple[KeptPath, ...]:
        return tuple(
            KeptPath(printable(os.fsdecode(path)), GAP_REASONS[gap]) for path, gap in self.gaps.items()
        )


_DECODER = msgspec.msgpack.Decoder(ChangeRecord)
NOTHING_DONE = ChangeRecord("", {}, {})


class Shadow:
    """The shadow, at `root`, of the folder at `folder`. `key` is its name."""

    def __init__(self, home: Path, folder: Path, key: str, limits: CopyLimits | None = None) -> None:
        """`home` is the gateway's."""
        self._home = home
        self.root = root = home / "checkpoints" / key
        self.folder = folder
        self.blobs = Blobs(root / "blobs")
        self.lock = threading.RLock()
        self._limits = limits or CopyLimits()
        self._known: Tree | None = None
        self._saved: tuple[str, Tree] | None = None
        self._open: dict[TurnId, Tree] = {}
        self._bases: set[str] = set()

    @property
    def items(self) -> int:
        """How many items are kept in memory."""
        return len(self._known.items) if self._known is not None else 0

    @property
    def is_in_use(self) -> bool:
        return bool(self._open)

    # -- calls ----------------------------------------------------------------------------------------------

    def begin_call(self, session_id: SessionId, turn_id: TurnId, is_cancelled: _Wanted) -> None:
        """Copy what is new, and record that a call of the turn may write from now on. Raises `OSError`, and
        `ReadingStopped` if it `is_cancelled`."""
        with self.lock:
            record = self._settled(session_id, turn_id)
            tree = self._read(is_cancelled)
            if not record.changes:
                record = msgspec.structs.replace(record, gaps=_gaps_of(tree))
            base = self._save(tree)
            self._bases.add(base)
            self._write(session_id, turn_id, msgspec.structs.replace(record, base=base))
            self._open[turn_id] = tree

    def end_call(self, session_id: SessionId, turn_id: TurnId, is_cancelled: _Wanted) -> None:
        """Record what the call left. Does nothing if no call of the turn is open. Raises as `begin_call`; the
        call is settled later then."""
        with self.lock:
            before = self._open.pop(turn_id, None)
            self._settled(session_id, turn_id, before, is_cancelled)

    def _settled(
        self,
        session_id: SessionId,
        turn_id: TurnId,
        before: Tree | None = None,
        is_cancelled: _Wanted = lambda: False,
    ) -> ChangeRecord:
        """Return the turn's record without an open call. A call that an earlier process, or a failure, left
        open is closed with what is there now."""
        record = self.record(session_id, turn_id) or NOTHING_DONE
        if not record.base or turn_id in self._open:
            return record
        base, before = record.base, before or self._load(record.base)
        changes = {} if before is None else find_changes(before, self._read(is_cancelled))
        merged = merge_changes(record.changes_by_path(), changes)
        record = ChangeRecord(
            "",
            {os.fsencode(path): change for path, change in merged.items()},
            record.gaps,
            record.is_undone,
        )
        if merged:
            self._write(session_id, turn_id, record)
        else:
            self._record_path(session_id, turn_id).unlink(missing_ok=True)
        if not self._open:
            self._bases.discard(base)
        return record

    # -- undo and diff --------------------------------------------------------------------------------------

    def undo(self, session_id: SessionId, turn_ids: Sequence[TurnId]) -> UndoReport:
        """Take back what these turns did, in the opposite order of their ids. May be repeated."""
        with self.lock:
            found = {
                turn_id: self._settled(session_id, turn_id)
                for turn_id in sorted(turn_ids, reverse=True)
                if self.record(session_id, turn_id) is not None
            }
            if not found:
                return UndoReport()
            now = self._read()
            plan = plan_undo([record.changes_by_path() for record in found.values()], now)
            failed = put_back(self.folder, plan.moves, self.blobs.get)
            failed |= explain_rests(plan, failed, now)
            moved = [move for move in plan.moves if move.path not in failed]
            removed = [move.path for move in moved if move.target is None]
            removed += [path for path in plan.done if path not in now.items]
            for turn_id, record in found.items():
                if record.changes:
                    self._write(session_id, turn_id, msgspec.structs.replace(record, is_undone=True))
            kept = {**plan.kept, **failed}
            uncovered = {gap.path: gap for record in found.values() for gap in record.uncovered()}
            return UndoReport(
                len(found),
                tuple(printable(path) for path in sorted([*(move.path for move in moved), *plan.done])),
                tuple(KeptPath(printable(path), reason) for path, reason in sorted(kept.items())),
                tuple(uncovered.values()),
                tuple(printable(path) for path in sorted(removed)),
            )

    def last_change(self, session_id: SessionId) -> tuple[TurnId, ChangeRecord] | None:
        """Return the newest turn of the session that changed files and was not undone, settled."""
        with self.lock:
            for name in sorted(_names(self._session_path(session_id)), reverse=True):
                turn_id = TurnId(unquote(name))
                record = self._settled(session_id, turn_id)
                if record.changes and not record.is_undone:
                    return turn_id, record
            return None

    # -- records --------------------------------------------------------------------------------------------

    def record(self, session_id: SessionId, turn_id: TurnId) -> ChangeRecord | None:
        try:
            return _DECODER.decode(self._record_path(session_id, turn_id).read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None

    def prune(self, records: Sequence[Path], most_turns: int, before: float, *, is_idle: bool) -> int:
        """Forget the oldest turns beyond `most_turns` and those from before that moment, and every content
        that is not needed any more. `records` are the paths of all records of this folder. Of an idle folder
        only what turns changed is kept. Return the bytes that are left."""
        with self.lock:
            if self._open:
                return 0
            kept: list[Path] = []
            for number, path in enumerate(sorted(records, key=lambda each: each.name, reverse=True)):
                if number >= most_turns or _modified(path) < before * 1e9:
                    path.unlink(missing_ok=True)
                    for folder in (path.parent, path.parent.parent):
                        with suppress(OSError):
                            folder.rmdir()  # if it is empty
                else:
                    kept.append(path)
            found = list(_read_records(kept))
            wanted = self._prune_trees({record.base for record in found}, is_idle=is_idle)
            for record in found:
                for change in record.changes.values():
                    wanted |= {state.mark for state in (change.before, change.after) if state is not None}
            size = self.blobs.keep_only(wanted)
            if not kept and is_idle:
                rmtree(self.root, ignore_errors=True)
            return size

    def _prune_trees(self, bases: set[str], *, is_idle: bool) -> set[bytes]:
        """Remove trees that no open call needs, but the newest, and return the marks that the others need."""
        names = _names(self.root / "trees")
        newest = max(names, key=lambda name: _modified(self.root / "trees" / name), default="")
        wanted: set[bytes] = set()
        for name in names:
            if name in bases or (name == newest and not is_idle):
                tree = self._load(name)
                wanted |= {state.mark for state in tree.items.values()} if tree is not None else set()
            else:
                (self.root / "trees" / name).unlink(missing_ok=True)
                self._saved = self._known = None
        return wanted

    def _session_path(self, session_id: SessionId) -> Path:
        return session_folder(self._home, session_id) / RECORDS / self.root.name

    def _record_path(self, session_id: SessionId, turn_id: TurnId) -> Path:
        return self._session_path(session_id) / quote(turn_id, safe="")

    def _write(self, session_id: SessionId, turn_id: TurnId, record: ChangeRecord) -> None:
        path = self._record_path(session_id, turn_id)
        make_private(path.parent)
        replace_file(path, msgspec.msgpack.encode(record), is_durable=False)

    # -- trees ----------------------------------------------------------------------------------------------

    def _read(self, is_cancelled: _Wanted = lambda: False) -> Tree:
        if self._known is None:
            self._known = self._load_newest()
        self._known = read_tree(self.folder, self._known, self.blobs, self._limits, is_cancelled)
        return self._known

    def _save(self, tree: Tree) -> str:
        if self._saved is not None and self._saved[1].items == tree.items:
            return self._saved[0]
        data = encode_tree(tree)
        name = hashlib.sha256(data).hexdigest()
        trees = self.root / "trees"
        make_private(trees)
        replace_file(trees / name, data, is_durable=False)
        if self._saved is not None and self._saved[0] not in self._bases:
            (trees / self._saved[0]).unlink(missing_ok=True)
        self._saved = name, tree
        return name

    def _load(self, name: str) -> Tree | None:
        if self._saved is not None and self._saved[0] == name:
            return self._saved[1]
        try:
            return decode_tree((self.root / "trees" / name).read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None

    def _load_newest(self) -> Tree:
        names = _names(self.root / "trees")
        newest = max(names, key=lambda name: _modified(self.root / "trees" / name), default=None)
        return (self._load(newest) if newest is not None else None) or Tree()


def _gaps_of(tree: Tree) -> dict[bytes, Gap]:
    gaps: dict[bytes, Gap] = {}
    for path, gap in tree.gaps():
        if len(gaps) == _MOST_GAPS:
            break
        gaps[os.fsencode(path)] = gap
    return gaps


def _read_records(paths: Iterable[Path]) -> Iterator[ChangeRecord]:
    for path in paths:
        with suppress(OSError, msgspec.MsgspecError):
            yield _DECODER.decode(path.read_bytes())


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]  # noqa: PTH208 - names only
    except (FileNotFoundError, NotADirectoryError):
        return []


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
