"""`/undo` puts back what turns did to files, and `/diff` shows it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.rig import Rig, start
from talaria.core.ids import TurnId
from talaria.core.slots import FairThreads
from talaria.core.tools import Risk, ToolSpec
from talaria.store.store import Store
from talaria.tools.function import FunctionTool, parameters
from talaria.tools.tool import ToolContext
from talaria.workspace.checkpoints.checkpoints import FolderCheckpoints
from talaria.workspace.workspaces import ChatWorkspace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "kept.txt").write_text("as it was\n")
    return folder


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[FolderCheckpoints]:
    threads = FairThreads("copying", lambda: 4)
    yield FolderCheckpoints(tmp_path / "home", threads)
    threads.close()


@pytest.fixture
async def rig(store: Store, folder: Path, checkpoints: FolderCheckpoints) -> AsyncIterator[Rig]:
    async with start(store, folder, checkpoints=checkpoints) as rig:
        yield rig


def write(path: str, content: str) -> str:
    return f"[[call write_file {json.dumps({'path': path, 'content': content})}]]"


async def command(rig: Rig, text: str) -> str:
    return str((await rig.say(text)).reply)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


async def test_undo_puts_back_what_the_last_turn_did_to_files(rig: Rig, folder: Path) -> None:
    await rig.say(write("a.txt", "one\n") + "make it")
    await rig.say(
        write("a.txt", "two\n") + write("kept.txt", "overwritten") + write("b/new.txt", "x") + "again"
    )
    reply = await command(rig, "/undo")
    assert "Put back: `a.txt`, `kept.txt`.\nRemoved: `b`, `b/new.txt`." in reply
    assert contents(folder) == {"a.txt": "one\n", "kept.txt": "as it was\n"}
    assert not (folder / "b").exists()


async def test_undo_of_several_turns_goes_back_to_before_the_oldest(rig: Rig, folder: Path) -> None:
    for text in ("one", "two", "three"):
        await rig.say(write("a.txt", text) + text)
    reply = await command(rig, "/undo 3")
    assert "Removed: `a.txt`." in reply
    assert "Put back" not in reply
    assert contents(folder) == {"kept.txt": "as it was\n"}


async def test_a_file_that_was_changed_since_stays_and_is_named(rig: Rig, folder: Path) -> None:
    await rig.say(write("a.txt", "by the turn") + write("b.txt", "by the turn") + "go")
    (folder / "a.txt").write_text("by hand")
    reply = await command(rig, "/undo")
    assert "Removed: `b.txt`." in reply
    assert "Not put back: `a.txt` (it was changed since)." in reply
    assert contents(folder) == {"a.txt": "by hand", "kept.txt": "as it was\n"}


async def test_a_turn_that_wrote_nothing_has_nothing_to_put_back(rig: Rig, tmp_path: Path) -> None:
    await rig.say("[[call list_files {}]] look")
    assert "No files were changed." in await command(rig, "/undo")
    assert not (tmp_path / "home").exists(), "a turn that writes nothing costs nothing"


async def test_diff_shows_what_the_last_turn_that_changed_files_did(rig: Rig) -> None:
    assert await command(rig, "/diff") == "No turn of this session has changed files."
    await rig.say(write("a.txt", "one\ntwo\nthree\n") + "make it")
    await rig.say(write("a.txt", "one\n2\nthree\n") + write("new.txt", "x\n") + "change it")
    await rig.say("only talk")
    shown = await command(rig, "/diff")
    assert "- `a.txt`: changed, +1 −1" in shown
    assert "- `new.txt`: created, +1 −0" in shown
    assert "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n" in shown
    assert "--- /dev/null\n+++ new.txt\n@@ -0,0 +1,1 @@\n+x" in shown
    one = await command(rig, "/diff new.txt")
    assert "a.txt" not in one
    await command(rig, "/undo 2")
    assert "+three" in await command(rig, "/diff"), "the undone turn is not shown again"


async def test_files_are_put_back_after_a_restart(
    store: Store, folder: Path, checkpoints: FolderCheckpoints, tmp_path: Path
) -> None:
    async with start(store, folder, checkpoints=checkpoints) as rig:
        await rig.say(write("kept.txt", "other") + "go")
    threads = FairThreads("copying", lambda: 4)
    async with start(store, folder, checkpoints=FolderCheckpoints(tmp_path / "home", threads)) as rig:
        assert "Put back: `kept.txt`." in await command(rig, "/undo")
    threads.close()
    assert contents(folder) == {"kept.txt": "as it was\n"}


class Killed(FolderCheckpoints):
    """The checkpoints of a process that is killed while a call runs: nothing follows the call."""

    async def after_write(self, turn_id: TurnId, workspace: ChatWorkspace) -> None:
        pass


def hanging(folder: Path, entered: asyncio.Event) -> FunctionTool:
    """A tool that writes a file and never ends."""

    async def write_and_hang(arguments: dict[str, Any], context: ToolContext) -> str:
        (folder / "half.txt").write_text("by the call")
        entered.set()
        await asyncio.Event().wait()
        return ""

    return FunctionTool(ToolSpec("hang", "", parameters({}), risk=Risk.FILES), write_and_hang)


async def test_what_a_killed_call_left_is_recorded_when_its_turn_goes_on(
    store: Store, folder: Path, checkpoints: FolderCheckpoints, tmp_path: Path
) -> None:
    entered = asyncio.Event()
    tools = lambda tools: tools.with_tools([hanging(folder, entered)])  # noqa: E731
    threads = FairThreads("copying", lambda: 4)
    async with start(store, folder, tools=tools, checkpoints=Killed(tmp_path / "home", threads)) as rig:
        await rig.submit("[[call hang {}]]")
        await entered.wait()
    threads.close()
    async with start(store, folder, tools=tools, checkpoints=checkpoints) as rig:
        await rig.say("are you there?")
        (folder / "half.txt").write_text("by hand")
        reply = await command(rig, "/undo 2")
        assert "Not put back: `half.txt` (it was changed since)." in reply
        assert (folder / "half.txt").read_text() == "by hand"


async def test_what_a_stopped_call_left_is_put_back(
    store: Store, folder: Path, checkpoints: FolderCheckpoints
) -> None:
    entered = asyncio.Event()
    tools = lambda tools: tools.with_tools([hanging(folder, entered)])  # noqa: E731
    async with start(store, folder, tools=tools, checkpoints=checkpoints) as rig:
        turn = await rig.submit("[[call hang {}]]")
        await entered.wait()
        await rig.say("/stop")
        await rig.turns.wait(turn)
        assert "Removed: `half.txt`." in await command(rig, "/undo")
    assert contents(folder) == {"kept.txt": "as it was\n"}


async def test_a_disk_that_takes_no_copy_lets_the_call_run(
    rig: Rig, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").write_text("no folder can be here")
    await rig.say(write("a.txt", "x") + "go")
    assert (folder / "a.txt").read_text() == "x"
    assert "no copy of the files before a call" in caplog.text
