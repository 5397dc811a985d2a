"""Context engines: what chooses which part of a conversation the model sees. Ours writes summaries.

An engine only chooses. The keeper checks its choice, commits it and lets the agent read it. A plug-in brings
another engine as a `ContextPart`; its tools join the tools of every new session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from talaria.agent.compaction.plan import CompactionRequest, Plan, plan_compaction
from talaria.agent.side_calls import Purpose, SideCall
from talaria.core.entries import Summary
from talaria.core.errors import TalariaError
from talaria.core.messages import (
    AssistantMessage,
    SystemMessage,
    ToolResults,
    UserMessage,
    is_untrusted,
    spoken_part,
)
from talaria.core.settings import GatewayPart, Parts, S
from talaria.core.shown import ShownLog, entry_id, result_id
from talaria.core.text import cut_middle
from talaria.core.tools import inner_call
from talaria.tools.part import ToolScope
from talaria.tools.tool import ToolSource

Ask = Callable[[SideCall], Awaitable[str]]
"""Makes a model call as a step of the turn. Raises `TalariaError`."""


class ContextEngine(Protocol):
    """Chooses what the model sees of a conversation that is to be compacted."""

    @property
    def tools(self) -> ToolSource | None:
        """The tools that the engine brings, such as a search over what is not shown."""
        ...

    async def compact(self, request: CompactionRequest, ask: Ask) -> Summary | None:
        """Return what the model sees from now on, with a range, a text, stubs and folds; None to leave it.

        May call a model with `ask`. Raises `TalariaError` if it fails; the conversation then stays as it is,
        or its oldest part is left out without a summary if it must. May be cancelled.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPart(GatewayPart[S]):
    """A part that brings a context engine, which is used until its context is left. The first one of the list
    of parts counts; without one, `SummaryEngine` does."""

    open: Callable[[ToolScope, S], AbstractAsyncContextManager[ContextEngine]]


async def open_engine(
    scopes: AsyncExitStack,
    parts: Parts,
    open_part: Callable[[ContextPart[Any]], AbstractAsyncContextManager[ContextEngine]],
) -> ContextEngine:
    """Open the first engine of the list of parts, until the scopes are left; the default one if none is."""
    for part in parts:
        if isinstance(part, ContextPart):
            return await scopes.enter_async_context(open_part(part))
    return SummaryEngine()


_INSTRUCTIONS = """\
You write the summary of the earlier part of a conversation between people and an assistant with tools. The \
assistant reads your summary in place of that part, and goes on with the conversation.

Keep what will be needed: what the people want and how they like it; decisions and their reasons; facts, \
names, numbers, dates, paths and addresses exactly as they stand; what was done and what came of it; what \
is still open. Say who said what. Name the ids of important places, such as e12 or r14.1. Leave out \
greetings and dead ends. If the text begins with a summary, keep what is still needed of it.

Write plain sentences or short lists in the language of the conversation, at most {words} words. Begin with \
the facts, without a heading."""
_FOCUS = "\n\nThe person asked to keep this in view above all: {focus}"
_CALL_SECONDS = 120.0
_MOST_CALLS = 8
_RESULT_CHARS = 1500
_ARGUMENT_CHARS = 500
_LINE_CHARS = 160
_CHARS_PER_TOKEN = 3
_THOUGHT_TOKENS = 2000  # a model that thinks needs room for it


