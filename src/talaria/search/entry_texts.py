"""The text of an entry: who speaks, and what is said. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from talaria.core.entries import Announcement, Entry, Note
from talaria.core.messages import (
    AssistantMessage,
    File,
    SystemMessage,
    ToolResults,
    UserMessage,
    spoken_part,
)
from talaria.core.wrapped_calls import inner_call

RESULT_CHARS = 4096  # of each result, and of the arguments of a call, that are indexed
_MESSAGE_CHARS = 256 << 10
# Searches repeat what the log has in its place, so they would only find themselves.
_SEARCHES = frozenset({"recall_search", "recall_describe", "recall_expand", "session_search"})


def speaker_of(entry: Entry) -> str:
    """Return the name of a sender, or the kind of the entry, such as `assistant`; for results the names of
    their tools."""
    match entry.body:
        case UserMessage(name=name):
            return name or "user"
        case ToolResults(results=results):
            return ", ".join(dict.fromkeys(result.name for result in results))
        case body:
            return str(body.__struct_config__.tag)


def full_text(entry: Entry) -> str:
    """Return everything that the entry says, as text; empty for an entry that says nothing."""
    return "\n".join(_pieces(entry, None))


def indexed_text(entry: Entry) -> str:
    """Return the text that is indexed: long results and arguments are cut, and searches are left out."""
    return "\n".join(_pieces(entry, RESULT_CHARS))[:_MESSAGE_CHARS]


def _pieces(entry: Entry, cap: int | None) -> Iterator[str]:
    match entry.body:
        case UserMessage(parts=parts):
            for part in parts:
                yield spoken_part(part)
                if isinstance(part, File) and part.text:
                    yield part.text
        case AssistantMessage() as answer:
            if cap is None:
                yield from (f"[thinking] {each.text}" for each in answer.reasoning if each.text)
            if answer.text:
                yield answer.text
            for call in map(inner_call, answer.tool_calls):
                if cap is None or call.name not in _SEARCHES:
                    yield f"[call] {call.name} {call.arguments[:cap]}"
        case ToolResults(results=results):
            yield from (each.text[:cap] for each in results if cap is None or each.name not in _SEARCHES)
        case Note(text=text) | SystemMessage(text=text) | Announcement(text=text):
            yield text
