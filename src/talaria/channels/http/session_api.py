"""`/api/sessions`: listing, reading and ending sessions; `/api/files`: files for messages to come."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from talaria.channels.http.callers import HOME_CALLER, ApiCaller
from talaria.channels.http.request import HttpError, Request, quoted, read_number
from talaria.channels.http.response import FileResponse, Response, json_response
from talaria.channels.http.settings import HttpSettings
from talaria.channels.http.views import SessionView
from talaria.core.errors import BadRequest, LeaseHeld, NotFound
from talaria.core.ids import SESSION_PREFIX, ChatKey, SessionId, is_session_name
from talaria.core.ledger import Page
from talaria.core.sessions import Session
from talaria.gateway import Gateway
from talaria.workspace.uploads import too_large

_MAX_PAGE: Final = 500
_INERT_TYPES: Final = frozenset(
    {
        "application/json",
        "application/octet-stream",
        "application/pdf",
        "application/zip",
        "image/gif",
        "image/jpeg",
        "image/png",
        "image/webp",
        "text/csv",
        "text/markdown",
        "text/plain",
    }
)  # what a browser that does not guess takes for neither a page, a script nor a style
_MAX_CURSOR: Final = 200  # characters


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
        self._lookup = SessionLookup(gateway)
        self._agent_name = gateway.settings.agent.name

    async def list(self, request: Request) -> Response:
        caller = request.caller
        page = await self._store.sessions(_read_page(request), caller.prefix(self._agent_name))
        items = [SessionView.of(session, caller=caller) for session in page.items]
        return json_response({"items": items, "next": page.next})

    async def show(self, request: Request) -> Response:
        session = await self._lookup.session(request.params["x"], request)
        pinned = session.spec_id and await self._store.spec(session.spec_id)
        model = f"{pinned.spec.provider}/{pinned.spec.model}" if pinned else None
        return json_response(SessionView.of(session, model, request.caller))

    async def entries(self, request: Request) -> Response:
        session = await self._lookup.session(request.params["x"], request)
        return json_response(await self._store.entries(session.id, _read_page(request)))

    async def end(self, request: Request) -> Response:
        session = await self._lookup.session(request.params["x"], request)
        if session.ended_at is None:
            try:
                session = await self._turns.end(session.id)
            except LeaseHeld:
                raise HttpError(
                    "busy",
                    f"A turn of {session.id} runs or waits.",
                    "Wait until it is done, or stop it with POST /api/turns/ID/cancel.",
                ) from None
        return json_response(SessionView.of(session, caller=request.caller))


def _read_page(request: Request) -> Page:
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


class FileApi:
    def __init__(self, gateway: Gateway, settings: HttpSettings) -> None:
        self._uploads = gateway.uploads
        self._max_bytes = settings.max_file

    async def upload(self, request: Request) -> Response:
        """The body is the file; its name is `?name=`, or percent-encoded in `X-File-Name`."""
        media_type = request.header(b"content-type") or ""
        if media_type.lower().startswith("multipart/"):
            raise HttpError(
                "unsupported_media_type",
                "A form was sent where the file itself is expected.",
                "Send the file as the body: curl --data-binary @photo.jpg '…/api/files?name=photo.jpg'.",
            )
        if request.content_length > self._max_bytes:
            raise too_large(self._max_bytes)
        name = request.query().get("name") or unquote(request.header(b"x-file-name") or "")
        upload = await self._uploads.receive(name, media_type, request.chunks(), self._max_bytes)
        return json_response(upload, 201)

    async def show(self, request: Request) -> FileResponse:
        """The browser saves the file and never shows or runs it: an uploaded page or script must not become
        one of ours. Types that a browser could run are not told."""
        upload, file = await self._uploads.open_file(request.params["id"])
        headers = (
            (b"content-disposition", f"attachment; filename*=UTF-8''{quote(upload.name, safe='')}".encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", b"sandbox; default-src 'none'"),
            (b"cross-origin-resource-policy", b"same-origin"),
        )
        is_inert = upload.media_type in _INERT_TYPES
        media_type = upload.media_type if is_inert else "application/octet-stream"
        return FileResponse(file, headers, media_type.encode())
