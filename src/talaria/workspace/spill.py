"""The whole text of results that were too long for the model, kept where it can read them in parts."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from talaria.core.errors import ToolError
from talaria.workspace.folder import MAX_WRITE_BYTES, PRIVATE, Folder, Inside, Kind

RESULTS = Inside((PRIVATE, "results"))
KEPT_RESULTS = 100

_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def result_name(tool: str, turn_id: str, call_id: str) -> str:
    """The same call, run again after a crash, replaces its own file."""
    digest = hashlib.sha256(f"{turn_id}\0{call_id}".encode(errors="replace")).hexdigest()[:16]
    return f"{_UNFIT.sub('_', tool)[:64]}-{digest}.txt"


def save_result(folder: Folder, name: str, text: str, kept: int = KEPT_RESULTS) -> str:
    """Save `text` whole and answer with its path in the folder; only the newest `kept` results stay.

    Raises `ToolError` when it cannot be saved.
    """
    path = RESULTS / name
    folder.write(path, text.encode(errors="replace")[:MAX_WRITE_BYTES])
    _drop_oldest(folder, kept)
    return str(path)


def _drop_oldest(folder: Folder, kept: int) -> None:
    items = [item for item in folder.scan(RESULTS, limit=10 * kept) if item.kind is Kind.FILE]
    items.sort(key=lambda item: item.modified_at)
    for item in items[: max(len(items) - kept, 0)]:
        folder.remove(RESULTS / item.name)


def drop_old_results(files: Path, before: float) -> int:
    """Remove results of all chats that were saved before then; how many. Chats' own files stay."""
    count = 0
    for chat in sorted(files.iterdir()) if files.is_dir() else ():
        folder = Folder(chat)
        with suppress(ToolError):  # a chat without results, or one whose folder was replaced by a link
            for item in folder.scan(RESULTS, limit=10 * KEPT_RESULTS):
                if item.kind is Kind.FILE and item.modified_at < before:
                    folder.remove(RESULTS / item.name)
                    count += 1
    return count
