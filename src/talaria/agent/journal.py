"""The journal of one turn: its commits under the lease's fence, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from talaria.agent.warm import WarmAgent
from talaria.core.delegates import Delegate
from talaria.core.entries import Entry, EntryBody, Revision
from talaria.core.errors import SteerWaiting, StoreError
from talaria.core.events import PREVIEW_CHARS
from talaria.core.files import RESULT_PATH, SentFile, sent_file_id
from talaria.core.ids import Fence, SessionId, TurnId
from talaria.core.ledger import Commit, StepWrite, TurnEnd, TurnRecord, UsageWrite
from talaria.core.messages import (
    AssistantMessage,
    File,
    TokenUsage,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
)
from talaria.core.questions import Question
from talaria.core.specs import PinnedSpec
from talaria.core.spending import Spent
from talaria.core.tasks import finish
from talaria.core.tools import SEND_FILE, inner_call
from talaria.core.turns import SIDE_STEP, Step, StepKind, StepState
from talaria.store.store import Store


class Journal(msgspec.Struct, eq=False):
    """Writes all commits of one turn, and so knows what the turn has committed.

    `unanswered` are the calls of the last assistant message that have no results entry yet, those of
    `tool_call` as the calls that they are about; their steps stand behind the model step in the order of the
    calls. `spent` is what the turn's model calls used. `questions` are those of earlier attempts, by step,
    and `delegates` those of the turn in the order in which they were handed out. `asked` or `awaited` is set
    once the turn is parked, `end` once it is settled; nothing can be committed after any of them. `taken` are
    turns whose messages joined this one. A commit that fails changes none of these. The next commit, whatever
    it is for, also records the attempts at model calls that did not end (`owe`, `drop`). `_before_release` is
    called before a commit that gives the lease back. What it returns is called if that commit was refused
    because the turn is not over."""

    _store: Store
    session_id: SessionId
    turn_id: TurnId
    fence: Fence
    _before_release: Callable[[], Callable[[], None]] | None = None
    _agent: WarmAgent | None = None
    _view: WarmAgent | None = None
    _is_kept: bool = True
    _last_model: int = 0
    steps: dict[int, Step] = {}
    model_calls: int = 0
    unanswered: tuple[ToolCall, ...] = ()
    spent: Spent = msgspec.field(default_factory=Spent)
    questions: dict[int, Question] = {}
    delegates: tuple[Delegate, ...] = ()
    asked: tuple[Question, ...] = ()
    awaited: tuple[Delegate, ...] = ()
    end: TurnEnd | None = None
    ended_at: float = 0.0  # as the turn's row has it
    taken: set[TurnId] = set()
    _owed: list[UsageWrite] = []
    _unsent: list[tuple[int, int]] = []

    @property
    def usage(self) -> TokenUsage:
        """The tokens of all model calls, with those that the next commit records."""
        return sum((call.tokens for call in self._owed), self.spent.tokens)

    @property
    def owes(self) -> bool:
        """Whether attempts at model calls wait for a commit that records them."""
        return bool(self._owed or self._unsent)

    def owe(self, call: UsageWrite) -> None:
        """Record an attempt that was sent with the next commit."""
        self._owed.append(call)

    def drop(self, attempt: tuple[int, int]) -> None:
        """Drop the reservation of an attempt that was not sent, a step and a number, with the next commit."""
        self._unsent.append(attempt)

    def recall(self, entries: Iterable[Entry], record: TurnRecord) -> None:
        """Take up what earlier attempts at this turn committed. `entries` are those of the turn."""
        self.spent += record.spent
        self.questions = {question.n: question for question in record.questions}
        self.delegates = record.delegates
        for step in record.steps:
            self._note_step(step)
        for entry in entries:
            self._note_entry(entry.body)

    def attach(self, agent: WarmAgent | None, *, is_kept: bool = True) -> None:
        """Let `agent` absorb what is appended from now on. Pass None when the agent's lease ends.

        An agent that is not kept after the turn does not absorb the turn's last entries.
        """
        self._agent = agent
        self._view = None
        self._is_kept = is_kept

    def feed(self, view: WarmAgent) -> None:
        """Let `view`, the session as a fallback model reads it, absorb what is appended, beside the agent."""
        self._view = view

    @property
    def next_step(self) -> int:
        return len(self.steps) + 1

    def numbered(self, calls: Sequence[ToolCall]) -> Iterable[tuple[int, ToolCall]]:
        """Return the calls of the last assistant message with the numbers of their steps."""
        return enumerate(calls, self._last_model + 1)

    @property
    def files(self) -> tuple[SentFile, ...]:
        """The files that the model sent, in the order of calls. Of a file that was sent twice, the last."""
        sent: dict[str, SentFile] = {}
        for step in self.steps.values():
            if step.name == SEND_FILE and step.result and step.result.outcome is ToolOutcome.OK:
                for part in step.result.parts:
                    if isinstance(part, File):
                        file_id = sent_file_id(self.turn_id, step.call_id, part.digest or "")
                        sent[part.path] = SentFile(file_id, part.name, part.media_type, part.size)
        return tuple(sent.values())

    async def commit(
        self,
        entries: Sequence[EntryBody] = (),
        steps: Sequence[StepWrite] = (),
        usage: Sequence[UsageWrite] = (),
        end: TurnEnd | None = None,
        *,
        specs: Sequence[PinnedSpec] = (),
        steers: Sequence[TurnId] = (),
        ask: Sequence[Question] = (),
        delegates: Sequence[Delegate] = (),
        background: Sequence[Delegate] = (),
        shortened: Sequence[tuple[int, ToolResult]] = (),
    ) -> Revision:
        """Commit one transaction and return the session's revision after it.

        It is finished and absorbed even if the caller is cancelled. Raises store errors.
        """
        order = Commit(
            session_id=self.session_id,
            fence=self.fence,
            turn_id=self.turn_id,
            entries=tuple(entries),
            specs=tuple(specs),
            steps=tuple(steps),
            usage=tuple(usage),
            end=end,
            steers=tuple(steers),
            ask=tuple(ask),
            shortened=tuple(shortened),
            delegates=tuple(delegates),
            background=tuple(background) if background else (),
        )
        if (end is None and not ask and not delegates) or self._before_release is None:
            return await finish(self._carry_out(order))
        take_back = self._before_release()
        try:
            return await finish(self._carry_out(order))
        except SteerWaiting:
            take_back()
            raise

    async def close(self, end: TurnEnd, note: str, partial: AssistantMessage | None = None) -> None:
        """End the turn early and leave a well-formed log.

        Calls without a result get `note` as their result. `partial` is what the model had said so far.
        """
        if self.unanswered:
            steps: list[StepWrite] = []
            results = []
            for n, call in self.numbered(self.unanswered):
                result = self.steps[n].result
                if result is None:
                    result = ToolResult(call.id, call.name, note, ToolOutcome.CANCELLED)
                    steps.append(StepWrite(n, StepKind.TOOL, call.name, StepState.ENDED, call.id, result))
                results.append(result)
            await self.commit_results(results, steps, end)
        else:
            await self.commit(() if partial is None else (partial,), (), (), end)

    async def commit_results(
        self, results: Sequence[ToolResult], steps: Sequence[StepWrite] = (), end: TurnEnd | None = None
    ) -> None:
        """Append the results of all unanswered calls, in the order of the calls. Their steps keep no more
        than the beginning of each."""
        numbers = [n for n, _ in self.numbered(self.unanswered)]
        short = {n: _shorten(result) for n, result in zip(numbers, results, strict=True)}
        writes = [msgspec.structs.replace(step, result=short.pop(step.n)) for step in steps]
        shortened = [(n, result) for n, result in short.items() if result is not self.steps[n].result]
        await self.commit((ToolResults(tuple(results)),), writes, (), end, shortened=shortened)

    async def _carry_out(self, order: Commit) -> Revision:
        owed, unsent = self._owed, self._unsent
        if owed or unsent:
            self._owed, self._unsent = [], []
            usage = (*owed, *order.usage)
            order = msgspec.structs.replace(order, usage=usage, unsent=tuple(unsent))
        try:
            committed = await self._store.commit(order)
        except StoreError:
            self._owed, self._unsent = owed + self._owed, unsent + self._unsent
            raise
        for write in order.steps:
            self._note_step(
                Step(self.turn_id, write.n, write.kind, write.name, write.state, write.call_id, write.result)
            )
        for n, result in order.shortened:
            self.steps[n] = msgspec.structs.replace(self.steps[n], result=result)
        for call in order.usage:
            self.spent += Spent(1, call.tokens, call.cost or 0, int(call.cost is None), int(call.is_estimate))
        for body in order.entries:
            self._note_entry(body)
        self.taken.update(order.steers)
        self.asked, self.awaited = order.ask, order.delegates
        self.delegates += order.background
        if order.end is not None:
            self.end, self.ended_at = order.end, committed.at
            if not self._is_kept:
                return committed.revision
        for view in (self._agent, self._view):
            if view is not None:
                view.absorb(committed.entries)
        return committed.revision

    def _note_step(self, step: Step) -> None:
        is_new = step.n not in self.steps
        self.steps[step.n] = step
        if is_new and step.kind is StepKind.MODEL and SIDE_STEP not in step.name:
            self._last_model = step.n
            self.model_calls += 1

    def _note_entry(self, body: EntryBody) -> None:
        match body:
            case AssistantMessage(tool_calls=calls):
                self.unanswered = tuple(map(inner_call, calls))
            case ToolResults():
                self.unanswered = ()
            case _:
                pass


def _shorten(result: ToolResult) -> ToolResult:
    """Return what a step keeps of a result that stands in the log: the beginning of its text, where the whole
    of it is saved, and the files."""
    files = tuple(part for part in result.parts if isinstance(part, File))
    if len(result.text) <= PREVIEW_CHARS and files == result.parts:
        return result
    text = result.text[:PREVIEW_CHARS]
    saved = RESULT_PATH.search(result.text)
    if saved is not None and saved[0] not in text:
        text += f"\n… {saved[0]}"
    return msgspec.structs.replace(result, text=text, parts=files)
