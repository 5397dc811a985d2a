"""`LogStore`: the part of the store's port that reads the logs of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from talaria.core import ledger
from talaria.core.entries import Entry, Note
from talaria.core.ids import SessionId, TurnId


class LogStore(Protocol):
    async def entries(self, session_id: SessionId, page: ledger.Page) -> ledger.EntryPage:
        """Return a page of the session's log. Raises `BadRequest` for an invalid page."""
        ...

    async def log(self, session_id: SessionId, after_seq: int) -> Sequence[Entry]:
        """Return all entries after `after_seq`, in order."""
        ...

    async def shown_log(self, session_id: SessionId) -> Sequence[Entry]:
        """Return the entries from which a warm agent is built, in order: those behind the floor, which is the
        last entry that the summary in force stands for. That summary is among them."""
        ...

    async def turn_log(self, session_id: SessionId, turn_id: TurnId) -> Sequence[Entry]:
        """Return the entries that a turn wrote, in order, also those behind the floor."""
        ...

    async def last_input(self, session_id: SessionId) -> int | None:
        """Return the tokens of the last request of the session whose provider reported them."""
        ...

    async def notes(self, session_id: SessionId) -> Sequence[Note]:
        """Return all notes of the session's log, in order."""
        ...

    async def spoken(self, session_id: SessionId, limit: int) -> Sequence[Entry]:
        """Return the newest messages of users and models, and the entries that hide some, oldest first."""
        ...
