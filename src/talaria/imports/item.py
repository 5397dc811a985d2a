"""The items of an import, their states, and the report that a person or a program reads."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec


class ImportKind(StrEnum):
    SESSION = "session"
    JOB = "job"
    MEMORY = "memory"
    SKILL = "skill"
    PERSON = "person"
    SETTING = "setting"
    SERVER = "server"
    SECRET = "secret"  # noqa: S105 - a kind
    FILE = "file"


class ImportState(StrEnum):
    """PLANNED items are imported by an apply. SKIPPED and CONFLICT items are not: `reason` says why."""

    PLANNED = "planned"
    IMPORTED = "imported"
    SKIPPED = "skipped"
    CONFLICT = "conflict"


class ImportItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A thing of the source. `id` is the same in every run. `target` is its id or place in the home.

    `messages` counts the rows of a session in the source, and `left_out` those that are not in its log, by
    reason. `note` is what a person should know of an item that is imported.
    """

    id: str
    kind: ImportKind
    title: str
    state: ImportState
    target: str = ""
    reason: str = ""
    note: str = ""
    messages: int = 0
    left_out: dict[str, int] = {}

    def skip(self, reason: str) -> ImportItem:
        return msgspec.structs.replace(self, state=ImportState.SKIPPED, reason=reason)

    def conflict(self, reason: str) -> ImportItem:
        return msgspec.structs.replace(self, state=ImportState.CONFLICT, reason=reason)

    def done(self, *, note: str = "", left_out: dict[str, int] | None = None) -> ImportItem:
        return msgspec.structs.replace(
            self, state=ImportState.IMPORTED, note=note or self.note, left_out=left_out or {}
        )


class ImportReport(msgspec.Struct, frozen=True):
    """All items of a source. `notes` are about the whole import."""

    source: str
    items: tuple[ImportItem, ...]
    notes: tuple[str, ...] = ()

    @property
    def planned(self) -> int:
        return sum(item.state is ImportState.PLANNED for item in self.items)

    def counts(self) -> list[tuple[ImportKind, Counter[ImportState]]]:
        """Return how many items of each kind have each state."""
        return [
            (kind, found)
            for kind in ImportKind
            if (found := Counter(item.state for item in self.items if item.kind is kind))
        ]
