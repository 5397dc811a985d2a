"""The tool `session_search`: finding what was said in all conversations that may be seen from a chat."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from talaria.core.errors import BadRequest, ToolError
from talaria.core.ids import channel_of
from talaria.core.tools import ToolSpec
from talaria.search.hits import FoundEntry
from talaria.tools.function import Arguments, FunctionTool, parameters, text
from talaria.tools.part import ToolScope
from talaria.tools.recall import distrust_log
from talaria.tools.tool import Tool, ToolContext

_HITS: Final = 10
_SPARE: Final = 5  # for entries of the running turn, which are left out

SESSION_SEARCH = ToolSpec(
    name="session_search",
    description=(
        "Search all earlier conversations with this person, on every channel. Returns the best passages with "
        "dates; recall_expand(id) shows the whole."
    ),
    parameters=parameters({"query": text('Words, a question, or "a phrase".')}, ["query"]),
    read_only=True,
    idempotent=True,
    uses_files=False,
)


def session_search_tool(scope: ToolScope) -> Tool:
    """Return the tool. It finds what may be seen from the chat in which it is called."""

    async def search(arguments: Arguments, context: ToolContext) -> str:
        try:
            reach = scope.people.reach(context.chat_key)
            page = await scope.search.search(arguments["query"], reach, _HITS + _SPARE)
        except BadRequest as error:
            raise ToolError(error.user_text, error.hint) from error
        lines: list[str] = []
        for hit in page.hits:
            entry = await scope.store.recall.entry(hit.session_id, hit.seq)
            if entry is None or entry.turn_id == context.turn_id or len(lines) == _HITS:
                continue
            await distrust_log(scope, hit.session_id, context)
            lines.append(_line(hit, scope, context))
        if not lines:
            lines = ["Nothing was found. Try other words, or fewer."]
        if not page.is_complete:
            lines.append("[Older conversations are still being indexed.]")
        return "\n".join(lines)

    return FunctionTool(SESSION_SEARCH, search)


def _line(hit: FoundEntry, scope: ToolScope, context: ToolContext) -> str:
    at = datetime.fromtimestamp(hit.at, scope.zone).strftime("%a %Y-%m-%d %H:%M")
    is_here = hit.session_id == context.session_id
    place = "this conversation" if is_here else f"{channel_of(hit.chat_key)}, “{hit.title}”"
    return f"[{hit.session_id}/e{hit.seq}] {at}, {place}, {hit.speaker}: {hit.excerpt}"
