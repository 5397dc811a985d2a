"""`GET /api/search`: full text over the sessions that the caller may see."""

from __future__ import annotations

from typing import Final

import msgspec

from talaria.channels.http.callers import CHANNEL, TOKEN, ApiCaller
from talaria.channels.http.request import Request, quoted, read_number
from talaria.channels.http.response import Response, json_response
from talaria.channels.http.views import found_list
from talaria.core.errors import BadRequest
from talaria.core.ids import ChatAddress
from talaria.core.people import EVERYTHING, Reach
from talaria.gateway import Gateway

MAX_QUERY: Final = 1000  # characters
MAX_FOUND: Final = 100
_MAX_CURSOR: Final = 200


class SearchApi:
    def __init__(self, gateway: Gateway) -> None:
        self._index = gateway.search
        self._agent_name = gateway.settings.agent.name

    async def search(self, request: Request) -> Response:
        query = request.query()
        wanted, after = query.get("q", ""), query.get("after") or None
        limit = read_number("limit", query.get("limit", "20"))
        if not wanted.strip() or len(wanted) > MAX_QUERY:
            hint = f'Write ?q=WORDS, up to {MAX_QUERY} characters. "Words in quotation marks" stand together.'
            raise BadRequest("The search has no words, or too many.", hint)
        if not 1 <= limit <= MAX_FOUND:
            raise BadRequest(
                f"limit={limit} is no size for a page.", f"Write a number from 1 to {MAX_FOUND}."
            )
        if after is not None and len(after) > _MAX_CURSOR:
            hint = "Pass the `next` of the page before as `after`."
            raise BadRequest(f"after={quoted(after)} is no place in a list.", hint)
        caller = request.caller
        page = await self._index.search(wanted, self._reach(caller), limit, after)
        seen = tuple(hit for hit in page.hits if request.sees(hit.chat_key))
        return json_response(found_list(msgspec.structs.replace(page, hits=seen), wanted, caller))

    def _reach(self, caller: ApiCaller) -> Reach:
        """A caller finds what it may also read: every chat, or with the role `chat` those of its token."""
        if not caller.owner:
            return EVERYTHING
        return Reach((ChatAddress(self._agent_name, CHANNEL, TOKEN, caller.owner).key(),))
