"""`/v1/conversations`: OpenAI's conversations as sessions.

The id of a conversation is the name of a session, so `conversation` in a response means what the header
`X-Talaria-Session` means. A new conversation has an id and nothing else: its session begins with its first
response.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import Any, Final, Literal

import msgspec

from talaria.channels.http.api_calls import tell_ignored
from talaria.channels.http.request import Request
from talaria.channels.http.response import Response, json_response
from talaria.channels.http.responses_api import InputItemList, read_page
from talaria.channels.http.responses_output import input_items
from talaria.core.entries import Entry
from talaria.core.errors import BadRequest, NotFound
from talaria.core.ids import TurnId
from talaria.core.ledger import Page
from talaria.core.messages import AssistantMessage, ToolResults, UserMessage
from talaria.core.sessions import Session
from talaria.gateway import Gateway
from talaria.models.parameters import refused
from talaria.operations.sessions import SessionKey, SessionLookup, delete_session

_NEW: Final = re.compile(r"conv_([0-9a-f]{8})[0-9a-f]{24}")
_ITEM: Final = re.compile(r"[a-z]+_(\d{1,15})_(\d{1,9})i")
_BODY = 64 << 10


class ConversationBody(msgspec.Struct):
    items: list[Any] | None = None
    metadata: dict[str, str] | None = None


class ConversationObject(msgspec.Struct, frozen=True):
    id: str
    created_at: int
    object: Literal["conversation"] = "conversation"
    metadata: dict[str, str] = {}


class DeletedConversation(msgspec.Struct, frozen=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ConversationApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._lookup = SessionLookup(gateway)

    async def create(self, request: Request) -> Response:
        """Answer with a new id. Nothing is written before the first response."""
        if request.content_length != 0:
            body = await request.json(ConversationBody, _BODY)
            if body.items:
                raise refused("items", "a session has no history before its first response", "Leave it out.")
            tell_ignored(request, ["metadata"] if body.metadata else [])
        now = int(time.time())
        return json_response(ConversationObject(f"conv_{now:08x}{secrets.token_hex(12)}", now))

    async def show(self, request: Request) -> Response:
        name = request.params["id"]
        session = await self._find(request)
        return json_response(ConversationObject(name, int(session.created_at if session else _began(name))))

    async def delete(self, request: Request) -> Response:
        """Delete the session with its history. See `delete_session`."""
        if (session := await self._find(request)) is not None:
            await delete_session.handle(self._gateway, request.call, SessionKey(session.id))
        return json_response(DeletedConversation(request.params["id"]))

    async def items(self, request: Request) -> Response:
        """Answer with a page of the log, as items."""
        query = request.query()
        limit, is_desc = read_page(query)
        place = _ITEM.fullmatch(query["after"]) if "after" in query else None
        if "after" in query and place is None:
            raise BadRequest("In the query: `after` names no item.", "Leave it out, or send an item's id.")
        if (session := await self._find(request)) is None:
            return json_response(InputItemList.of((), limit))
        after = (int(place[1]), int(place[2])) if place is not None else None
        found = await self._read(session, after, limit + 1, is_desc=is_desc)
        return json_response(InputItemList.of(found, limit))

    async def _read(
        self, session: Session, after: tuple[int, int] | None, most: int, *, is_desc: bool
    ) -> list[dict[str, Any]]:
        """Return items of the log, at least `most` if there are so many. `after` is the entry of the item
        before them, and its place in that."""
        store, found = self._gateway.store, list[dict[str, Any]]()
        seq = session.revision.seq if after is None and is_desc else after[0] if after is not None else 1
        edge: int | None = seq + 1 if is_desc else seq - 1
        while edge is not None and len(found) < most:
            if is_desc:
                page = await store.entries_before(session.id, edge, most)
            else:
                page = await store.entries(session.id, Page(most, str(edge)))
            edge = int(page.next) if page.next is not None else None
            for entry in reversed(page.entries) if is_desc else page.entries:
                items = list(enumerate(_items(entry)))
                for n, item in reversed(items) if is_desc else items:
                    at = (entry.seq, n)
                    if after is None or (at < after if is_desc else at > after):
                        found.append(item)
        return found

    async def _find(self, request: Request) -> Session | None:
        """Return the session of a conversation; None for one that has not begun. Raises `NotFound`."""
        name = request.params["id"]
        try:
            return await self._lookup.session(name, request.call)
        except NotFound:
            if _NEW.fullmatch(name):
                return None
            raise


def _began(name: str) -> int:
    found = _NEW.fullmatch(name)
    return int(found[1], 16) if found else 0


def _items(entry: Entry) -> list[dict[str, Any]]:
    """Return the items of an entry, whose ids tell its number."""
    body = entry.body
    if isinstance(body, UserMessage | AssistantMessage | ToolResults):
        return input_items([body], TurnId(str(entry.seq)))
    return []
