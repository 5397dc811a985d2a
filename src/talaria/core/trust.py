"""Where untrusted content has gone: the folders that it may have reached.

Untrusted content (a web page, an uploaded file, the result of an MCP tool) may try to instruct the model. Its
marks are in the log of the session. Files have no marks, because a copy would lose them. So a folder that may
contain such content is *tainted* as a whole: what is read from it is untrusted in every session, until a
person clears it.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NewType

import msgspec

from talaria.core.ids import ChatKey

FolderName = NewType("FolderName", str)


class Taint(msgspec.Struct, frozen=True):
    """Since when a folder may contain untrusted content, and what brought it, such as `web_fetch`."""

    since: float
    source: str


PROJECT = "project:"


def folder_names(chat_key: ChatKey, project: Path | None) -> tuple[FolderName, ...]:
    """Return the names of the folders that a chat works in: its own, which contains its home folder too, and
    the project folder, which other chats may share."""
    own = FolderName(f"chat:{chat_key}")
    return (own,) if project is None else (own, FolderName(f"{PROJECT}{project}"))


def overlap(one: FolderName, other: FolderName) -> bool:
    """Return whether the two are the same folder, or project folders of which one contains the other: what is
    written in the inner one can be read in the outer one, and the other way round."""
    if one == other or not (one.startswith(PROJECT) and other.startswith(PROJECT)):
        return one == other
    paths = [PurePosixPath(name.removeprefix(PROJECT)) for name in (one, other)]
    return paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])
