"""Memory: what agents remember beyond their sessions, and the port of a memory provider.

Each place has memory of its own: a person, or a chat that is no person's, such as a group. What is remembered
in one place is never shown in another.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from talaria.core.access import PersonId
from talaria.core.ids import SessionId, TurnId

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
