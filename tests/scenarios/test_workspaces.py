"""What tools act on outlives agents: rows 22, 37, 38, 40 and 41 of docs/incidents.md, through the port.

Whole turns over the shipped fake, which has a shell, background processes and a browser for each session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.rig import Rig, start
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatAddress, SessionId
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.pool.policy import PoolLimits
from talaria.pool.pool import Wanted
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.fake_workspaces import FakeSession, FakeWorkspace, FakeWorkspaces, ReleaseBehaviour
from talaria.tools.tool import Tool, ToolContext
from talaria.workspace.folder import chat_folder
from tools.conftest import tool

RELEASE_SECONDS = 5.0

LIMITS = PoolLimits(max_agents=2, idle_ttl=100, max_bytes=1 << 20)


@dataclass(frozen=True)
class WorkspaceRig:
    rig: Rig
    clock: FakeClock
    workspaces: FakeWorkspaces

    async def furnish(self, name: str = "a") -> tuple[SessionId, FakeSession]:
        """A session with a shell somewhere, a process that runs and a page that is open."""
        session_id = (await self.rig.say("hello", name)).session_id
        session = await self.reach(session_id)
        session.cwd, session.page = "/src/project", "https://example.org/basket"
        session.environment["EDITOR"] = "ed"
        session.start("make watch")
        return session_id, session

    async def reach(self, session_id: SessionId) -> FakeSession:
        """What the session's agent reaches through the handle that it has now."""
        row = await self.rig.store.session(session_id)
        assert row is not None and row.spec_id is not None
        async with self.rig.pool.lease(Wanted(session_id, row.chat_key, row.spec_id, row.revision)) as agent:
            assert isinstance(agent.workspace, FakeWorkspace)
            return agent.workspace.session

    def is_warm(self, session_id: SessionId) -> bool:
        return session_id in {agent.session_id for agent in self.rig.pool.stats().agents}


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[WorkspaceRig]:
    clock, workspaces = FakeClock(), FakeWorkspaces(partial(chat_folder, folder))
    store = MemoryStore(SystemClock())
    async with start(store, folder, clock=clock, limits=LIMITS, workspaces=workspaces) as rig:
        yield WorkspaceRig(rig, clock, workspaces)
        workspaces.behaviour = lambda: ReleaseBehaviour.AT_ONCE
        await clock.play(RELEASE_SECONDS + 2)


def is_untouched(session: FakeSession) -> bool:
    shell = (session.cwd, session.environment) == ("/src/project", {"EDITOR": "ed"})
    processes = [process.is_running for process in session.processes] == [True]
    return shell and processes and session.page == "https://example.org/basket"


async def by_cap(here: WorkspaceRig) -> None:
    for name in ("x", "y"):
        await here.rig.say("hello", name)


async def by_idle(here: WorkspaceRig) -> None:
    here.clock.advance(101)
    here.rig.pool.sweep()


async def by_shutdown(here: WorkspaceRig) -> None:
    await here.rig.pool.drain()


async def by_another_model(here: WorkspaceRig) -> None:
    await here.rig.say("/model fast", "a")
    await here.rig.say("and now?", "a")


WAYS = pytest.mark.parametrize(
    "leave", [by_cap, by_idle, by_shutdown, by_another_model], ids=lambda way: way.__name__
)


@WAYS
async def test_release_kills_no_process(tmp_path: Path, leave: Any) -> None:
    async with world(tmp_path) as here:
        _, session = await here.furnish()
        (process,) = session.processes
        await leave(here)
        assert here.rig.pool.counters.released >= 1
        assert process.is_running
        assert here.workspaces.ended == []


@WAYS
async def test_release_leaves_shell_and_browser_alone(tmp_path: Path, leave: Any) -> None:
    async with world(tmp_path) as here:
        _, session = await here.furnish()
        await leave(here)
        assert here.rig.pool.counters.released >= 1
        assert is_untouched(session)


@WAYS
async def test_a_rebuilt_agent_reaches_the_same_shell_processes_and_browser(
    tmp_path: Path, leave: Any
) -> None:
    async with world(tmp_path) as here:
        session_id, session = await here.furnish()
        builds = here.rig.pool.counters.builds + here.rig.pool.counters.rebuilds
        await leave(here)
        again = await here.reach(session_id)
        assert here.rig.pool.counters.builds + here.rig.pool.counters.rebuilds > builds
        assert again is session
        assert is_untouched(again)


async def test_eviction_holds_up_nobody_even_when_a_handle_hangs(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        session_id, session = await here.furnish()
        here.workspaces.behaviour = lambda: ReleaseBehaviour.HANGS
        await by_cap(here)  # whole turns, while the clock stands still
        stats = here.rig.pool.stats()
        assert (stats.closing, stats.counters.evicted_cap) == (1, 1)
        assert not here.is_warm(session_id)
        again = await here.rig.say("[[history]]", "a")
        assert (again.session_id, again.reply) == (session_id, "4")
        await here.clock.play(RELEASE_SECONDS + 0.1)
        assert here.rig.pool.stats().dropped >= 1
        assert is_untouched(session), "dropped is the closing, and nothing of the session"


async def test_end_stops_what_release_leaves_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        session_id, session = await here.furnish("a")
        _, other = await here.furnish("b")
        (process,) = session.processes
        here.rig.pool.release(session_id)
        assert is_untouched(session)
        await here.rig.turns.end(session_id)
        await here.clock.settle()
        assert (process.is_running, session.processes, session.page) == (False, [], None)
        assert is_untouched(other)
        assert here.workspaces.ended == [session_id]
        assert (await here.rig.say("hello", "a")).session_id != session_id


async def test_a_resumed_session_has_its_shell_again_and_no_process(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        session_id, _ = await here.furnish()
        await here.rig.turns.end(session_id)
        assert (await here.rig.say(f"/resume {session_id}", "a")).session_id == session_id
        session = await here.reach(session_id)
        assert (session.cwd, session.environment) == ("/src/project", {"EDITOR": "ed"})
        assert (session.processes, session.page) == ([], None)


async def test_a_new_session_of_the_chat_has_its_files_and_another_shell(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        old, session = await here.furnish()
        await here.rig.say('[[call write_file {"path":"notes.txt","content":"keep me"}]]', "a")
        await here.rig.say("/new", "a")
        new = (await here.rig.say('[[call read_file {"path":"notes.txt"}]]', "a")).session_id
        assert new != old
        assert b"keep me" in here.rig.model.bodies[-1]
        assert (await here.reach(new)).cwd == ""
        assert (session.cwd, session.processes) == ("/src/project", []), "the session before has ended"


class Look(Tool):
    """A tool that tells where it works."""

    def __init__(self) -> None:
        self.spec = tool("look").spec
        self.folders: list[Path] = []

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self.folders.append(context.folder)
        return "seen"


async def test_tools_work_in_the_folder_of_their_handle_and_a_plain_turn_touches_no_disk(
    tmp_path: Path,
) -> None:
    look, place = Look(), tmp_path / "home"
    workspaces = FakeWorkspaces(partial(chat_folder, place))
    store = MemoryStore(SystemClock())
    async with start(
        store, tmp_path, workspaces=workspaces, tools=lambda tools: tools.with_tools([look])
    ) as rig:
        for name in ("one", "two"):
            key = ChatAddress("main", "test", "dm", name).key()
            for text in ("hello", "[[call look {}]]"):
                receipt = await rig.turns.submit(Inbound(key, Sender("x"), (Text(text),)))
                assert (await rig.turns.wait(receipt)).state is TurnState.DONE
            assert look.folders.pop() == chat_folder(place, key)
    assert not place.exists()