class SummaryEngine:
    """The default engine: cuts large results, then summarises the oldest turns."""

    tools: ToolSource | None = None

    def __init__(self, call_seconds: float = _CALL_SECONDS) -> None:
        """`call_seconds` is the time limit of one call."""
        self._call_seconds = call_seconds

    async def compact(self, request: CompactionRequest, ask: Ask) -> Summary | None:
        plan = plan_compaction(request)
        log = ShownLog(request.entries)
        if plan.last <= log.floor:
            return _shorten(log, plan)
        return apply_plan(log, plan, await self._summarise(request, plan, log, ask))

    async def _summarise(self, request: CompactionRequest, plan: Plan, log: ShownLog, ask: Ask) -> str:
        """Return a summary of everything up to `plan.last`. A text that is too long for one call is
        summarised in parts, each with the summary of the parts before it."""
        words = request.summary_tokens * 2 // 3
        instructions = _INSTRUCTIONS.format(words=words)
        if request.focus:
            instructions += _FOCUS.format(focus=request.focus)
        lines = list(render_entries(log, plan.last))
        room = max(2000, request.room * _CHARS_PER_TOKEN)
        total = sum(map(len, lines))
        if total > room * _MOST_CALLS:
            most = max(200, room * _MOST_CALLS // max(1, len(lines)))
            lines = [line[:most] for line in lines]
        lines = [line[:room] for line in lines]
        text = log.summary.text
        for part in _parts(lines, room):
            told = f"The summary so far:\n{text}\n\nThe conversation:\n{part}" if text else part
            text = await ask(
                SideCall(
                    Purpose.SUMMARY,
                    instructions,
                    told,
                    max_output=request.summary_tokens + _THOUGHT_TOKENS,
                    seconds=self._call_seconds,
                )
            )
            if len(text) >= len(told):
                raise TalariaError(
                    "The summary is not shorter than its source.",
                    "Let another model write summaries: context.summary_model.",
                )
        return text


def _shorten(log: ShownLog, plan: Plan) -> Summary | None:
    """Return the summary entry of a plan that only shortens; None if it shortens nothing more."""
    before = log.summary
    if plan.stubs == before.stubs and plan.folds == before.folds:
        return None
    return Summary(
        before.first,
        before.last,
        before.text,
        before.children,
        before.untrusted,
        plan.stubs,
        plan.folds,
        before.of,
    )


def apply_plan(log: ShownLog, plan: Plan, text: str) -> Summary:
    """Return the summary entry of a plan, with the text that stands for everything up to `plan.last`."""
    before = log.summary
    brought = any(
        entry.message is not None and is_untrusted(entry.message)
        for entry in log.entries
        if entry.seq <= plan.last and entry.seq not in log.hidden
    )
    children = (log.summary_seq,) if before.text else ()
    return Summary(1, plan.last, text, children, before.untrusted or brought, plan.stubs, plan.folds)


def leave_out(request: CompactionRequest) -> Summary | None:
    """Return a compaction that needs no model: the oldest part is replaced by the beginnings of what was
    said in it. None if nothing can go."""
    plan = plan_compaction(request)
    log = ShownLog(request.entries)
    if plan.last <= log.floor:
        return _shorten(log, plan)
    room = request.summary_tokens * 2
    lines = [line[:_LINE_CHARS] for line in render_entries(log, plan.last, results=False)]
    kept: list[str] = []
    for line in reversed(lines):
        if (room := room - len(line) - 1) < 0:
            break
        kept.insert(0, line)
    head = "No summary could be written. These are the beginnings of what was said last:"
    old = f"{log.summary.text[: request.summary_tokens]}\n\n" if log.summary.text else ""
    return apply_plan(log, plan, "\n".join((f"{old}{head}", *kept)))


def _parts(lines: Sequence[str], room: int) -> Iterator[str]:
    part: list[str] = []
    size = 0
    for line in lines:
        if part and size + len(line) > room:
            yield "\n".join(part)
            part, size = [], 0
        part.append(line)
        size += len(line) + 1
    if part:
        yield "\n".join(part)


def render_entries(log: ShownLog, last: int, *, results: bool = True) -> Iterator[str]:
    """Yield the shown messages up to `last` as text, each with its id."""
    for entry, message in log.behind_floor(last):
        name = entry_id(entry.seq)
        match message:
            case UserMessage(parts=parts, stamp=stamp):
                said = " ".join(map(spoken_part, parts))
                yield f"{name} [{stamp}] Person: {said}" if stamp else f"{name} Person: {said}"
            case AssistantMessage(text=text, tool_calls=calls):
                if text:
                    yield f"{name} Assistant: {text}"
                for call in map(inner_call, calls if results else ()):
                    yield f"{name} Assistant calls {call.name}: {cut_middle(call.arguments, _ARGUMENT_CHARS)}"
            case ToolResults(results=given) if results:
                for nth, result in enumerate(given, 1):
                    text = cut_middle(result.text, _RESULT_CHARS)
                    yield f"{result_id(entry.seq, nth)} Result of {result.name} ({result.outcome}): {text}"
            case SystemMessage(text=text):
                yield f"{name} System: {text}"
            case _:
                pass
