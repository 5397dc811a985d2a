"""Texts that are too long to be shown whole: their beginning, and how `read_file` goes on behind it."""

from __future__ import annotations

from talaria.core.files import MESSAGES
from talaria.core.messages import File, Text
from talaria.workspace.folder import Folder


def begin_text(data: bytes, max_bytes: int) -> tuple[str, str]:
    """Return the beginning of a text in UTF-8, at most `max_bytes` of it, and the arguments with which
    `read_file` goes on; columns are bytes of a line.

    The text is cut at the end of a line if there is one not too far away, and never inside a character.
    """
    head = data[:max_bytes]
    at = head.rfind(b"\n") + 1
    if at > len(head) // 2:
        head = head[:at]
    text = head.decode(errors="ignore")
    kept = text.encode()
    line, column = kept.count(b"\n") + 1, len(kept) - kept.rfind(b"\n")
    return text.removeprefix("\ufeff"), f"offset={line}" if column == 1 else f"offset={line}, column={column}"


def keep_message(folder: Folder, name: str, text: str, shown_bytes: int) -> tuple[Text, File]:
    """Write a long message into the chat's folder, and return what a model gets of it. Raises `ToolError`;
    `FolderFull` if the folder has no room. Blocks."""
    data = text.encode(errors="replace")
    path = folder.resolve(f"{MESSAGES}/{name}.txt")
    folder.write(path, data, len(data))
    beginning, rest = begin_text(data, shown_bytes)
    return Text(beginning), File("message.txt", str(path), "text/plain", len(data), rest=rest)
