"""Files that the gateway itself keeps in a chat's folder, below `.talaria`, and their names there.

The other files of the folder belong to the chat. These belong to one session or one turn, so the names are
made from their ids: long results of tools, long messages, copies of the files that a turn sent, and task
lists.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum

import msgspec

from talaria.core.ids import TURN_PREFIX, ChatKey, SessionId, TurnId

PRIVATE = ".talaria"
"""The folder of the gateway inside a chat's folder; also the prefix of unfinished files."""

RESULTS = f"{PRIVATE}/results"
SENT = f"{PRIVATE}/sent"
MESSAGES = f"{PRIVATE}/messages"
RESULT_PATH = re.compile(rf"{re.escape(RESULTS)}/[A-Za-z0-9_-]++\.txt")
MESSAGE_PATH = re.compile(rf"{re.escape(MESSAGES)}/[A-Za-z0-9_-]++\.txt")
_FILE_PREFIX = "file_"
_DIGEST = 40  # hexadecimal digits of the content's hash in an id
_ID = re.compile(rf"file_([0-9a-z]{{26}})_[0-9a-f]{{8}}([0-9a-f]{{{_DIGEST}}})?")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


class SentFile(msgspec.Struct, frozen=True):
    """A file that a turn sent to its person. `type` is its media type.

    The gateway has a copy of it, as it was when it was sent. A model may change the file itself later. The
    copy is in the chat's folder, where commands can write, so the id has the hash of the content.
    """

    id: str
    name: str
    type: str
    size: int

    @property
    def copy_path(self) -> str:
        """The path of the copy in the chat's folder."""
        return f"{SENT}/{self.id.removeprefix(_FILE_PREFIX)}/{self.name}"


class SentItem(SentFile, frozen=True):
    """A sent file in a list: with its turn, and when that was accepted."""

    turn_id: TurnId
    at: float


class SentPage(msgspec.Struct, frozen=True):
    items: tuple[SentItem, ...]
    next: str | None


class Removal(msgspec.Struct, frozen=True):
    """A file of a deleted session that may still be in the folder of its chat."""

    id: int
    chat_key: ChatKey
    path: str


def sent_file_id(turn_id: TurnId, call_id: str, content: str = "") -> str:
    """Return the id of the file that this call sends, with the digest of its content. A call that is run
    again after a crash has the same."""
    digest = hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:8]
    return f"{_FILE_PREFIX}{turn_id.removeprefix(TURN_PREFIX)}_{digest}{content}"


def content_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST]


def is_unchanged(path: str, data: bytes) -> bool:
    """Return whether the copy of a sent file at this path of the chat's folder is as it was sent. Other files
    and copies of earlier releases have no digest, and count as unchanged."""
    folder = path.removeprefix(f"{SENT}/").partition("/")[0] if path.startswith(f"{SENT}/") else ""
    match = _ID.fullmatch(_FILE_PREFIX + folder)
    return match is None or match[2] is None or match[2] == content_digest(data)


def turn_of_file(file_id: str) -> TurnId | None:
    """Return the turn that sent the file; None if no turn's file has such an id."""
    match = _ID.fullmatch(file_id)
    return None if match is None else TurnId(TURN_PREFIX + match[1])


def result_name(tool: str, turn_id: str, call_id: str) -> str:
    """Return the name of the file for a long result. A call that is run again after a crash replaces it."""
    digest = hashlib.sha256(f"{turn_id}\0{call_id}".encode(errors="replace")).hexdigest()[:16]
    return f"{_UNFIT.sub('_', tool)[:64]}-{digest}.txt"


def todo_path(session_id: SessionId) -> str:
    """Return the path of the session's task list."""
    return f"{PRIVATE}/todo/{session_id}.json"


# -- changes that turns made to files: the report of an undo, and the differences of a turn ---------------


class KeptPath(msgspec.Struct, frozen=True):
    """A path that was left as it is, or has no copy, and why."""

    path: str
    reason: str


class UndoReport(msgspec.Struct, frozen=True):
    """The outcome of an undo. `turns` counts the turns of which a copy was found. `restored` are the paths
    that are as they were before, `removed` those of them that are gone again, `kept` those that the turns
    changed and that stay, `uncovered` those without a copy.
    """

    turns: int = 0
    restored: tuple[str, ...] = ()
    kept: tuple[KeptPath, ...] = ()
    uncovered: tuple[KeptPath, ...] = ()
    removed: tuple[str, ...] = ()


class ChangeKind(StrEnum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"


class FileDiff(msgspec.Struct, frozen=True):
    """A path that a turn changed. `lines` is a unified diff without its head, empty where `note` says what
    there is to say (a binary file, a link, a mode). `added` and `removed` count lines."""

    path: str
    kind: ChangeKind
    note: str = ""
    lines: tuple[str, ...] = ()
    added: int = 0
    removed: int = 0


class TurnDiff(msgspec.Struct, frozen=True):
    """The changes of one turn, as far as they were covered."""

    turn_id: TurnId
    files: tuple[FileDiff, ...]
    uncovered: tuple[KeptPath, ...] = ()
