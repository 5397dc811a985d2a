"""Hooks: told of a turn in order, may refuse a call, change nothing, and cost no more than their limit."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.rig import Rig, start
from talaria.core.clock import Clock, SystemClock
from talaria.core.hooks import HookRefusal, ModelFacts, ToolFacts
from talaria.core.ids import delegates_within
from talaria.core.turns import TurnState
from talaria.plugins.api import Plugin
from talaria.plugins.running import HookRunner, PluginCalls, PluginHooks
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock

WORK = '[[call todo {"items": [{"text": "one"}]}]][[reply done]]'


@asynccontextmanager
async def hooked(
    folder: Path, *plugins: Plugin, seconds: float = 30.0, clock: Clock | None = None
) -> AsyncIterator[Rig]:
    store = MemoryStore(clock or SystemClock())
    given = [PluginHooks(PluginCalls(each.name), each.brought.hooks) for each in plugins]
    async with (
        HookRunner(given, seconds).open() as hooks,
        start(store, folder, hooks=hooks, clock=clock) as rig,
    ):
        yield rig
    await store.close()


def plugin(name: str = "watcher") -> Plugin:
    return Plugin(name, Path("/nowhere"), {}, {})


async def test_every_moment_of_a_turn_is_told_in_order(tmp_path: Path) -> None:
    seen: list[tuple[str, Any]] = []
    told, watcher = asyncio.Event(), plugin()
    watcher.on_turn_accepted(lambda facts: seen.append(("accepted", facts.text)))
    watcher.on_before_model(lambda facts: seen.append(("before model", facts.model)))
    watcher.on_after_model(lambda facts: seen.append(("after model", facts.tools)))

    async def before_tool(facts: ToolFacts) -> None:
        seen.append(("before tool", facts.tool))

    watcher.on_before_tool(before_tool)
    watcher.on_after_tool(lambda facts: seen.append(("after tool", facts.outcome)))
    watcher.on_turn_ended(lambda facts: seen.append(("ended", (facts.state, facts.reply))))

    async def session_ended(facts: Any) -> None:
        seen.append(("session ended", facts.session_id))
        told.set()

    watcher.on_session_ended(session_ended)
    async with hooked(tmp_path, watcher) as rig:
        turn = await rig.say(WORK)
        await rig.sessions.end(turn.session_id)
        await told.wait()
    names = [name for name, _ in seen]
    news = [name for name in names if not name.startswith("before")]
    assert news == ["accepted", "after model", "after tool", "after model", "ended", "session ended"]
    asked = [name for name in names if name.startswith("before")]
    assert asked == ["before model", "before tool", "before model"]
    assert ("before model", "scripted/scripted") in seen
    assert ("after model", ("todo",)) in seen
    assert ("ended", (TurnState.DONE, "done")) in seen
    assert ("session ended", turn.session_id) in seen


async def test_a_refused_tool_call_is_not_run_and_a_refused_model_call_fails_the_turn(tmp_path: Path) -> None:
    guard = plugin("guard")

    def no_todo(facts: ToolFacts) -> None:
        if facts.tool == "todo":
            raise HookRefusal("No lists here.", "Use a file.")

    def no_secrets(facts: ModelFacts) -> None:
        if "secret" in facts.turn.text:
            raise HookRefusal("This is not for a model.")

    guard.on_before_tool(no_todo)
    guard.on_before_model(no_secrets)
    async with hooked(tmp_path, guard) as rig:
        refused = await rig.say('[[call todo {"items": [{"text": "one"}]}]]')
        assert refused.reply == (
            "Tool results: Error: The plug-in guard refused this: No lists here. Use a file. "
            "The call was not run."
        )
        failed = await rig.say("a secret")
        assert failed.state is TurnState.FAILED and failed.error is not None
        assert failed.error.message == "The plug-in guard refused this: This is not for a model."
        assert len(rig.model.bodies) == 2


async def test_a_hook_counts_that_only_returns_what_is_to_be_awaited(tmp_path: Path) -> None:
    """As a function does that an ordinary decorator has wrapped, or an object with an async `__call__`."""
    guard = plugin("guard")

    async def refuse(facts: ToolFacts) -> None:
        raise HookRefusal("No lists here.")

    def wrapped(*args: Any) -> Any:
        return refuse(*args)

    guard.on_before_tool(wrapped)
    async with hooked(tmp_path, guard) as rig:
        refused = await rig.say('[[call todo {"items": [{"text": "one"}]}]]')
        assert refused.reply is not None and "No lists here." in refused.reply


async def test_a_hook_that_raises_or_is_slow_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, slow, stuck = plugin("broken"), plugin("slow"), plugin("stuck")
    never = threading.Event()

    def fail(facts: Any) -> None:
        raise ValueError("no luck")

    async def sleep(facts: Any) -> None:
        await asyncio.Event().wait()

    async def cancel(facts: Any) -> None:
        raise asyncio.CancelledError

    def wait(facts: Any) -> None:
        never.wait()

    for each in (broken.on_before_model, broken.on_turn_ended):
        each(fail)
    broken.on_before_model(cancel)
    slow.on_before_model(sleep)
    stuck.on_before_model(wait)
    with caplog.at_level(logging.WARNING, "talaria.plugins"):
        async with hooked(tmp_path, broken, slow, stuck, seconds=0.05) as rig:
            for _ in range(3):
                assert (await rig.say("hello")).reply == "You said: hello"
    never.set()
    assert "the hook before_model of the plug-in broken was left out for this call: ValueError" in caplog.text
    assert "the hook turn_ended of the plug-in broken was left out for this call" in caplog.text
    assert "the plug-in slow was left out for this call: it did not return within 0.05 s" in caplog.text
    assert "the plug-in stuck was left out for this call: it did not return within 0.05 s" in caplog.text


async def test_a_stopped_turn_stops_in_its_hook(tmp_path: Path) -> None:
    watcher, entered = plugin(), asyncio.Event()

    async def wait(facts: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    watcher.on_before_model(wait)
    async with hooked(tmp_path, watcher) as rig:
        live = await rig.submit("hello")
        await entered.wait()
        await rig.say("/stop")
        assert (await rig.turns.wait(live)).state is TurnState.CANCELLED


async def test_no_hook_changes_a_byte_of_a_request(tmp_path: Path) -> None:
    """A hook returns texts, and tries to change what it is given."""
    meddler = plugin("meddler")

    def meddle(facts: Any) -> str:
        for name in ("text", "model", "arguments", "turn"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(facts, name, "changed")
        return "MEDDLED"

    for moment in ("turn_accepted", "before_model", "after_model", "before_tool", "after_tool", "turn_ended"):
        getattr(meddler, f"on_{moment}")(meddle)
    bodies = []
    said = ["hello", WORK, "and again"]
    async with hooked(tmp_path / "a", meddler, clock=FakeClock()) as rig:
        for text in said:
            assert (await rig.say(text)).state is TurnState.DONE
        bodies.append(list(rig.model.bodies))
    store = MemoryStore(clock := FakeClock())
    async with start(store, tmp_path / "b", clock=clock) as rig:
        for text in said:
            await rig.say(text)
        bodies.append(list(rig.model.bodies))
    await store.close()
    with_hooks, without = bodies
    assert with_hooks == without and len(without) == 4
    assert not any(b"MEDDLED" in body for body in with_hooks)


async def test_a_hook_can_refuse_a_task_before_it_is_handed_out(tmp_path: Path) -> None:
    watcher = plugin()

    async def refuse(facts: ToolFacts) -> None:
        if facts.tool == "delegate":
            raise HookRefusal("No helpers today.")

    watcher.on_before_tool(refuse)
    async with hooked(tmp_path, watcher) as rig:
        turn = await rig.say('[[call delegate {"task": "count"}]][[reply went on]]')
        assert (turn.state, turn.reply) == (TurnState.DONE, "went on")
        assert await rig.store.turns_within(delegates_within(turn.chat_key, turn.id), 9) == ()
