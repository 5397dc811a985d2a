"""The agent loop: request, stream, entries, until the model has nothing more to ask for.

It starts from whatever the log says, so a resumed turn goes on where it stopped:
- the last message has tool calls without results: settle them (steps that ended keep their result, pending
  ones run, started ones are *outcome unknown* unless the tool is idempotent), then append ONE results entry;
- otherwise: ask the model.
No request is built while a call lacks a result.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from talaria.agent.journal import Journal
from talaria.agent.warm import WarmAgent
from talaria.core.errors import LimitReached, ModelError, ModelUnavailable
from talaria.core.events import Delta, Event, ReasoningDelta, ToolFinished, ToolStarted, UsageReported
from talaria.core.ids import TurnId
from talaria.core.ledger import StepWrite, TurnEnd, UsageWrite
from talaria.core.messages import (
    AssistantMessage,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
)
from talaria.core.models import Completion, ModelCall, ModelDelta, TextDelta
from talaria.core.ports import Model
from talaria.core.tools import ToolSpec
from talaria.core.turns import Step, StepKind, StepState, TurnState
from talaria.observe.metrics import Metrics

_PREVIEW = 200
UNKNOWN_OUTCOME = (
    "The gateway was restarted while this call ran: its outcome is unknown. "
    "It was not run again. Find out what happened before you repeat it."
)
CANCELLED_BY_USER = "Cancelled by the user before it ended."


class TurnTools(Protocol):
    """The session's tools, bound to one turn."""

    def spec(self, name: str) -> ToolSpec | None: ...

    async def run(self, call: ToolCall) -> ToolResult:
        """Never raises but for cancellation: a failure is a result."""
        ...


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What belongs to one turn and not to the agent.

    With `tools` None, tool calls belong to the caller and end the turn.
    """

    turn_id: TurnId
    emit: Callable[[Event], None]
    max_steps: int
    tools: TurnTools | None
    metrics: Metrics
    reasoning: str | None = None
    max_output: int | None = None
    sampling: bytes = b""


class Answer(msgspec.Struct, frozen=True):
    """How a turn ended, the completion that ended it, and the steps that led there."""

    end: TurnEnd
    completion: Completion
    steps: tuple[Step, ...]


class Loop:
    """One turn of one agent, whose journal it writes."""

    def __init__(self, agent: WarmAgent, model: Model, journal: Journal, context: TurnContext) -> None:
        self._agent = agent
        self._model = model
        self._journal = journal
        self._context = context
        self._partial: list[str] = []

    async def run(self) -> Answer:
        """Runs to the turn's end and commits it. Raises `ModelError`, `LimitReached` and store errors."""
        while True:
            if self._journal.unanswered and self._context.tools is not None:
                await self._settle(self._context.tools)
            if self._journal.model_calls >= self._context.max_steps:
                raise LimitReached(
                    f"The turn was stopped after {self._context.max_steps} model calls.",
                    "Send a message to let it go on, or raise `agent.max_steps`.",
                )
            completion = await self._ask()
            message = completion.message
            step, usage = self._account(completion)
            if message.tool_calls and self._context.tools is not None:
                pending = (
                    _tool_step(n, call, StepState.PENDING)
                    for n, call in enumerate(message.tool_calls, step.n + 1)
                )
                await self._journal.commit((message,), (step, *pending), (usage,))
                continue
            if not message.text and not message.tool_calls:
                await self._journal.commit((), (step,), (usage,))
                raise ModelUnavailable(
                    f"The model {self._agent.pinned.spec.model} sent an empty answer.",
                    "Send your message again.",
                )
            end = TurnEnd(
                TurnState.DONE, reply=_reply_text(completion), usage=self._journal.usage + usage.tokens
            )
            await self._journal.commit((message,), (step,), (usage,), end)
            return Answer(end, completion, tuple(self._journal.steps.values()))

    async def interrupt(self) -> None:
        """After a cancel by the user: partial text is kept with a mark, unsettled calls become cancelled."""
        text = "".join(self._partial)
        said = AssistantMessage(text=text, model=self._agent.pinned.spec.model, interrupted=True)
        end = TurnEnd(TurnState.CANCELLED, reply=text or None, usage=self._journal.usage)
        await self._journal.close(end, CANCELLED_BY_USER, said if text else None)

    # -- the model ------------------------------------------------------------------------------------------

    async def _ask(self) -> Completion:
        context, agent, partial = self._context, self._agent, self._partial
        emit = context.emit

        def sink(delta: ModelDelta) -> None:
            if isinstance(delta, TextDelta):
                partial.append(delta.text)
                emit(Delta(delta.text))
            else:
                emit(ReasoningDelta(delta.text))

        call = ModelCall(
            model=agent.pinned.spec.model,
            prefix=agent.pinned.prefix,
            chunks=agent.transcript.chunks,
            reasoning=context.reasoning,
            max_output=context.max_output,
            sampling=context.sampling,
        )
        completion = await self._metered(call, sink)
        partial.clear()
        emit(UsageReported(completion.usage, agent.pinned.spec.model))
        return completion

    async def _metered(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        metrics, provider = self._context.metrics, self._agent.pinned.spec.provider
        began = time.perf_counter()
        try:
            completion = await self._model.complete(call, sink)
        except ModelError as error:
            metrics.model_called(provider, error.type, time.perf_counter() - began)
            raise
        metrics.model_called(provider, "ok", time.perf_counter() - began)
        metrics.tokens_used(provider, completion.usage)
        return completion

    def _account(self, completion: Completion) -> tuple[StepWrite, UsageWrite]:
        spec = self._agent.pinned.spec
        n = self._journal.next_step
        return (
            StepWrite(n, StepKind.MODEL, spec.model, StepState.ENDED),
            UsageWrite(n, spec.provider, spec.model, completion.usage),
        )

    # -- tools ----------------------------------------------------------------------------------------------

    async def _settle(self, tools: TurnTools) -> None:
        """Give every call its result; neighbours that only read run side by side."""

        def only_reads(item: tuple[int, ToolCall]) -> bool:
            spec = tools.spec(item[1].name)
            return spec is not None and spec.read_only

        results: list[ToolResult] = []
        calls = self._journal.numbered(self._journal.unanswered)
        for is_parallel, group in itertools.groupby(calls, only_reads):
            if is_parallel:
                results += await _side_by_side(self._settle_one(tools, n, call) for n, call in group)
            else:
                results += [await self._settle_one(tools, n, call) for n, call in group]
        await self._journal.commit((ToolResults(tuple(results)),))

    async def _settle_one(self, tools: TurnTools, n: int, call: ToolCall) -> ToolResult:
        step = self._journal.steps[n]
        if step.result is not None:
            return step.result
        spec = tools.spec(call.name)
        if step.state is StepState.STARTED and not (spec and spec.idempotent):
            result = ToolResult(call.id, call.name, UNKNOWN_OUTCOME, ToolOutcome.UNKNOWN)
        else:
            if step.state is StepState.PENDING:
                await self._journal.commit((), (_tool_step(n, call, StepState.STARTED),))
            self._context.emit(ToolStarted(call.id, call.name, call.arguments))
            result = await tools.run(call)
        await self._journal.commit((), (_tool_step(n, call, StepState.ENDED, result),))
        self._context.emit(ToolFinished(call.id, call.name, result.outcome, result.text[:_PREVIEW]))
        return result


def _tool_step(n: int, call: ToolCall, state: StepState, result: ToolResult | None = None) -> StepWrite:
    return StepWrite(n, StepKind.TOOL, call.name, state, call.id, result)


def _reply_text(completion: Completion) -> str:
    cut = "\n\n[The answer was cut off at the model's output limit.]" if completion.stop == "length" else ""
    return completion.message.text + cut


async def _side_by_side(work: Iterable[Coroutine[Any, Any, ToolResult]]) -> list[ToolResult]:
    """All of it or, when one fails (the store did), its error; the others are cancelled and awaited."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
