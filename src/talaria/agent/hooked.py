"""The model and tool calls of a turn, with hooks around them. Used only if there are hooks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from msgspec.structs import replace

from talaria.agent.calling import Caller
from talaria.agent.context import TurnContext, TurnTools
from talaria.core.delegates import Delegate
from talaria.core.errors import ModelError
from talaria.core.hooks import HookRefusal, Hooks
from talaria.core.messages import ToolCall, ToolOutcome, ToolResult
from talaria.core.questions import Question, QuestionDraft
from talaria.core.specs import Completion
from talaria.core.tools import ToolSpec
from talaria.core.turns import Turn


class HookedCaller(Caller):
    """A `Caller` whose calls are told to hooks: once for each answer, however many tries it takes."""

    hooks: Hooks
    turn: Turn

    async def ask(self) -> Completion:
        """Return the answer. Raises `HookRefusal`, and what `Caller.ask` raises."""
        await self.hooks.before_model(self.turn, str(self.choice))
        try:
            completion = await super().ask()
        except ModelError as error:
            self.hooks.after_model(self.turn, str(self.choice), error)
            raise
        self.hooks.after_model(self.turn, str(self.choice), completion)
        return completion


@dataclass(frozen=True, slots=True)
class HookedTools:
    """The tools of a turn whose calls are told to hooks. Implements `TurnTools`."""

    tools: TurnTools
    hooks: Hooks
    turn: Turn

    def spec(self, name: str) -> ToolSpec | None:
        return self.tools.spec(name)

    async def question(self, call: ToolCall) -> QuestionDraft | None:
        return await self.tools.question(call)

    def slot(self) -> AbstractAsyncContextManager[None]:
        return self.tools.slot()

    async def hand_out(self, call: ToolCall, n: int, earlier: int) -> Sequence[Delegate] | ToolResult:
        if (refused := await self._refusal(call)) is not None:
            return refused
        return await self.tools.hand_out(call, n, earlier)

    async def run(
        self, call: ToolCall, question: Question | None = None, delegates: Sequence[Delegate] = ()
    ) -> ToolResult:
        # Hooks were asked about a call that has delegates before these began.
        result = None if delegates else await self._refusal(call)
        if result is None:
            result = await self.tools.run(call, question, delegates)
        self.hooks.after_tool(self.turn, call, result)
        return result

    async def _refusal(self, call: ToolCall) -> ToolResult | None:
        try:
            await self.hooks.before_tool(self.turn, call)
        except HookRefusal as refusal:
            text = f"Error: {refusal.info().sentence()} The call was not run."
            return ToolResult(call.id, call.name, text, ToolOutcome.ERROR)
        return None

    async def record_write(self) -> None:
        await self.tools.record_write()


def hook_tools(context: TurnContext, hooks: Hooks, turn: Turn) -> TurnContext:
    """Return the context with hooks around its tools, if it has any."""
    if context.tools is None:
        return context
    tools: TurnTools = HookedTools(context.tools, hooks, turn)
    return replace(context, tools=tools)
