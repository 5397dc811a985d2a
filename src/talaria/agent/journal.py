"""The journal of one turn: its commits under the lease's fence, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from talaria.agent.warm import WarmAgent
from talaria.core.entries import Entry, EntryBody, Revision
from talaria.core.ids import Fence, SessionId, TurnId
from talaria.core.ledger import Commit, OutboxWrite, StepWrite, TurnEnd, UsageWrite
from talaria.core.messages import (
    AssistantMessage,
    TokenUsage,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
)
from talaria.core.ports import Store
from talaria.core.specs import PinnedSpec
from talaria.core.tasks import finish
from talaria.core.turns import Step, StepKind, StepState


class Journal:
    """All that a turn writes goes through here, so it always knows where the turn stands.

    `unanswered` are the calls of the last assistant message that have no results entry yet; their steps
    stand behind the model step in the order of the calls. `usage` is what this attempt's model calls used.
    `end` is set once the turn is settled. All of it tells what was committed, never what was only tried.
    """

    def __init__(
        self,
        store: Store,
        session_id: SessionId,
        turn_id: TurnId,
        fence: Fence,
        before_end: Callable[[], None] | None = None,
    ) -> None:
        """`before_end` is called when the commit that gives the lease back is about to be made."""
        self._store = store
        self._fence = fence
        self._before_end = before_end
        self._agent: WarmAgent | None = None
        self._last_model = 0
        self.session_id = session_id
        self.turn_id = turn_id
        self.steps: dict[int, Step] = {}
        self.model_calls = 0
        self.unanswered: tuple[ToolCall, ...] = ()
        self.usage = TokenUsage()
        self.end: TurnEnd | None = None

    def recall(self, entries: Iterable[Entry], steps: Iterable[Step]) -> None:
        """Take up what earlier attempts at this turn committed."""
        for step in steps:
            self._note_step(step)
        for entry in entries:
            self._note_entry(entry.body)

    def attach(self, agent: WarmAgent | None) -> None:
        """From now on `agent` absorbs what is appended; None when its lease ends before the turn does."""
        self._agent = agent

    @property
    def next_step(self) -> int:
        return len(self.steps) + 1

    def numbered(self, calls: Sequence[ToolCall]) -> Iterable[tuple[int, ToolCall]]:
        """The calls of the last assistant message with the numbers of their steps."""
        return enumerate(calls, self._last_model + 1)

    async def commit(
        self,
        entries: Sequence[EntryBody] = (),
        steps: Sequence[StepWrite] = (),
        usage: Sequence[UsageWrite] = (),
        end: TurnEnd | None = None,
        *,
        specs: Sequence[PinnedSpec] = (),
        outbox: Sequence[OutboxWrite] = (),
    ) -> Revision:
        """One transaction. Finished and absorbed even if the caller is cancelled. Raises store errors."""
        order = Commit(
            session_id=self.session_id,
            fence=self._fence,
            turn_id=self.turn_id,
            entries=tuple(entries),
            specs=tuple(specs),
            steps=tuple(steps),
            usage=tuple(usage),
            end=end,
            outbox=tuple(outbox),
        )
        if end is not None and self._before_end is not None:
            self._before_end()
        return await finish(self._carry_out(order))

    async def close(self, end: TurnEnd, note: str, partial: AssistantMessage | None = None) -> None:
        """End the turn before its time and leave a well-formed log.

        Calls without a result get `note` as theirs; `partial` is what the model had said so far.
        """
        entries: list[EntryBody] = []
        steps: list[StepWrite] = []
        if self.unanswered:
            results = []
            for n, call in self.numbered(self.unanswered):
                result = self.steps[n].result
                if result is None:
                    result = ToolResult(call.id, call.name, note, ToolOutcome.CANCELLED)
                    steps.append(StepWrite(n, StepKind.TOOL, call.name, StepState.ENDED, call.id, result))
                results.append(result)
            entries.append(ToolResults(tuple(results)))
        elif partial is not None:
            entries.append(partial)
        await self.commit(entries, steps, (), end)

    async def _carry_out(self, order: Commit) -> Revision:
        committed = await self._store.commit(order)
        for write in order.steps:
            self._note_step(
                Step(self.turn_id, write.n, write.kind, write.name, write.state, write.call_id, write.result)
            )
        for call in order.usage:
            self.usage += call.tokens
        for body in order.entries:
            self._note_entry(body)
        if order.end is not None:
            self.end = order.end
        if self._agent is not None:
            self._agent.absorb(committed.entries)
        return committed.revision

    def _note_step(self, step: Step) -> None:
        is_new = step.n not in self.steps
        self.steps[step.n] = step
        if is_new and step.kind is StepKind.MODEL:
            self._last_model = step.n
            self.model_calls += 1

    def _note_entry(self, body: EntryBody) -> None:
        match body:
            case AssistantMessage(tool_calls=calls):
                self.unanswered = calls
            case ToolResults():
                self.unanswered = ()
            case _:
                pass
