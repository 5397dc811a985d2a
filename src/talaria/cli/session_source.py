"""Where `talaria sessions` reads: the running gateway, or the store when none runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from talaria.channels.console.client import GatewayClient, Refusal
from talaria.channels.http.views import SessionView, chat_key
from talaria.core.entries import Entry
from talaria.core.errors import BadRequest, LeaseHeld, NotFound
from talaria.core.ids import SESSION_PREFIX, SessionId, is_session_name
from talaria.core.ledger import EntryPage, Page
from talaria.core.ports import Store
from talaria.core.sessions import Session
from talaria.turns.ending import SessionEnds, end_session


class SessionSource(Protocol):
    """Each method raises `NotFound` or a refusal for what is not there."""

    async def sessions(self, limit: int) -> tuple[list[SessionView], bool]:
        """The newest `limit`, and whether there are more."""
        ...

    async def session(self, name_or_id: str) -> SessionView: ...

    def entries(self, session_id: SessionId) -> AsyncIterator[Entry]: ...

    async def end(self, name_or_id: str) -> SessionView:
        """Ending an ended session changes nothing. Raises when a turn of it runs."""
        ...


class _SessionPage(msgspec.Struct, frozen=True):
    items: list[SessionView]
    next: str | None


class GatewaySource:
    def __init__(self, client: GatewayClient) -> None:
        self._client = client

    async def sessions(self, limit: int) -> tuple[list[SessionView], bool]:
        page = msgspec.json.decode(await self._client.sessions(limit), type=_SessionPage)
        return page.items, page.next is not None

    async def session(self, name_or_id: str) -> SessionView:
        with _found(name_or_id):
            return msgspec.json.decode(await self._client.session(name_or_id), type=SessionView)

    async def entries(self, session_id: SessionId) -> AsyncIterator[Entry]:
        after = None
        while True:
            page = msgspec.json.decode(await self._client.entries(session_id, after), type=EntryPage)
            for entry in page.entries:
                yield entry
            after = page.next
            if after is None:
                return

    async def end(self, name_or_id: str) -> SessionView:
        with _found(name_or_id):
            return msgspec.json.decode(await self._client.end_session(name_or_id), type=SessionView)


class StoreSource:
    """The store alone: no turn runs, and what ends is ended with its workspace before `end` returns."""

    def __init__(self, store: Store, agent_name: str, on_end: SessionEnds) -> None:
        self._store = store
        self._agent_name = agent_name
        self._on_end = on_end

    async def sessions(self, limit: int) -> tuple[list[SessionView], bool]:
        page = await self._store.sessions(Page(limit))
        return [SessionView.of(session) for session in page.items], page.next is not None

    async def session(self, name_or_id: str) -> SessionView:
        return SessionView.of(await self._find(name_or_id))

    async def entries(self, session_id: SessionId) -> AsyncIterator[Entry]:
        after = None
        while True:
            page = await self._store.entries(session_id, Page(after=after))
            for entry in page.entries:
                yield entry
            after = page.next
            if after is None:
                return

    async def end(self, name_or_id: str) -> SessionView:
        session = await self._find(name_or_id)
        if session.ended_at is None:
            try:
                session = await end_session(self._store, session.id, self._on_end)
            except LeaseHeld as error:
                raise BadRequest(
                    f"A turn of {session.id} was running when its gateway stopped.",
                    "Start the gateway with `talaria serve`; when the turn is done, end the session.",
                ) from error
            await self._on_end.drain()
        return SessionView.of(session)

    async def _find(self, name_or_id: str) -> Session:
        if name_or_id.startswith(SESSION_PREFIX):
            found = await self._store.session(SessionId(name_or_id))
        elif is_session_name(name_or_id):
            found = await self._store.current_session(chat_key(self._agent_name, name_or_id))
        else:
            found = None
        if found is None:
            raise missing(name_or_id)
        return found


class NoSource:
    """A home without a database: there is nothing yet."""

    async def sessions(self, limit: int) -> tuple[list[SessionView], bool]:
        return [], False

    async def session(self, name_or_id: str) -> SessionView:
        raise missing(name_or_id)

    async def entries(self, session_id: SessionId) -> AsyncIterator[Entry]:
        nothing: tuple[Entry, ...] = ()
        for entry in nothing:
            yield entry

    async def end(self, name_or_id: str) -> SessionView:
        raise missing(name_or_id)


@contextmanager
def _found(name_or_id: str) -> Iterator[None]:
    """The API's hint is for programs; people are told which command helps."""
    try:
        yield
    except Refusal as refusal:
        if refusal.status == 404:
            raise missing(name_or_id) from refusal
        raise


def missing(name_or_id: str) -> NotFound:
    return NotFound(f"There is no session {name_or_id}.", "`talaria sessions list` shows those there are.")
