"""`/api/memory`: what is remembered, for people to read and edit."""

from __future__ import annotations

from typing import Final

import msgspec

from talaria.channels.http.callers import CHANNEL
from talaria.channels.http.request import HttpError, Request
from talaria.channels.http.response import Response, json_response
from talaria.core.access import Role
from talaria.core.errors import BadRequest, NotFound, ToolError
from talaria.core.ids import ChatAddress, ChatKey, new_turn_id
from talaria.core.memory import EditOrigin, MemoryPage, MemoryPlace, MemoryProvider, PageContent, WritePage
from talaria.core.people import OWNER
from talaria.gateway import Gateway

_MAX_BODY: Final = 64 << 10
_BY: Final = "api"  # the origin of what is written here


class PageBody(msgspec.Struct):
    """The whole text of a page. With `digest`, it is written only if the page is still the one with this
    digest."""

    text: str
    digest: str = ""


class PageView(msgspec.Struct, frozen=True):
    """A page. `bytes` is the size of its file, `trouble` why it cannot be used."""

    name: MemoryPage
    text: str
    digest: str
    bytes: int
    max_bytes: int
    trouble: str

    @classmethod
    def of(cls, content: PageContent) -> PageView:
        page = content.page
        return cls(page, content.text, content.digest, content.size, page.max_bytes, content.trouble)


class MemoryView(msgspec.Struct, frozen=True):
    """The memory of `person` or, if that is null, of the chat `chat`."""

    agent: str
    person: str | None
    chat: str
    pages: tuple[PageView, ...]


class MemoryApi:
    def __init__(self, gateway: Gateway) -> None:
        self._memories = gateway.turns.memories
        self._people = gateway.people
        self._agent_name = gateway.settings.agent.name
        self._clock = gateway.clock

    async def show(self, request: Request) -> Response:
        return json_response(await self._view(self._provider(), self._place(request)))

    async def write(self, request: Request) -> Response:
        body = await request.json(PageBody, _MAX_BODY)
        provider, place = self._provider(), self._place(request)
        try:
            page = MemoryPage(request.params["page"])
        except ValueError:
            raise NotFound("There is no such page.", "The pages are MEMORY.md and USER.md.") from None
        origin = EditOrigin(new_turn_id(), _BY, self._clock.now())
        try:
            await provider.edit(place, WritePage(page, body.text, body.digest), origin)
        except ToolError as error:
            raise BadRequest(error.user_text, error.hint) from error
        return json_response(await self._view(provider, place))

    async def _view(self, provider: MemoryProvider, place: MemoryPlace) -> MemoryView:
        pages = await provider.pages(place)
        return MemoryView(place.agent, place.person, place.chat, tuple(map(PageView.of, pages)))

    def _provider(self) -> MemoryProvider:
        provider = self._memories.provider if self._memories is not None else None
        if provider is None:
            raise NotFound("There is no memory.", "Add memory to tools.enabled in config.toml.")
        return provider

    def _place(self, request: Request) -> MemoryPlace:
        """Return the caller's own memory or, for callers that see every chat, that of the chat they name."""
        caller, key = request.caller, request.query().get("chat", "")
        if not key or self._memories is None:
            token = self._people.of_identity(CHANNEL, f"token:{caller.owner}")
            return MemoryPlace(self._agent_name, token if caller.owner else OWNER)
        try:
            ChatAddress.parse(ChatKey(key))
        except ValueError:
            raise BadRequest(f"{key[:200]!r} is no chat key.", "`GET /api/sessions` has them.") from None
        if caller.role is Role.CHAT and not caller.owns(ChatKey(key)):
            raise HttpError("forbidden", "This is another caller's chat.", "Leave `chat` out.")
        return self._memories.place(ChatKey(key))
