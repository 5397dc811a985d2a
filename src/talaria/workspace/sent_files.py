"""Copies of the files that turns send: a person gets a file as it was when it was sent.

Every function blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from talaria.core import files
from talaria.core.errors import ToolError
from talaria.core.files import SentFile
from talaria.core.ids import ChatKey
from talaria.core.tools import MAX_SENT_BYTES
from talaria.workspace.folder import Folder, FolderPath
from talaria.workspace.uploads import find_media_type

SENT = FolderPath(tuple(files.SENT.split("/")))
KEPT_COPIES = 100


def read_sent(folder_of: Callable[[ChatKey], Path], key: ChatKey, path: str) -> bytes:
    """Read a file that goes out with a reply; never a file that a link leads to. Raises `ToolError`."""
    folder = Folder(folder_of(key))
    return folder.read(folder.resolve(path), MAX_SENT_BYTES)


def keep_copy(
    folder: Folder,
    path: FolderPath,
    file_id: str,
    kept: int = KEPT_COPIES,
    check: Callable[[bytes], None] = lambda data: None,
) -> SentFile:
    """Copy a file to the place from which people get it; the newest `kept` copies of the chat stay. `check`
    raises if the content must not be sent.

    A call that is run again replaces its copy. Raises `ToolError`; `FolderFull` if the folder has no room.
    """
    data = folder.read(path, MAX_SENT_BYTES)
    check(data)
    sent = SentFile(file_id, path.name, find_media_type(path.name, "", data), len(data))
    folder.write(folder.resolve(sent.copy_path), data, MAX_SENT_BYTES)
    # Ids begin with the time of their turn.
    copies = [item.name for item in folder.scan(SENT, limit=10 * kept)]
    for name in copies[: max(len(copies) - kept, 0)]:
        _remove(folder, SENT / name)
    return sent


def open_copy(root: Path, file: SentFile) -> BufferedReader:
    """Open the copy of a sent file in the chat's folder `root`. The caller closes it. Raises `ToolError`."""
    folder = Folder(root)
    return folder.open_file(folder.resolve(file.copy_path), MAX_SENT_BYTES)


def drop_old_copies(chats: Path, before: float) -> int:
    """Remove the copies of all chats that were made before then, and return how many."""
    count = 0
    for chat in sorted(chats.iterdir()) if chats.is_dir() else ():
        folder = Folder(chat)
        with suppress(ToolError):  # a chat that sent nothing, or one whose folder was replaced by a link
            for copy in folder.scan(SENT, limit=10 * KEPT_COPIES):
                items = folder.scan(SENT / copy.name, limit=1)
                if all(item.modified_at < before for item in items):
                    _remove(folder, SENT / copy.name)
                    count += len(items)
    return count


def remove_private(root: Path, path: str) -> None:
    """Remove a file that the gateway keeps in the chat's folder `root`, if it is there, and the folder of a
    copy with it. Raises `ToolError`."""
    folder = Folder(root)
    inside = folder.resolve(path)
    if not inside.is_private or not root.is_dir():
        return
    if inside.parts[:2] == SENT.parts:
        _remove(folder, inside.parent)
    else:
        with suppress(ToolError):
            folder.remove(inside)


def _remove(folder: Folder, copy: FolderPath) -> None:
    with suppress(ToolError):
        for item in folder.scan(copy, limit=10):
            folder.remove(copy / item.name)
        folder.remove_folder(copy)
