"""Memory: what agents remember beyond their sessions, and the port of a memory provider.

Each place has memory of its own: a person, or a chat that is no person's, such as a group. What is remembered
in one place is never shown in another.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable
from urllib.parse import unquote

import msgspec

from talaria.core.ids import ChatAddress, ChatKey, SessionId, TurnId
from talaria.core.people import KnownPeople, PersonId
from talaria.core.tools import Tool

FAMILY = "memory"  # in `tools.enabled`


class MemoryPage(StrEnum):
    """The pages of a place. `USER.md` is about the person; a chat that is no person's has none."""

    MEMORY = "MEMORY.md"
    USER = "USER.md"

    @property
    def max_bytes(self) -> int:
        return 8 << 10 if self is MemoryPage.MEMORY else 4 << 10


class MemoryPlace(msgspec.Struct, frozen=True):
    """Whose memory it is: a person's or, if `person` is None, that of the chat `chat`, such as
    `CHANNEL:group:-5`. Threads of a chat share it."""

    agent: str
    person: PersonId | None = None
    chat: str = ""

    @property
    def pages(self) -> tuple[MemoryPage, ...]:
        return (MemoryPage.MEMORY,) if self.person is None else tuple(MemoryPage)


def place_of(people: KnownPeople, key: ChatKey) -> MemoryPlace:
    """Return the place whose memory a chat uses."""
    person = people.of_chat(key)
    if person is not None:
        return MemoryPlace(unquote(key.split(":", 2)[1]), person)
    address = ChatAddress.parse(key)
    return MemoryPlace(address.agent, chat=f"{address.channel}:{address.kind}:{address.chat}")


# -- edits ------------------------------------------------------------------------------------------------


class AddFact(msgspec.Struct, frozen=True):
    page: MemoryPage
    text: str


class ReplaceFact(msgspec.Struct, frozen=True):
    """`old` is the fact, or words that only this fact has."""

    page: MemoryPage
    old: str
    text: str


class ForgetFact(msgspec.Struct, frozen=True):
    page: MemoryPage
    old: str


class WritePage(msgspec.Struct, frozen=True):
    """The whole page, as a person wrote it. With `digest`, only if the page is still that one."""

    page: MemoryPage
    text: str
    digest: str = ""


MemoryEdit: TypeAlias = AddFact | ReplaceFact | ForgetFact | WritePage


class EditOrigin(msgspec.Struct, frozen=True):
    """Where an edit comes from. An edit with the `key` of an earlier one is the same edit, and is not carried
    out again. `by` is a session's id, or a word for the hand that wrote; `at` is a time."""

    key: str
    by: str
    at: float


class PageContent(msgspec.Struct, frozen=True):
    """A page as people edit it; `size` is that of its file. `trouble` says why it cannot be used; it is empty
    if it can."""

    page: MemoryPage
    text: str
    digest: str
    size: int
    trouble: str = ""


# -- providers --------------------------------------------------------------------------------------------


class TurnMemory(msgspec.Struct, frozen=True):
    """A turn as a provider sees it: `said` are the person's words."""

    place: MemoryPlace
    session_id: SessionId
    turn_id: TurnId
    said: str
    at: float


@runtime_checkable
class MemoryProvider(Protocol):
    """The part that remembers. It is a source of tools, of the family `memory`.

    The gateway puts `prompt` into the prefix of new sessions and tells running ones of its changes, line by
    line. A provider that `follows_turns` is also asked before a turn and told after it.
    """

    name: str
    is_builtin: bool
    follows_turns: bool

    def tools(self) -> tuple[Tool, ...]: ...

    def subscribe(self, changed: Callable[[], None]) -> None: ...

    def prompt(self, place: MemoryPlace) -> str:
        """Return what a new session of the place is told. It has no secrets. Called for each message, so it
        must be cheap; raises nothing."""
        ...

    async def pages(self, place: MemoryPlace) -> tuple[PageContent, ...]:
        """Return all that is remembered, for people to read."""
        ...

    async def edit(self, place: MemoryPlace, edit: MemoryEdit, origin: EditOrigin) -> str:
        """Carry out an edit, and return what became of it, in words. Durable when it returns. Raises
        `ToolError` with the reason if nothing was changed."""
        ...

    async def prefetch(self, turn: TurnMemory) -> str:
        """Return what the model should read before it answers the turn; empty for nothing."""
        ...

    async def sync(self, turn: TurnMemory, answer: str) -> None:
        """Take a turn in that has ended. Called again with the same turn after a crash. Turns with content
        from outside, and turns that nobody attends, are not told."""
        ...
