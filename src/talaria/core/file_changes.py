"""Changes that turns made to files: the report of an undo, and the differences of a turn."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from talaria.core.ids import TurnId


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
