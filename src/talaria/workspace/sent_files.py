"""Copies of the files that turns send: a person gets a file as it was when it was sent.

Every function blocks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from talaria.core import files
from talaria.core.errors import ToolError
from talaria.core.files import SentFile
from talaria.core.ids import ChatKey, TurnId
from talaria.core.text import plain_name
from talaria.core.tools import MAX_SENT_BYTES
from talaria.workspace.folder import Folder, FolderPath
from talaria.workspace.uploads import find_media_type


class CopyChanged(ToolError):
    """The copy of a sent file is not what was sent."""


SENT = FolderPath(tuple(files.SENT.split("/")))
KEPT_COPIES = 100


def read_sent(folder_of: Callable[[ChatKey], Path], key: ChatKey, path: str) -> bytes:
    """Read a file that goes out with a reply; never a file that a link leads to. Raises `ToolError`, also for
    the copy of a sent file that was changed."""
    folder = Folder(folder_of(key))
    data = folder.read(folder.resolve(path), MAX_SENT_BYTES)
    if not files.is_unchanged(path, data):
        raise CopyChanged(
            f"The file {path.rpartition('/')[2]} was changed after it was sent, so it is not delivered.",
            "Ask for the file again.",
        )
    return data


def keep_copy(
    folder: Folder,
    path: FolderPath,
    call: tuple[TurnId, str],
    kept: int = KEPT_COPIES,
    check: Callable[[bytes], None] = lambda data: None,
) -> tuple[SentFile, str]:
    """Copy a file to the place from which people get it, and return it with the digest of its content. The
    newest `kept` copies of the chat stay. `check` raises if the content must not be sent.

    A call that is run again replaces its copy. Raises `ToolError`; `FolderFull` if the folder has no room.
    """
    data = folder.read(path, MAX_SENT_BYTES)
    check(data)
    digest = files.content_digest(data)
    file_id = files.sent_file_id(*call, digest)
    name = plain_name(path.name)
    sent = SentFile(file_id, name, find_media_type(path.name, "", data), len(data))
    folder.write(folder.resolve(sent.copy_path), data, MAX_SENT_BYTES)
    # Ids begin with the time of their turn, and end with the digest.
    copies = [item.name for item in folder.scan(SENT, limit=10 * kept)]
    new = sent.copy_path.split("/")[-2]
    replaced = [name for name in copies if name != new and name.startswith(new.removesuffix(digest))]
    for name in (*replaced, *copies[: max(len(copies) - kept, 0)]):
        _remove(folder, SENT / name)
    return sent, digest


def open_copy(folder_of: Callable[[ChatKey], Path], key: ChatKey, file: SentFile) -> BinaryIO:
    """Return the content of a sent file as a temporary file, which the caller closes: commands can write to
    the copy itself at any time. Raises `ToolError`, also if the copy was changed."""
    data = read_sent(folder_of, key, file.copy_path)
    content = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    content.write(data)
    content.seek(0)
    return content


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
