"""The results of searches in the index, and its state."""

from __future__ import annotations

import msgspec

from talaria.core.ids import ChatKey, SessionId


class FoundEntry(msgspec.Struct, frozen=True):
    """An entry that was found. `excerpt` is the text around the words that matched, in one line, and
    `speaker` the name of its sender, or `assistant`, or the name of a tool. A better hit has a higher
    `score`; scores of different queries cannot be compared."""

    session_id: SessionId
    seq: int
    chat_key: ChatKey
    title: str
    speaker: str
    at: float
    excerpt: str
    score: float


class LogHit(msgspec.Struct, frozen=True):
    """An entry of a log that was found. Copies of an entry in branches have the same `terms`."""

    session_id: SessionId
    seq: int
    score: float
    terms: str


class IndexReading(msgspec.Struct, frozen=True):
    """The index compared with the log. `missing_entries` is 0 unless the log has entries that are not
    indexed."""

    sessions: int
    missing_entries: int


class SearchPage(msgspec.Struct, frozen=True):
    """A page of hits, the best first. `next` leads to the next page, if there is one. `is_complete` is False
    while older conversations are still being indexed."""

    hits: tuple[FoundEntry, ...]
    next: str | None = None
    is_complete: bool = True
