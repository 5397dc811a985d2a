"""A memory provider that follows turns. It keeps what people said, and brings it back for a message that has
a word in common with it. Nothing is on disk."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

import msgspec

from talaria.core.errors import ToolError
from talaria.core.ids import TurnId
from talaria.core.memory import (
    FAMILY,
    EditOrigin,
    MemoryEdit,
    MemoryPage,
    MemoryPlace,
    PageContent,
    TurnMemory,
)
from talaria.core.redaction import SecretRegistry
from talaria.core.tools import ToolSpec
from talaria.memory.pages import FactChanges, apply_edit, body, page_digest, shown
from talaria.tools.function import Arguments, FunctionTool, parameters
from talaria.tools.tool import MemoryProvider, Tool, ToolContext

_SHORTEST: Final = 4  # letters of a word that counts

RECOLLECT: Final = ToolSpec(
    name="recollect",
    description="Return all that this memory has.",
    parameters=parameters({}),
    read_only=True,
    idempotent=True,
)


class KeywordMemory(MemoryProvider):
    """`said` has the words of people by their turns."""

    name = FAMILY
    follows_turns = True

    def __init__(self, secrets: SecretRegistry | None = None) -> None:
        self._secrets = secrets or SecretRegistry()
        self._pages: dict[tuple[MemoryPlace, MemoryPage], str] = {}
        self.said: defaultdict[MemoryPlace, dict[TurnId, str]] = defaultdict(dict)

    def tools(self) -> tuple[Tool, ...]:
        return (FunctionTool(RECOLLECT, self._recollect),)

    def prompt(self, place: MemoryPlace) -> str:
        found = ((page, shown(self._pages.get((place, page), ""))) for page in place.pages)
        return self._secrets("\n\n".join(f"## {page}\n{text}" for page, text in found if text))

    async def pages(self, place: MemoryPlace) -> tuple[PageContent, ...]:
        found = ((page, self._pages.get((place, page), "")) for page in place.pages)
        return tuple(
            PageContent(page, self._secrets(body(text)), page_digest(text), len(text.encode()))
            for page, text in found
        )

    async def edit(self, place: MemoryPlace, edit: MemoryEdit, origin: EditOrigin) -> str:
        if edit.page not in place.pages:
            raise ToolError(f"{edit.page} is not used here.", f"Use {MemoryPage.MEMORY}.")
        if "text" in edit.__struct_fields__:
            edit = msgspec.structs.replace(edit, text=self._secrets(getattr(edit, "text", "")))
        edited = apply_edit(self._pages.get((place, edit.page), ""), edit, origin)
        self._pages[place, edit.page] = edited.text
        return f"{edit.page}:\n{FactChanges(edited.added, edited.removed).describe()}"

    async def prefetch(self, turn: TurnMemory) -> str:
        words = _words(turn.said)
        others = (text for turn_id, text in self.said[turn.place].items() if turn_id != turn.turn_id)
        return self._secrets("\n".join(text for text in others if words & _words(text)))

    async def sync(self, turn: TurnMemory, answer: str) -> None:
        self.said[turn.place][turn.turn_id] = turn.said

    async def _recollect(self, arguments: Arguments, context: ToolContext) -> str:
        return "\n".join(text for said in self.said.values() for text in said.values())


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.casefold()) if len(word) >= _SHORTEST}
