"""Sessions: their rows, their first titles, and the folders that untrusted content may have reached."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Final, Literal, NewType

import msgspec

from talaria.core.entries import Revision
from talaria.core.ids import ChatKey, SessionId, SpecId
from talaria.core.messages import File, UserMessage
from talaria.core.text import clean_line

Mark = Literal["", "pinned", "archived"]


class Session(msgspec.Struct, frozen=True):
    """The row of a session. `spec_id` is None until a model could be resolved. `mark` is what a person has
    made of it in the list of sessions."""

    id: SessionId
    chat_key: ChatKey
    created_at: float
    updated_at: float
    revision: Revision
    spec_id: SpecId | None = None
    title: str = ""
    ephemeral: bool = False
    ended_at: float | None = None
    mark: Mark = ""


# -- titles of sessions from their first words, without a model -------------------------------------------


LONGEST_TITLE: Final = 60  # characters
_LOOKED_AT: Final = 4_000
# Lines that channels put before a person's words: notes in brackets, quotes, the name of the speaker.
_PREFACE: Final = re.compile(r"\[[^\[\]]{1,80}\]|>.*|.{1,64} says:|```.*|[-=#*_\s]*")


def first_words(message: UserMessage) -> str:
    """Return the beginning of the message as a title; the name of its file if it has no words; else empty."""
    text = message.text[:_LOOKED_AT]
    lines = [line for line in text.splitlines() if not _PREFACE.fullmatch(line.strip())]
    title = shorten_title(lines[0] if lines else text)
    if title:
        return title
    names = [part.name for part in message.parts if isinstance(part, File)]
    return shorten_title(names[0]) if names else ""


def shorten_title(text: str) -> str:
    """Return one line of at most `LONGEST_TITLE` characters, without marks of Markdown in front. It is cut at
    the end of a word, if there is one not too far away."""
    line = clean_line(text, _LOOKED_AT).lstrip("#>*-` ")
    if len(line) <= LONGEST_TITLE:
        return line
    end = line.rfind(" ", LONGEST_TITLE // 2, LONGEST_TITLE)
    return line[: end if end > 0 else LONGEST_TITLE - 1].rstrip(" ,;:.") + "…"


# -- where untrusted content has gone: the folders that it may have reached -------------------------------
# Untrusted content (a web page, an uploaded file, the result of an MCP tool) may try to instruct the model.
# Its marks are in the log of the session. Files have no marks, because a copy would lose them. So a folder
# that may contain such content is *tainted* as a whole: what is read from it is untrusted in every session,
# until a person clears it.


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
