"""Recall ids: short names for the entries of a session's log, which a model reads and gives back.

`e12` is entry 12, `s40` the summary at entry 40, `r12.2` the second result of entry 12. An entry of another
session, behind the point where a branch began, has that session's id in front: `ses_…/e12`.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from talaria.core.errors import ToolError
from talaria.core.ids import SESSION_PREFIX, SessionId

_FORM = re.compile(
    rf"(?:({SESSION_PREFIX}[0-9a-z]{{1,64}})/)?"
    r"(?:([es])([1-9][0-9]{0,8})|r([1-9][0-9]{0,8})\.([1-9][0-9]{0,3}))",
    re.ASCII,
)
_SHOWN_CHARS = 80


class RecallKind(StrEnum):
    ENTRY = "e"
    SUMMARY = "s"
    RESULT = "r"


class RecallId(msgspec.Struct, frozen=True):
    """`seq` is the number of the entry. `nth` counts the results of an entry, from 1 on, and is 0 for other
    kinds. Without a `session_id` the entry is of the session in which the id is read."""

    kind: RecallKind
    seq: int
    nth: int = 0
    session_id: SessionId | None = None

    def __str__(self) -> str:
        place = f"{self.session_id}/" if self.session_id else ""
        return f"{place}{self.kind}{self.seq}{f'.{self.nth}' if self.nth else ''}"

    @classmethod
    def parse(cls, text: str) -> RecallId:
        """Return the id that a model wrote. Raises `ToolError` for any other text."""
        text = text.strip().strip("[]`\"'")
        if found := _FORM.fullmatch(text):
            session, kind, seq, of, nth = found.groups()
            place = SessionId(session) if session else None
            if nth:
                return cls(RecallKind.RESULT, int(of), int(nth), place)
            return cls(RecallKind(kind), int(seq), 0, place)
        raise ToolError(
            f"{text[:_SHOWN_CHARS]!r} is not a recall id.",
            "Ids look like e12, s40, r12.2 or ses_…/e12. recall_search and recall_describe show them.",
        )


def entry_id(seq: int) -> str:
    return f"{RecallKind.ENTRY}{seq}"


def summary_id(seq: int) -> str:
    return f"{RecallKind.SUMMARY}{seq}"


def result_id(seq: int, nth: int) -> str:
    """Return the id of the `nth` result of an entry, counted from 1 on."""
    return f"{RecallKind.RESULT}{seq}.{nth}"
