"""Sessions and their entries as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from talaria.channels.console.clean import clean, clean_line
from talaria.channels.console.tool_line import describe_call
from talaria.channels.http.views import SessionView
from talaria.cli.columns import columns, when
from talaria.core.entries import Entry, Hidden, ReasoningSet, SpecSet, TitleSet
from talaria.core.messages import (
    AssistantMessage,
    File,
    Image,
    Part,
    SystemMessage,
    Text,
    ToolOutcome,
    ToolResults,
    UserMessage,
)

_LONGEST_RESULT = 160


def table(sessions: Sequence[SessionView]) -> str:
    rows = [("LAST USED", "NAME", "TITLE", "ID")]
    rows += [
        (when(view.updated_at), clean_line(view.name or view.chat_key, 40), _title(view), view.id)
        for view in sessions
    ]
    return columns(rows)


def describe_session(view: SessionView) -> str:
    title = f" “{clean_line(view.title)}”" if view.title else ""
    ended = f", ended {when(view.ended_at)}" if view.ended_at is not None else ""
    chat = clean_line(view.name or view.chat_key)
    return f"{view.id}{title}: chat {chat}, begun {when(view.created_at)}{ended}"


def entry_lines(entry: Entry) -> Iterator[str]:
    """A head with who and when, then the text; entries that say nothing to people give one line or none."""
    body, at = entry.body, when(entry.at)
    match body:
        case UserMessage():
            yield f"\nyou, {at}"
            yield from map(_part, body.parts)
        case AssistantMessage():
            mark = " (interrupted)" if body.interrupted else ""
            yield f"\n{clean_line(body.model) or 'assistant'}, {at}{mark}"
            if body.text:
                yield clean(body.text)
            yield from (f"⚙ {describe_call(call.name, call.arguments)}" for call in body.tool_calls)
        case ToolResults():
            for result in body.results:
                word = "" if result.outcome is ToolOutcome.OK else f"{result.outcome.value}: "
                yield f"  ↳ {clean_line(result.name)}: {word}{clean_line(result.text, _LONGEST_RESULT)}"
        case SystemMessage():
            yield f"\n{clean_line(body.role)}, {at}"
            yield clean(body.text)
        case TitleSet():
            yield f"\n(title: {clean_line(body.title)})"
        case Hidden(first=first, last=last):
            yield f"\n(entries {first} to {last} undone)"
        case ReasoningSet():
            yield f"\n(reasoning: {clean_line(body.effort) or 'as configured'})"
        case SpecSet():
            pass
        case _:
            assert_never(body)


def _part(part: Part) -> str:
    match part:
        case Text():
            return clean(part.text)
        case Image():
            return "[image]"
        case File():
            return f"[file {clean_line(part.name)}]"
        case _:
            assert_never(part)


def _title(view: SessionView) -> str:
    title = clean_line(view.title, 40) or "-"
    return f"{title} (ended)" if view.ended_at is not None else title
