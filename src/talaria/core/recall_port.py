"""`RecallStore`: the part of the store's port through which logs are read for recall and search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from talaria.core.entries import Entry
from talaria.core.ids import SessionId
from talaria.core.ledger import BranchPoint
from talaria.core.sessions import Session


class LogTotals(NamedTuple):
    """`entries` is the sum of the sessions' last seqs."""

    sessions: int
    entries: int


class RecallStore(Protocol):
    """All logs, as far as they may be read. A deleted session has no log, except for what its branches know
    of it."""

    async def changed(self, since: float, after: SessionId | None, limit: int) -> Sequence[Session]:
        """Return lasting sessions that were used at `since` or later, in the order of their last use.

        `after` is the last session of the page before, which was last used at `since`.
        """
        ...

    async def totals(self) -> LogTotals:
        """Count the lasting sessions that have entries."""
        ...

    async def known_sessions(self, ids: Sequence[SessionId]) -> Mapping[SessionId, Session]:
        """Return those of these sessions that exist."""
        ...

    async def kept_parents(self, ids: Sequence[SessionId]) -> Mapping[SessionId, int]:
        """Return the sessions among these of which there are branches, each with the last seq that a branch
        knows. They may be deleted."""
        ...

    async def lineage(self, session_id: SessionId) -> Sequence[BranchPoint]:
        """Return the places where the session and its ancestors began as branches, the nearest first."""
        ...

    async def slice(self, session_id: SessionId, after_seq: int, max_bytes: int) -> Sequence[Entry]:
        """Return the next entries after `after_seq`: at least one if there is one, at most 200, and no more
        once they have `max_bytes`."""
        ...

    async def entry(self, session_id: SessionId, seq: int) -> Entry | None: ...

    async def is_tainted(self, session_id: SessionId) -> bool:
        """Return whether untrusted content ever entered the log, also if it was undone since."""
        ...
