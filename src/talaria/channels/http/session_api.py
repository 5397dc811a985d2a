"""`/api/sessions`: listing, reading, ending and deleting sessions."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from talaria.channels.http.callers import HOME_CALLER, ApiCaller
from talaria.channels.http.request import HttpError, Request, quoted, read_number
from talaria.channels.http.response import Response, json_response
from talaria.channels.http.views import DeletedSession, ProjectView, SessionList, SessionView
from talaria.core.errors import BadRequest, LeaseHeld, NotFound, ToolError
from talaria.core.ids import SESSION_PREFIX, ChatKey, SessionId, is_session_name
from talaria.core.ledger import Page
from talaria.core.sessions import Session
from talaria.gateway import Gateway

_MAX_PAGE: Final = 500
_MAX_CURSOR: Final = 200  # characters
_MAX_PROJECT_BODY: Final = 16 << 10


class ProjectBody(msgspec.Struct):
    folder: str = ""


class SessionLookup:
    """Finds the session or chat that `X` in a path or header means to a caller: a name or an id."""

    def __init__(self, gateway: Gateway) -> None:
        self._store = gateway.store
        self._agent_name = gateway.settings.agent.name
        self._shared = HOME_CALLER.chat_key(self._agent_name, "")

    async def session(self, x: str, request: Request) -> Session:
        """Return the session with this id, or the current session of the caller's chat with this name.

        Raises `NotFound`, also for a chat that the caller may not see, and `BadRequest` for a text that is
        neither.
        """
        if x.startswith(SESSION_PREFIX):
            found = await self._store.session(SessionId(x))
        else:
            found = await self._store.current_session(self._key(x, request.caller))
        if found is None or not request.sees(found.chat_key):
            raise NotFound(f"There is no session {x}.", "GET /api/sessions lists them.")
        return found

    async def chat(self, x: str, request: Request) -> ChatKey:
        """Return the chat for a message to X. A chat with a name need not exist yet.

        Raises `HttpError` (409) for the id of a session that is not the current one of its chat, and what
        `session` raises.
        """
        if not x.startswith(SESSION_PREFIX):
            return self._key(x, request.caller)
        session = await self.session(x, request)
        current = await self._store.current_session(session.chat_key)
        if current is None or current.id != session.id:
            raise HttpError(
                "not_current",
                f"{x} is not the current session of its chat.",
                f"Send `/resume {x}` to the chat first, or write to the chat by its name.",
            )
        return session.chat_key

    async def model(self, x: str, request: Request) -> str | None:
        """Return the model of the session X as provider/name; None if there is no such session yet."""
        try:
            session = await self.session(x, request)
        except NotFound:
            return None
        pinned = await self._store.spec(session.spec_id) if session.spec_id else None
        return f"{pinned.spec.provider}/{pinned.spec.model}" if pinned else None

    def _key(self, name: str, caller: ApiCaller) -> ChatKey:
        if not is_session_name(name):
            raise BadRequest(
                f"{name!r} is no name for a session.",
                "A name has 1 to 128 of the characters A-Z a-z 0-9 . _ - and does not start with ses_.",
            )
        if caller.owner:
            return caller.chat_key(self._agent_name, name)
        return ChatKey(self._shared + name)  # a name has no character that a key would have to quote


class SessionApi:
    def __init__(self, gateway: Gateway) -> None:
        self._store = gateway.store
        self._turns = gateway.turns
        self._deletions = gateway.deletions
        self._folders = gateway.folders
        self._workspaces = gateway.workspaces
        self._lookup = SessionLookup(gateway)
        self._agent_name = gateway.settings.agent.name

    async def list(self, request: Request) -> Response:
        caller = request.caller
        page = await self._store.sessions(read_page(request), caller.prefix(self._agent_name))
        items = tuple(SessionView.of(session, caller=caller) for session in page.items)
        return json_response(SessionList(items, page.next))

    async def show(self, request: Request) -> Response:
        session = await self._lookup.session(request.params["x"], request)
        pinned = session.spec_id and await self._store.spec(session.spec_id)
        model = f"{pinned.spec.provider}/{pinned.spec.model}" if pinned else None
        return json_response(SessionView.of(session, model, request.caller))

    async def entries(self, request: Request) -> Response:
        session = await self._lookup.session(request.params["x"], request)
        return json_response(await self._store.entries(session.id, read_page(request)))

    async def files(self, request: Request) -> Response:
        session = await self._lookup.session(request.params["x"], request)
        return json_response(await self._store.sent_files(session.id, read_page(request)))

    async def delete(self, request: Request) -> Response:
        session = await self._lookup.session(request.params["x"], request)
        request.about = request.about or session.id  # audited in any case
        try:
            await self._deletions.delete(session.id)
        except LeaseHeld:
            raise _busy(session.id) from None
        return json_response(DeletedSession(session.id))

    async def end(self, request: Request) -> Response:
        session = await self._lookup.session(request.params["x"], request)
        if session.ended_at is None:
            try:
                session = await self._turns.end(session.id)
            except LeaseHeld:
                raise _busy(session.id) from None
        return json_response(SessionView.of(session, caller=request.caller))

    async def use_project(self, request: Request) -> Response:
        """Let a chat work on a project's folder, or on its own again. The chat need not exist yet."""
        body = await request.json(ProjectBody, _MAX_PROJECT_BODY)
        chat = await self._lookup.chat(request.params["x"], request)
        try:
            await self._workspaces.claim(chat, is_tied=True)  # the folder is of this machine
        except ToolError as error:
            raise BadRequest(
                error.user_text, "Choose it at the gateway that has the chat's files."
            ) from error
        folder = await asyncio.to_thread(self._folders.choose, chat, body.folder)
        return json_response(ProjectView(chat, str(folder)))


def _busy(session_id: SessionId) -> HttpError:
    return HttpError(
        "busy",
        f"A turn of {session_id} runs or waits.",
        "Wait until it is done, or stop it with POST /api/turns/ID/cancel.",
    )


def read_page(request: Request) -> Page:
    query = request.query()
    limit = read_number("limit", query.get("limit", "50"))
    if not 1 <= limit <= _MAX_PAGE:
        raise BadRequest(f"limit={limit} is no size for a page.", f"Write a number from 1 to {_MAX_PAGE}.")
    after = query.get("after") or None
    if after is not None and len(after) > _MAX_CURSOR:
        raise BadRequest(
            f"after={quoted(after)} is no place in a list.", "Pass the `next` of the page before as `after`."
        )
    return Page(limit, after)
