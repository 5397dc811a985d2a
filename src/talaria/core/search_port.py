"""`SearchIndex`: the port through which tools, the command line and the HTTP API find what was said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from talaria.core.ids import ChatKey, SessionId
from talaria.core.ledger import BranchPoint
from talaria.core.people import Reach


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
    """An entry of a log that was found."""

    session_id: SessionId
    seq: int
    score: float


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


class SearchIndex(Protocol):
    """The full text of all lasting sessions.

    The index is filled behind the turns and can be deleted at any time; it is then made again. A search first
    takes in what was appended since, for a bounded time. Sessions that are deleted are never returned.
    """

    async def search(self, query: str, reach: Reach, limit: int = 10, after: str | None = None) -> SearchPage:
        """Find the entries that fit a text best: a question, some words, or "words in quotation marks" which
        must stand together. `after` is the `next` of an earlier page.

        Raises `BadRequest` for a query without words and for an invalid page, and `StoreError`.
        """
        ...

    async def find(self, query: str, logs: Sequence[BranchPoint], limit: int) -> Sequence[LogHit]:
        """Find the entries of these logs that fit a text best, in each up to a seq. Raises `BadRequest` for a
        query without words, and `StoreError`."""
        ...

    async def forget(self, session_id: SessionId) -> None:
        """Remove a deleted session from the index. Does nothing if the index cannot be written: its hits are
        left out all the same, and it is removed later."""
        ...
