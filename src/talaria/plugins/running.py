"""Calls of a plug-in's functions: with a time limit, off the event loop unless they are async, and with the
plug-in's name in every log line."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from threading import Thread
from typing import Any, Final

from talaria.commands.command import CommandCall, ExtraCommand
from talaria.core.errors import TalariaError
from talaria.core.hooks import (
    AnswerFacts,
    EndFacts,
    HookRefusal,
    ModelFacts,
    ResultFacts,
    SessionFacts,
    ToolFacts,
    TurnFacts,
)
from talaria.core.ids import SessionId
from talaria.core.messages import ToolCall, ToolResult
from talaria.core.slots import FairSlots
from talaria.core.specs import Completion
from talaria.core.tasks import stop
from talaria.core.turns import Turn
from talaria.observe.logs import log_plugin
from talaria.plugins.api import Hook, PluginCommand

_log = logging.getLogger("talaria.plugins")
HOOK_SECONDS: Final = 2.0
COMMAND_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
_THREADS: Final = 2  # of one plug-in
_MOST_WAITING: Final = 1000  # news that wait for one plug-in
_REPLY_CHARS: Final = 64 << 10


class PluginSlow(Exception):
    """A function of a plug-in did not return within its limit."""


class PluginCalls:
    """Calls the functions of one plug-in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._slots = FairSlots(lambda: _THREADS, lambda: _THREADS)

    async def call(self, function: Callable[..., Any], *args: Any, seconds: float) -> Any:
        """Return what the function returns. Raises what it raises, and `PluginSlow` at its time limit.

        A function that is not async runs in a thread, which goes on to its end by itself. It does not keep
        the process from ending.
        """
        limit = asyncio.timeout(seconds)
        try:
            with log_plugin(self.name):
                async with limit:
                    if inspect.iscoroutinefunction(function):
                        return await function(*args)
                    result = await self._in_thread(function, *args)
                    return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            if not limit.expired():
                raise
            raise PluginSlow(f"it did not return within {seconds:g} seconds") from None

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        await self._slots.acquire(self.name)
        loop, context = asyncio.get_running_loop(), copy_context()
        done: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            self._slots.release(self.name)
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def run() -> None:
            result, error = None, None
            try:
                result = context.run(function, *args)
            except BaseException as raised:
                is_usual = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
                error = raised if is_usual else RuntimeError(repr(raised))
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, error)

        Thread(target=run, name=f"plug-in {self.name}", daemon=True).start()
        return await done


def make_command(command: PluginCommand, calls: PluginCalls) -> ExtraCommand:
    """Return the command as the gateway calls it: a failure is told in words, and logged."""

    async def run(call: CommandCall) -> str:
        try:
            reply = await calls.call(command.run, call, seconds=COMMAND_SECONDS)
        except TalariaError:
            raise
        except Exception as error:
            with log_plugin(calls.name):
                _log.exception("the command /%s of the plug-in %s failed", command.name, calls.name)
            what = str(error) if isinstance(error, PluginSlow) else "the log has the details"
            raise TalariaError(
                f"/{command.name} failed in the plug-in {calls.name}: {what}.",
                "Tell the operator of this gateway.",
            ) from error
        return "Done." if reply is None else str(reply)[:_REPLY_CHARS]

    return ExtraCommand(
        name=command.name,
        help=command.help,
        origin=f"plugin:{calls.name}",
        arguments=command.arguments,
        run=run,
        is_control=command.while_busy,
    )


# -- hooks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PluginHooks:
    """The hooks of one plug-in, by moment, and what calls them."""

    calls: PluginCalls
    hooks: Mapping[str, Sequence[Hook[Any]]]


