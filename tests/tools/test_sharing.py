"""Chats share the process: calls, threads and child processes are limited, and chats take turns at them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import talaria.tools
import talaria.workspace
from support.rig import Rig, start
from talaria.core.clock import SystemClock
from talaria.core.events import ToolFinished
from talaria.core.limits import LimitSettings
from talaria.core.tools import ToolSpec
from talaria.store.in_memory import MemoryStore
from talaria.tools.function import Arguments, FunctionTool, Handler, in_thread, parameters
from talaria.tools.tool import ToolContext


@asynccontextmanager
async def rig_with(handler: Handler, folder: Path) -> AsyncIterator[Rig]:
    """A gateway with one more tool, `probe`, whose calls may run side by side."""
    spec = ToolSpec("probe", "A tool of this test.", parameters({}), idempotent=True, read_only=True)
    store = MemoryStore(SystemClock())
    async with start(
        store, folder, tools=lambda tools: tools.with_tools([FunctionTool(spec, handler)])
    ) as rig:
        yield rig
    await store.close()


def calls(count: int) -> str:
    return "+".join(["[[call probe {}]]"] * count)


async def test_the_calls_of_one_answer_run_a_few_at_a_time(tmp_path: Path) -> None:
    running, most = 0, 0

    async def probe(arguments: Arguments, context: ToolContext) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        return "done"

    async with rig_with(probe, tmp_path) as rig:
        turn = await rig.say(calls(40) + "[[reply all done]]")
    assert turn.reply == "all done"
    assert most == LimitSettings().turn_tools


async def test_threads_that_one_chat_blocks_leave_others_to_the_next_chat(tmp_path: Path) -> None:
    goes_on = threading.Event()

    def block(arguments: Arguments, context: ToolContext) -> str:
        goes_on.wait()
        return "done"

    (tmp_path / "note.txt").write_text("hello")
    async with rig_with(in_thread(block), tmp_path) as rig:
        assert LimitSettings().tool_threads < 100
        hostile = await rig.submit(calls(100) + "[[reply all done]]", "hostile")
        try:
            turn = await rig.say('[[call read_file {"path": "note.txt"}]]', "other")
            assert turn.reply == "Tool results: hello"
        finally:
            goes_on.set()
        assert (await rig.turns.wait(hostile)).reply == "all done"


async def test_hostile_globs_do_not_hold_up_another_chats_read(tmp_path: Path) -> None:
    for n in range(300):
        (tmp_path / f"{n}{'a' * 200}").touch()
    (tmp_path / "note.txt").write_text("hello")
    store = MemoryStore(SystemClock())
    listed = 0
    async with start(store, tmp_path) as rig:
        glob = json.dumps({"pattern": "**/" + "*a" * 30 + "/**/" + "*a" * 60 + "b"})
        hostile = await rig.submit("+".join([f"[[call list_files {glob}]]"] * 40) + "[[reply listed]]", "one")

        async def follow() -> None:
            nonlocal listed
            async for _, event in hostile.follow():
                listed += isinstance(event, ToolFinished)

        following = asyncio.create_task(follow())
        turn = await rig.say('[[call read_file {"path": "note.txt"}]]', "two")
        assert turn.reply == "Tool results: hello"
        assert listed < 20
        assert (await rig.turns.wait(hostile)).reply == "listed"
        await following
        assert listed == 40
    await store.close()


@pytest.mark.parametrize("package", [talaria.tools, talaria.workspace])
def test_no_tool_uses_the_threads_of_everything_else(package: object) -> None:
    folder = Path(str(getattr(package, "__file__", ""))).parent
    sources = {path.name: path.read_text() for path in sorted(folder.rglob("*.py"))}
    assert sources
    for name, source in sources.items():
        assert "to_thread" not in source, name
        assert "run_in_executor(None" not in source, name
