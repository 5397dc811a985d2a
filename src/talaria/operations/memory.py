"""Operations on memory: read and replace its pages."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from talaria.access.callers import CHANNEL
from talaria.core.access import OWNER, Role
from talaria.core.errors import BadRequest, NotFound, Refused, ToolError
from talaria.core.ids import ChatAddress, ChatKey, new_turn_id
from talaria.core.memory import EditOrigin, MemoryPage, MemoryPlace, PageContent, WritePage
from talaria.core.views import view_of
from talaria.gateway import Gateway
from talaria.operations.operation import ALL, CHAT, OperationCall, argument, in_query, operation
from talaria.tools.tool import MemoryProvider

_BY: Final = "api"  # the origin of edits by these operations
_CHAT: Final = "Key of the chat whose memory to use. Default: the caller's own memory."
_ERRORS: Final = ("not_found", "forbidden")


class MemoryQuery(msgspec.Struct, frozen=True):
    chat: Annotated[str, Meta(description=_CHAT)] = ""


class PageBody(msgspec.Struct, frozen=True, kw_only=True):
    """The new text of a memory page."""

    page: Annotated[str, argument("Page to replace: MEMORY.md or USER.md.", "PAGE")]
    chat: Annotated[str, in_query(_CHAT)] = ""
    text: Annotated[str, Meta(description="Full text of the page.")]
    digest: Annotated[
        str, Meta(description="If given, replace the page only if it still has this digest.")
    ] = ""


class PageView(msgspec.Struct, frozen=True):
    """A memory page. `bytes` is the size of its file. `trouble` says why it cannot be used, if so."""

    name: MemoryPage
    text: str
    digest: str
    bytes: int
    max_bytes: int
    trouble: str

    @classmethod
    def of(cls, content: PageContent) -> PageView:
        page = content.page
        return view_of(cls, content, name=page, bytes=content.size, max_bytes=page.max_bytes)


class MemoryView(msgspec.Struct, frozen=True):
    """The memory of `person` or, if `person` is null, of the chat `chat`."""

    agent: str
    person: str | None
    chat: str
    pages: tuple[PageView, ...]


@operation("memory.show", "GET /api/memory", ALL, errors=_ERRORS)
async def show_memory(gateway: Gateway, call: OperationCall, wanted: MemoryQuery) -> MemoryView:
    """Show the memory pages."""
    return await _view(_provider(gateway), _place(gateway, call, wanted.chat))


@operation(
    "memory.write",
    "POST /api/memory/{page}",
    CHAT,
    audit="memory.write",
    errors=_ERRORS,
    example='{"text": "- Likes green tea."}',
    max_body=64 << 10,
)
async def write_memory(gateway: Gateway, call: OperationCall, wanted: PageBody) -> MemoryView:
    """Replace a memory page and return all pages."""
    provider, place = _provider(gateway), _place(gateway, call, wanted.chat)
    try:
        page = MemoryPage(wanted.page)
    except ValueError:
        raise NotFound(
            f"There is no page {wanted.page[:80]!r}.", "The pages are MEMORY.md and USER.md."
        ) from None
    origin = EditOrigin(new_turn_id(), _BY, gateway.clock.now())
    try:
        await provider.edit(place, WritePage(page, wanted.text, wanted.digest), origin)
    except ToolError as error:
        raise BadRequest(error.user_text, error.hint) from error
    return await _view(provider, place)


async def _view(provider: MemoryProvider, place: MemoryPlace) -> MemoryView:
    pages = await provider.pages(place)
    return MemoryView(place.agent, place.person, place.chat, tuple(map(PageView.of, pages)))


def _provider(gateway: Gateway) -> MemoryProvider:
    memories = gateway.turns.memories
    if memories is None or memories.provider is None:
        raise NotFound("Memory is not enabled.", "Add `memory` to tools.enabled in config.toml.")
    return memories.provider


def _place(gateway: Gateway, call: OperationCall, chat: str) -> MemoryPlace:
    """Return the caller's own memory or, for callers that see every chat, that of the chat they name."""
    caller, memories = call.caller, gateway.turns.memories
    if not chat or memories is None:
        token = gateway.people.of_identity(CHANNEL, f"token:{caller.owner}")
        return MemoryPlace(gateway.settings.agent.name, token if caller.owner else OWNER)
    try:
        ChatAddress.parse(ChatKey(chat))
    except ValueError:
        raise BadRequest(
            f"{chat[:200]!r} is not a chat key.", "`GET /api/sessions` lists the chat keys."
        ) from None
    if caller.role is Role.CHAT and not caller.owns(ChatKey(chat)):
        raise Refused(
            "forbidden", "The chat belongs to another caller.", "Omit `chat` to use your own memory."
        )
    return memories.place(ChatKey(chat))


MEMORY_OPERATIONS: Final = (show_memory, write_memory)
