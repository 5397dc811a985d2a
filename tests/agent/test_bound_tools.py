"""What a turn gets of the process's tools, seen at the turn's edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rig import Rig, start
from talaria.core.clock import SystemClock
from talaria.core.events import Event, ToolFinished, ToolOutput, ToolStarted
from talaria.core.tools import ToolContext, ToolSpec
from talaria.store.memory import MemoryStore
from talaria.tools.function import Arguments, FunctionTool, Handler, parameters


@asynccontextmanager
async def rig_with(handler: Handler, folder: Path) -> AsyncIterator[Rig]:
    """A gateway with one more tool, `probe`."""
    probe = FunctionTool(ToolSpec("probe", "A tool of this test.", parameters({})), handler)
    store = MemoryStore(SystemClock())
    async with start(store, folder, tools=lambda tools: tools.with_tools([probe])) as rig:
        yield rig
    await store.close()


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
        async for _, event in rig.turns.follow(receipt):
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
        events = [event async for _, event in rig.turns.follow(receipt)]
    assert [event.text for event in events if isinstance(event, ToolOutput)] == ["one two three "] * 2