class HookRunner:
    """Implements `core.hooks.Hooks`: asks before calls, and tells of the rest beside the turns, each plug-in
    in the order of events. A hook that raises or is too slow is named in the log and left out for that call.
    """

    def __init__(self, plugins: Sequence[PluginHooks], seconds: float = HOOK_SECONDS) -> None:
        self._plugins = plugins
        self._seconds = seconds
        self._moments = {moment for plugin in plugins for moment in plugin.hooks}
        self._news: dict[str, asyncio.Queue[tuple[str, object]]] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[HookRunner]:
        """Tell plug-ins of events inside the block. On the way out, they get some seconds for what waits."""
        tasks = []
        for plugin in self._plugins:
            queue = self._news[plugin.calls.name] = asyncio.Queue(_MOST_WAITING)
            name = f"hooks of {plugin.calls.name}"
            tasks.append(asyncio.create_task(self._tell(plugin, queue), name=name))
        try:
            yield self
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await asyncio.gather(*(queue.join() for queue in self._news.values()))
            await stop(*tasks)

    # -- asked --------------------------------------------------------------------------------------------

    async def before_model(self, turn: Turn, model: str) -> None:
        if "before_model" in self._moments:
            await self._ask("before_model", ModelFacts(_facts(turn), model))

    async def before_tool(self, turn: Turn, call: ToolCall) -> None:
        if "before_tool" in self._moments:
            await self._ask("before_tool", ToolFacts(_facts(turn), call.id, call.name, call.arguments))

    async def _ask(self, moment: str, facts: object) -> None:
        """Raises `HookRefusal` if a hook refuses."""
        for plugin in self._plugins:
            for hook in plugin.hooks.get(moment, ()):
                await self._call(plugin.calls, moment, hook, facts)

    async def _call(self, calls: PluginCalls, moment: str, hook: Hook[Any], facts: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        try:
            await calls.call(hook, facts, seconds=self._seconds)
        except HookRefusal as refusal:
            if not moment.startswith("before_"):
                self._warn(calls, moment, "it refuses, which counts before a call only")
                return
            text = f"The plug-in {calls.name} refused this: {refusal.user_text}"
            raise HookRefusal(text, refusal.hint) from None
        except PluginSlow as slow:
            self._warn(calls, moment, str(slow))
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling() > cancels:
                raise
            self._warn(calls, moment, f"{type(error).__name__}: {error}", error)

    def _warn(self, calls: PluginCalls, moment: str, why: str, error: BaseException | None = None) -> None:
        with log_plugin(calls.name):
            _log.warning(
                "the hook %s of the plug-in %s was left out for this call: %s",
                moment,
                calls.name,
                why,
                exc_info=error,
            )

    # -- told ---------------------------------------------------------------------------------------------

    def turn_accepted(self, turn: Turn) -> None:
        if "turn_accepted" in self._moments:
            self._put("turn_accepted", _facts(turn))

    def after_model(self, turn: Turn, model: str, answer: Completion | TalariaError) -> None:
        if "after_model" not in self._moments:
            return
        if isinstance(answer, TalariaError):
            facts = AnswerFacts(_facts(turn), model, error=answer.info())
        else:
            said = answer.message
            tools = tuple(call.name for call in said.tool_calls)
            facts = AnswerFacts(_facts(turn), model, said.text, tools, answer.usage)
        self._put("after_model", facts)

    def after_tool(self, turn: Turn, call: ToolCall, result: ToolResult) -> None:
        if "after_tool" in self._moments:
            facts = ResultFacts(_facts(turn), call.id, call.name, result.text, result.outcome)
            self._put("after_tool", facts)

    def turn_ended(self, turn: Turn) -> None:
        if "turn_ended" in self._moments:
            facts = EndFacts(_facts(turn), turn.state, turn.reply or "", turn.error, turn.usage)
            self._put("turn_ended", facts)

    def session_ended(self, session_id: SessionId) -> None:
        if "session_ended" in self._moments:
            self._put("session_ended", SessionFacts(session_id))

    def _put(self, moment: str, facts: object) -> None:
        for plugin in self._plugins:
            if moment in plugin.hooks and (queue := self._news.get(plugin.calls.name)) is not None:
                if queue.full():
                    self._warn(plugin.calls, moment, f"{_MOST_WAITING} events wait for it already")
                else:
                    queue.put_nowait((moment, facts))

    async def _tell(self, plugin: PluginHooks, queue: asyncio.Queue[tuple[str, object]]) -> None:
        while True:
            moment, facts = await queue.get()
            try:
                for hook in plugin.hooks[moment]:
                    await self._call(plugin.calls, moment, hook, facts)
            finally:
                queue.task_done()


def _facts(turn: Turn) -> TurnFacts:
    inbound = turn.inbound
    return TurnFacts(
        turn.id,
        turn.session_id,
        turn.chat_key,
        inbound.sender,
        inbound.text,
        turn.command,
        inbound.is_unattended is True,
    )
