"""`/memory`: show what is remembered, and edit it."""

from __future__ import annotations

from typing import Final

from talaria.commands.command_types import CommandContext, CommandResult
from talaria.core.delivery import Button
from talaria.core.memory import (
    AddFact,
    ForgetFact,
    MemoryEdit,
    MemoryPage,
    PageContent,
    ReplaceFact,
    WritePage,
)

USAGE: Final = "/memory [user] [add TEXT|forget TEXT|replace OLD => NEW|clear]"
_OFF: Final = "There is no memory here: the family `memory` is not in `tools.enabled`."


def memory(context: CommandContext, args: str) -> CommandResult:
    """The command runner carries the edit out and completes the reply."""
    if context.memory is None:
        return CommandResult(_OFF)
    word, _, rest = args.partition(" ")
    page = MemoryPage.MEMORY
    if word.lower() == "user":
        page = MemoryPage.USER
        word, _, rest = rest.strip().partition(" ")
    rest = rest.strip()
    edit: MemoryEdit
    match word.lower():
        case "":
            return _show(context.memory)
        case "add" if rest:
            edit = AddFact(page, rest)
        case "forget" if rest:
            edit = ForgetFact(page, rest)
        case "replace" if "=>" in rest:
            old, _, new = rest.partition("=>")
            edit = ReplaceFact(page, old.strip(), new.strip())
        case "clear" if not rest:
            edit = WritePage(page, "")
        case _:
            return CommandResult(f"Say it like this: `{USAGE}`.")
    return CommandResult("", edit_memory=edit)


def _show(pages: tuple[PageContent, ...]) -> CommandResult:
    parts = [
        f"{content.page} ({content.size} of {content.page.max_bytes} bytes)\n"
        f"{content.trouble or content.text or 'Nothing is remembered.'}"
        for content in pages
    ]
    clears = {MemoryPage.MEMORY: "/memory clear", MemoryPage.USER: "/memory user clear"}
    buttons = [Button(f"Clear {each.page}", clears[each.page]) for each in pages if each.text]
    return CommandResult("\n\n".join([*parts, f"`{USAGE}` changes it."]), buttons=tuple(buttons))
