"""Checkpoints of this process: the shadows of folders, used by turns and by `/undo` and `/diff`."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.core.files import TurnDiff, UndoReport
from talaria.core.ids import SessionId, TurnId
from talaria.core.slots import FairThreads

if TYPE_CHECKING:
    from talaria.workspace.workspaces import ChatWorkspace

if TYPE_CHECKING:  # a gateway whose tools write nothing does without them
    from talaria.workspace.checkpoints.reading import CopyLimits
    from talaria.workspace.checkpoints.shadow import Shadow

_RECORDS = "checkpoints"  # in the folder of a session
KEPT_TURNS = 50  # of one folder
KEPT_BYTES = 2 << 30  # of all folders
_ITEMS_IN_MEMORY = 40_000
_IDLE_SECONDS = 7 * 86_400.0
_FULL_SWEEP_SECONDS = 86_400.0

_log = logging.getLogger("talaria.tools")


class FolderCheckpoints:
    """Copies of workspaces' files around the calls of turns, so that what a turn did can be taken back. They
    are below `home`/checkpoints. Shadows are read and written in threads.

    A failure is logged and never fails a call: its changes have no copy then, and `/undo` says so.
    """

    def __init__(self, home: Path, threads: FairThreads, limits: CopyLimits | None = None) -> None:
        self._home = home
        self._root = home / "checkpoints"
        self._threads = threads
        self._limits = limits
        self._lock = threading.Lock()
        self._shadows: OrderedDict[str, Shadow] = OrderedDict()
        self._touched: set[str] = set()
        self._swept_at: float | None = None

    async def before_write(self, turn_id: TurnId, workspace: ChatWorkspace) -> None:
        """Copy what is new in the folder, because a call of the turn may write now. Raises nothing but
        `CancelledError`; what could not be copied is told by `undo`."""
        await self._try("before", turn_id, workspace, lambda shadow: shadow.begin_call)

    async def after_write(self, turn_id: TurnId, workspace: ChatWorkspace) -> None:
        """Record what the call left. Also for a call that a kill ended; if this is not called for it, `undo`
        and the turn's next call do the same. Raises nothing but `CancelledError`."""
        await self._try("after", turn_id, workspace, lambda shadow: shadow.end_call)

    async def undo(self, workspace: ChatWorkspace, turn_ids: Sequence[TurnId]) -> UndoReport:
        """Put back the files that these turns of the workspace's session changed, the newest turn first. A
        file that is not what the turn left stays. May be repeated. Raises `OSError`."""

        def work() -> UndoReport:
            return self._shadow(workspace.folder).undo(workspace.session_id, turn_ids)

        return await self._threads.run(workspace.session_id, work)

    async def last_diff(self, workspace: ChatWorkspace) -> TurnDiff | None:
        """Return what the last turn that changed files did; None if no turn of the session did. Raises
        `OSError`."""

        def work() -> TurnDiff | None:
            from talaria.workspace.checkpoints.diffs import describe_changes  # noqa: PLC0415

            shadow = self._shadow(workspace.folder)
            if (found := shadow.last_change(workspace.session_id)) is None:
                return None
            turn_id, record = found
            files = describe_changes(record.changes_by_path(), shadow.blobs.get)
            return TurnDiff(turn_id, files, record.uncovered())

        return await self._threads.run(workspace.session_id, work)

    def prune(self, now: float, kept_since: float) -> None:
        """Forget turns from before `kept_since` and the oldest beyond what is kept, and contents that are not
        needed any more. The first time, and once a day, all folders are looked at, later only those that were
        used. Blocks."""
        is_full = self._swept_at is None or now - self._swept_at > _FULL_SWEEP_SECONDS
        touched, self._touched = self._touched, set()
        if not is_full and not touched:
            return
        self._swept_at = now if is_full else self._swept_at
        records = _find_records(self._home / "sessions")
        total = 0
        for shadow in sorted(self._all(), key=_used_at, reverse=True):
            if is_full or shadow.root.name in touched:
                is_full_up = total > KEPT_BYTES
                is_idle = is_full_up or now - _used_at(shadow) > _IDLE_SECONDS
                mine = records.get(shadow.root.name, ())
                total += shadow.prune(mine, 0 if is_full_up else KEPT_TURNS, kept_since, is_idle=is_idle)

    # -- in threads -----------------------------------------------------------------------------------------

    async def _try(
        self,
        when: str,
        turn_id: TurnId,
        workspace: ChatWorkspace,
        find_work: Callable[[Shadow], Callable[[SessionId, TurnId, Callable[[], bool]], None]],
    ) -> None:
        session_id, is_stopped = workspace.session_id, False

        def run() -> None:
            find_work(self._shadow(workspace.folder))(session_id, turn_id, lambda: is_stopped)

        try:
            await self._threads.run(session_id, run)
        except asyncio.CancelledError:
            is_stopped = True
            raise
        except Exception as error:
            _log.warning("no copy of the files %s a call of turn %s: %s", when, turn_id, error)

    def _shadow(self, folder: Path) -> Shadow:
        """Return the shadow of a folder. Those that were not used for long leave memory."""
        folder = Path(os.path.abspath(folder))  # noqa: PTH100 - lexical: links in the path are the operator's
        key = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        with self._lock:
            if (shadow := self._shadows.get(key)) is None:
                shadow = self._shadows[key] = self._open(key, folder)
            self._shadows.move_to_end(key)
            self._touched.add(key)
            held = sum(each.items for each in self._shadows.values())
            for other, each in [*self._shadows.items()]:
                if held <= _ITEMS_IN_MEMORY and len(self._shadows) <= 256:
                    break
                if each is not shadow and not each.is_in_use and each.lock.acquire(blocking=False):
                    held -= each.items
                    del self._shadows[other]
                    each.lock.release()
            return shadow

    def _all(self) -> list[Shadow]:
        """Return all shadows on the disk. Those not in memory know nothing of their folder but its copy."""
        with self._lock:
            known = dict(self._shadows)
        keys = sorted(os.listdir(self._root)) if self._root.is_dir() else []  # noqa: PTH208
        return [known.get(key) or self._open(key, Path("/nonexistent")) for key in keys]

    def _open(self, key: str, folder: Path) -> Shadow:
        from talaria.workspace.checkpoints.shadow import Shadow  # noqa: PLC0415

        return Shadow(self._home, folder, key, self._limits)


def _find_records(sessions: Path) -> dict[str, list[Path]]:
    """Return the records of all turns by the keys of their folders."""
    found: dict[str, list[Path]] = {}
    for record in sessions.glob(f"*/{_RECORDS}/*/*"):
        found.setdefault(record.parent.name, []).append(record)
    return found


def _used_at(shadow: Shadow) -> float:
    try:
        return (shadow.root / "trees").stat().st_mtime
    except OSError:
        return 0.0
