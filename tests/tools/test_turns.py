"""What a turn gets of the process's tools, seen at the turn's edge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.rig import Rig, start
from talaria.core.clock import SystemClock
from talaria.core.events import Event, ToolFinished, ToolOutput, ToolStarted
from talaria.core.tools import ToolSpec
from talaria.parts import builtin_tools
from talaria.store.in_memory import MemoryStore
from talaria.testing.changing_tools import ChangingSource
from talaria.tools.function import Arguments, FunctionTool, Handler, parameters
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import ToolContext

SETTINGS = ToolSettings()


@asynccontextmanager
async def rig_with(handler: Handler, folder: Path) -> AsyncIterator[Rig]:
    """A gateway with one more tool, `probe`."""
    probe = FunctionTool(ToolSpec("probe", "A tool of this test.", parameters({})), handler)
    store = MemoryStore(SystemClock())
    async with start(store, folder, tools=lambda tools: tools.with_tools([probe])) as rig:
        yield rig
    await store.close()


# -- output -------------------------------------------------------------------------------------------------


async def test_output_of_a_call_is_heard_between_its_start_and_its_end(tmp_path: Path) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def talk(arguments: Arguments, context: ToolContext) -> str:
        for piece in ("one ", "two "):
            context.emit(piece)
            assert await heard.get() == piece
        return "done"

    events: list[Event] = []
    async with rig_with(talk, tmp_path) as rig:
        receipt = await rig.submit("[[call probe {}]][[reply fine]]")
        async for _, event in receipt.follow():
            if isinstance(event, (ToolStarted, ToolOutput, ToolFinished)):
                events.append(event)
            if isinstance(event, ToolOutput):
                heard.put_nowait(event.text)
    started, *pieces, finished = events
    assert isinstance(started, ToolStarted)
    assert pieces == [ToolOutput(started.call_id, "one "), ToolOutput(started.call_id, "two ")]
    assert isinstance(finished, ToolFinished)


async def test_output_that_was_not_read_is_joined_for_each_call(tmp_path: Path) -> None:
    async def talk(arguments: Arguments, context: ToolContext) -> str:
        for piece in ("one ", "two ", "three "):
            context.emit(piece)
            await asyncio.sleep(0)
        return "done"

    async with rig_with(talk, tmp_path) as rig:
        receipt = await rig.submit("[[call probe {}]]+[[call probe {}]][[reply fine]]")
        await rig.turns.wait(receipt)
        events = [event async for _, event in receipt.follow()]
    assert [event.text for event in events if isinstance(event, ToolOutput)] == ["one two three "] * 2


# -- sources that change ------------------------------------------------------------------------------------


def says(name: str, text: str = "", description: str = "") -> FunctionTool:
    async def say(arguments: Arguments, context: ToolContext) -> str:
        return text or f"{name} was called"

    return FunctionTool(ToolSpec(name, description, parameters({})), say)


def offered(body: bytes) -> set[str]:
    return {tool["function"]["name"] for tool in json.loads(body)["tools"]} - {*builtin_tools(SETTINGS).names}


async def test_a_change_of_a_source_reaches_new_sessions_and_reload_and_no_other(tmp_path: Path) -> None:
    source = ChangingSource()
    source.offer(says("first"))
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path, sources=[source]) as rig:

        async def offers(name: str) -> set[str]:
            await rig.say("hello", name)
            return offered(rig.model.bodies[-1])

        assert await offers("old") == {"first"}
        source.offer(says("first"), says("second"))
        assert await offers("old") == {"first"}
        assert await offers("new") == {"first", "second"}
        await rig.pool.drain()
        assert await offers("old") == {"first"}
        await rig.say("/reload", "old")
        assert await offers("old") == {"first", "second"}
        source.offer(says("first", description="another"))
        await rig.say("/new", "new")
        assert await offers("new") == {"first"}
        assert "another" in str(json.loads(rig.model.bodies[-1])["tools"])
    await store.close()


async def test_a_tool_that_is_gone_is_an_error_result_and_one_that_came_is_not_known(tmp_path: Path) -> None:
    source = ChangingSource()
    source.offer(says("first"))
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path, sources=[source]) as rig:
        assert (await rig.say("[[call first {}]]")).reply == "Tool results: first was called"
        source.offer(says("second"))
        gone = await rig.say("[[call first {}]] [[call second {}]]")
        assert str(gone.reply).startswith("Tool results: Error: There is no tool 'second'.")
        source.offer(says("first", "it is back"))
        assert (await rig.say("[[call first {}]]")).reply == "Tool results: it is back"
    await store.close()


async def test_a_change_while_a_turn_runs_leaves_its_tools_alone(tmp_path: Path) -> None:
    source = ChangingSource()

    async def change(arguments: Arguments, context: ToolContext) -> str:
        source.offer()
        return "changed"

    source.offer(FunctionTool(ToolSpec("probe", "", parameters({})), change), says("other"))
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path, sources=[source]) as rig:
        turn = await rig.say("[[call probe {}]] [[call other {}]]")
        assert turn.reply == "Tool results: other was called"
    await store.close()
