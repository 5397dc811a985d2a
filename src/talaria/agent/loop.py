"""The agent loop: request, stream, entries, until the model has nothing more to ask for.

The loop starts from what the log says, so a resumed turn goes on where it stopped:
- If the last message has tool calls without results, the calls are settled: steps that ended keep their
  result, pending ones run, started ones are *outcome unknown* unless the tool is idempotent. Then ONE results
  entry is appended.
- If a pending call needs a person's decision first, no call is settled. All open questions are committed at
  once and the loop returns: the turn is parked. The next run finds the decisions in the journal.
- Calls that hand tasks to delegates come last. The turn is parked until all delegates have an outcome.
- Otherwise the model is asked. No request is built while a call lacks a result.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from talaria.agent.calling import Caller
from talaria.agent.context import Steer, TurnContext, TurnTools
from talaria.agent.journal import Journal
from talaria.core.delegates import Delegate, Report
from talaria.core.errors import EmptyAnswer, LimitReached, SteerWaiting
from talaria.core.events import (
    PREVIEW_CHARS,
    QuestionAsked,
    ToolFinished,
    ToolStarted,
    UsageReported,
    find_note,
)
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import new_question_id
from talaria.core.ledger import StepWrite, TurnEnd, UsageWrite
from talaria.core.messages import (
    AssistantMessage,
    ToolCall,
    ToolOutcome,
    ToolResult,
)
from talaria.core.questions import Question
from talaria.core.specs import Completion
from talaria.core.tools import DELEGATE, inner_call
from talaria.core.turns import StepKind, StepState, TurnState

UNKNOWN_OUTCOME = (
    "The gateway was restarted while this call ran: its outcome is unknown. "
    "It was not run again. Find out what happened before you repeat it."
)
REFUSED = "Refused by a person. The call was not run."
CUT_OFF = "\n\n[The answer was cut off at the model's output limit.]"
NOT_DECIDED = "No person decided in time. The call was not run."


class Loop:
    """Lets one agent answer one turn, and writes the turn's journal."""

    def __init__(self, caller: Caller, journal: Journal, context: TurnContext) -> None:
        self._caller = caller
        self._journal = journal
        self._context = context

    async def run(self) -> Completion | None:
        """Run to the turn's end, commit it, and return the model's last answer. Return None if the turn was
        parked instead.

        Raises `ModelError`, `LimitReached` and store errors. After an error or a cancellation the turn is not
        settled; `said` has what the model said last.
        """
        while True:
            if self._journal.unanswered and self._context.tools is not None:
                if questions := await self._find_questions(self._context.tools):
                    await self._park(questions)
                    return None
                if awaited := await self._settle(self._context.tools):
                    await self._journal.commit(delegates=awaited)
                    hit(Failpoint.PARKED)
                    return None
            await self._take_steers()
            if self._context.notes is not None and (notes := await self._context.notes.waiting()):
                await self._journal.commit(notes)
                hit(Failpoint.NOTED)
                await self._context.notes.told(notes)
            if self._journal.model_calls >= self._context.max_steps:
                raise LimitReached(
                    f"The turn was stopped after {self._context.max_steps} model calls.",
                    "Send a message to continue it, or raise `agent.max_steps`.",
                )
            completion = await self._ask()
            hit(Failpoint.ANSWERED)
            message = completion.message
            step, usage = self._account(completion)
            if message.tool_calls and self._context.tools is not None:
                pending = (
                    _tool_step(n, inner_call(call), StepState.PENDING)
                    for n, call in enumerate(message.tool_calls, step.n + 1)
                )
                await self._journal.commit((message,), (step, *pending), (usage,))
                continue
            if not message.text and not message.tool_calls and self._context.tools is not None:
                await self._journal.commit((), (step,), (usage,))
                raise EmptyAnswer(
                    f"The model {self._caller.choice.model} sent an empty answer.",
                    "Send your message again.",
                )
            reply = _reply_text(completion) + (self._caller.note if self._context.tools else "")
            used = self._journal.usage + usage.tokens
            end = TurnEnd(TurnState.DONE, reply=reply, usage=used, files=self._journal.files)
            hit(Failpoint.ENDING)
            try:
                await self._journal.commit((message,), (step,), (usage,), end)
            except SteerWaiting:
                await self._journal.commit((message,), (step,), (usage,))
                await self._await_steer()
                continue
            return completion

    def said(self) -> AssistantMessage | None:
        """Return what a model call that did not end has said so far, marked as interrupted."""
        choice, text = self._caller.choice, "".join(self._caller.said)
        if not text:
            return None
        return AssistantMessage(text, model=choice.model, interrupted=True, provider=choice.provider)

    # -- messages that join ---------------------------------------------------------------------------------

    def _steers(self) -> list[Steer]:
        steering = self._context.steering
        if steering is None:
            return []
        return [steer for steer in steering.waiting() if steer.turn_id not in self._journal.taken]

    async def _take_steers(self) -> None:
        """Append the messages that wait, and mark their turns as joined, in one commit."""
        if steers := self._steers():
            await self._journal.commit(
                [steer.message for steer in steers], steers=[steer.turn_id for steer in steers]
            )

    async def _await_steer(self) -> None:
        """Wait for a message that the store has accepted and that may not have arrived here yet."""
        while not self._steers():
            assert self._context.steering is not None
            await self._context.steering.arrival()

    # -- the model ------------------------------------------------------------------------------------------

    async def _ask(self) -> Completion:
        completion = await self._caller.ask()
        self._context.emit(UsageReported(completion.usage, self._caller.choice.model))
        return completion

    def _account(self, completion: Completion) -> tuple[StepWrite, UsageWrite]:
        return (
            StepWrite(self._journal.next_step, StepKind.MODEL, self._caller.choice.model, StepState.ENDED),
            self._context.budget.charge(completion),
        )

    # -- questions ------------------------------------------------------------------------------------------

    async def _find_questions(self, tools: TurnTools) -> dict[Question, str]:
        """Return what must be asked before the calls of the last message can run, with the tools' names."""
        journal, now = self._journal, self._context.clock.now()
        questions = {}
        for n, call in journal.numbered(journal.unanswered):
            known = journal.questions.get(n)
            is_settled = known is not None and not known.is_open(now)
            if is_settled or journal.steps[n].state is not StepState.PENDING:
                continue
            if (draft := await tools.question(call)) is not None:
                question = Question(
                    new_question_id(),
                    journal.turn_id,
                    n,
                    call.id,
                    draft.kind,
                    draft.text,
                    now,
                    now + draft.timeout,
                    draft.choices,
                    name=call.name,
                    digest=draft.digest,
                )
                questions[question] = call.name
        return questions

    async def _park(self, questions: dict[Question, str]) -> None:
        await self._journal.commit(ask=tuple(questions))
        hit(Failpoint.PARKED)
        for question, name in questions.items():
            self._context.emit(QuestionAsked.of(question, name))

    # -- tools ----------------------------------------------------------------------------------------------

    async def _settle(self, tools: TurnTools) -> Sequence[Delegate]:
        """Give every call its result, or return the delegates that have to end first. Neighbouring calls of
        read-only tools run concurrently, as far as the limits let them; a step is `started` only when its
        call has a slot."""

        def only_reads(item: tuple[int, ToolCall]) -> bool:
            spec = tools.spec(item[1].name)
            return spec is not None and spec.read_only

        results: list[ToolResult] = []
        calls = list(self._journal.numbered(self._journal.unanswered))
        for _, call in calls:
            if call.name == DELEGATE:
                return await self._settle_around(tools, calls)
        for is_parallel, members in itertools.groupby(calls, only_reads):
            group = list(members)
            if is_parallel and len(group) > 1:
                results += await _side_by_side(self._settle_one(tools, n, call) for n, call in group)
                continue
            for n, call in group:
                earlier = results if (n, call) == calls[-1] else None
                results.append(await self._settle_one(tools, n, call, earlier))
        if self._journal.unanswered:
            await self._journal.commit_results(results)
        return ()

    async def _settle_around(
        self, tools: TurnTools, calls: Sequence[tuple[int, ToolCall]]
    ) -> Sequence[Delegate]:
        """Settle the calls of a message that hands out tasks: first the other calls, one by one, so that
        their effects are there when the delegates begin."""
        results = {n: await self._settle_one(tools, n, call) for n, call in calls if call.name != DELEGATE}
        handed, now = [(n, call) for n, call in calls if call.name == DELEGATE], self._context.clock.now()
        known, awaited, refused = list(self._journal.delegates), [], {}
        background: list[Delegate] = []
        for n, call in handed:
            own = [each for each in known if each.n == n]
            question = self._journal.questions.get(n)
            is_refused = question is not None and (question.is_denied() or question.is_expired(now))
            if not own and not is_refused and self._journal.steps[n].state is StepState.PENDING:
                found = await tools.hand_out(call, n, len(known))
                if isinstance(found, ToolResult):
                    refused[n] = found
                else:
                    own = list(found)
                    known += own
                    background += [each for each in own if each.report is Report.OWED]
                    self._context.emit(ToolStarted(call.id, call.name, call.arguments))
            awaited += [each for each in own if each.report is Report.RESULT and each.is_open(now)]
        if background:
            await self._journal.commit(background=background)
            hit(Failpoint.PARKED)
            self._context.handed_out(background)
        if awaited:
            return awaited
        for n, call in handed:
            own = [each for each in known if each.n == n]
            results[n] = await self._settle_one(tools, n, call, delegates=own, refused=refused.get(n))
        await self._journal.commit_results([results[n] for n, _ in calls])
        return ()

    async def _settle_one(
        self,
        tools: TurnTools,
        n: int,
        call: ToolCall,
        earlier: Sequence[ToolResult] | None = None,
        *,
        delegates: Sequence[Delegate] = (),
        refused: ToolResult | None = None,
    ) -> ToolResult:
        """Run a call and commit its result. `earlier` is given with the last call: the results of the calls
        before it, with which its own goes to the log in the same commit. `delegates` have ended; `refused` is
        why there are none."""
        step = self._journal.steps[n]
        if step.result is not None:
            return step.result
        spec, question = tools.spec(call.name), self._journal.questions.get(n)
        if step.state is StepState.STARTED and not (spec and spec.idempotent):
            await tools.record_write()
            result = ToolResult(call.id, call.name, UNKNOWN_OUTCOME, ToolOutcome.UNKNOWN)
        elif question is not None and question.is_expired(self._context.clock.now()):
            result = ToolResult(call.id, call.name, NOT_DECIDED, ToolOutcome.ERROR)
        elif question is not None and question.is_denied():
            result = ToolResult(call.id, call.name, REFUSED, ToolOutcome.ERROR)
        elif refused is not None:
            result = refused
        else:
            async with tools.slot():
                if step.state is StepState.PENDING:
                    await self._journal.commit((), (_tool_step(n, call, StepState.STARTED),))
                if not delegates:  # it began with them
                    self._context.emit(ToolStarted(call.id, call.name, call.arguments))
                hit(Failpoint.STARTED)
                result = await tools.run(call, question, delegates)
                hit(Failpoint.RAN)
        ended = _tool_step(n, call, StepState.ENDED, result)
        if earlier is None:
            await self._journal.commit((), (ended,))
        else:
            await self._journal.commit_results((*earlier, result), (ended,))
        preview, note = result.text[:PREVIEW_CHARS], find_note(result.text)
        self._context.emit(ToolFinished(call.id, call.name, result.outcome, preview, note))
        return result


def _tool_step(n: int, call: ToolCall, state: StepState, result: ToolResult | None = None) -> StepWrite:
    return StepWrite(n, StepKind.TOOL, call.name, state, call.id, result)


def _reply_text(completion: Completion) -> str:
    return completion.message.text + (CUT_OFF if completion.stop == "length" else "")


async def _side_by_side(work: Iterable[Coroutine[Any, Any, ToolResult]]) -> list[ToolResult]:
    """Return all results. If one fails, cancel and await the others and raise its error.

    The tasks have the name of the turn's own task, by which the loop's watch knows the turn.
    """
    turn = asyncio.current_task()
    assert turn is not None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine, name=turn.get_name()) for coroutine in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
