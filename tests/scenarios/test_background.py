"""Background processes of whole gateways: notes, turns of their own, restarts and the ends of sessions."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.gateway import without_http
from support.waiting import until
from talaria.core.clock import SystemClock
from talaria.core.entries import Note
from talaria.core.ids import ChatAddress, SessionId, new_owner_id
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.gateway import Gateway
from talaria.pool.policy import PoolLimits
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.model_server import ModelServer
from talaria.workspace.folder import chat_folder
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.choice import choose
from talaria.workspace.sandbox.command import PATH
from talaria.workspace.sandbox.group import start_time
from talaria.workspace.watched_process import WatchedProcess

if sys.platform != "linux":
    pytest.skip("background processes are for Linux", allow_module_level=True)

CHAT = ChatAddress("main", "test", "dm", "one").key()
ADDRESS = "somewhere"


def call(command: str, **more: object) -> str:
    return f"[[call terminal {json.dumps({'command': command, **more})}]]"


@dataclass
class Life:
    """A gateway over a home."""

    gateway: Gateway
    model: ModelServer
    home: Path
    address: str | None = None

    async def say(self, text: str) -> Turn:
        turn = await self.gateway.turns.wait(await self.gateway.turns.submit(said(text, self.address)))
        assert turn.state is TurnState.DONE, turn.error
        return turn

    async def start(self, command: str, **more: object) -> tuple[SessionId, WatchedProcess]:
        turn = await self.say(call(command, background=True, **more))
        assert "Started in the background" in (turn.reply or ""), turn.reply
        then = "you get a turn of your own" if more.get("wake") else "you are told with the next message"
        assert f"When it ends, {then}; if you are at work then, you are told at once." in (turn.reply or "")
        return turn.session_id, self.gateway.notes.processes.of_session(turn.session_id)[-1]

    @property
    def folder(self) -> Path:
        return chat_folder(self.home, CHAT)

    async def rested(self) -> None:
        """Wait until all ends are told and no turn runs."""
        await until(lambda: all(each.is_told for each in self.gateway.notes.processes))
        await until(lambda: not len(self.gateway.turns.live))

    async def notes(self, session_id: SessionId) -> list[str]:
        bodies = [entry.body for entry in await self.gateway.store.log(session_id, 0)]
        return [body.text for body in bodies if isinstance(body, Note)]


def said(text: str, address: str | None = None) -> Inbound:
    return Inbound(CHAT, Sender("tester"), (Text(text),), address=address)


@dataclass
class House:
    home: Path
    model: ModelServer

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Life]:
        environ = {"TALARIA_CACHE": str(self.home / "cache")}
        async with without_http(self.home, environ=environ) as gateway:
            await until(lambda: gateway.notes.is_open)
            yield Life(gateway, self.model, self.home)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with ModelServer() as model:
        (tmp_path / "config.toml").write_text(
            '[model]\nprovider = "mine"\nname = "m"\n'
            f'[providers.mine]\nbase_url = "{model.base_url}"\n'
            '[network]\ncommands = "off"\n[tools]\nenabled = ["terminal"]\n'
        )
        house = House(tmp_path, model)
        yield house
        async with house.open() as life:
            for session_id in {process.record.session_id for process in life.gateway.notes.processes}:
                await life.gateway.turns.end(session_id)
        assert not list(tmp_path.glob("sessions/*/processes/*"))


async def test_the_end_of_a_process_joins_the_turn_that_runs(house: House) -> None:
    async with house.open() as life:
        first = call("until [ -e go ]; do sleep 0.01; done; exit 5", background=True)
        submitted = await life.gateway.turns.submit(
            said(f"{first}{call('touch waiting; until [ -e on ]; do sleep 0.01; done')}[[reply fine]]")
        )
        await until((life.folder / "waiting").exists)
        (process,) = life.gateway.notes.processes
        (life.folder / "go").touch()
        await process.gone.wait()
        (life.folder / "on").touch()
        turn = await life.gateway.turns.wait(submitted)
        assert turn.reply == "fine"
        assert b"exit code 5" in life.model.bodies[-1], "the model read it before its next call"
        assert len(await life.notes(turn.session_id)) == 1
        await life.say("and now?")
        assert life.model.bodies[-1].count(b"exit code 5") == 1, "once"


async def test_without_a_turn_it_waits_for_the_next_one_also_over_a_restart(house: House) -> None:
    async with house.open() as life:
        session_id, process = await life.start("cat; exit 6")
        process.signal(signal.SIGUSR1)  # which ends its input, after the turn
        await process.gone.wait()
        assert await life.notes(session_id) == []
    async with house.open() as life:
        assert (await life.say("hello [[reply hi]]")).reply == "hi"
        (note,) = await life.notes(session_id)
        assert "ended with exit code 6" in note
        assert b"exit code 6" in life.model.bodies[-1]
    async with house.open() as life:
        await life.say("again")
        assert len(await life.notes(session_id)) == 1


async def test_a_note_whose_mark_is_missing_is_not_told_again(house: House) -> None:
    async with house.open() as life:
        session_id, process = await life.start("cat; exit 6")
        process.signal(signal.SIGUSR1)  # which ends its input, after the turn
        await process.gone.wait()
        await life.say("hello")
        assert process.is_told
    (process.folder / "told").unlink()  # a kill came between the commit and the mark
    async with house.open() as life:
        await life.say("again")
        assert len(await life.notes(session_id)) == 1


async def test_one_that_wakes_gets_a_turn_whose_reply_goes_to_the_chats_address(house: House) -> None:
    async with house.open() as life:
        life.address = ADDRESS
        session_id, process = await life.start("until [ -e go ]; do sleep 0.01; done; exit 7", wake=True)
        (life.folder / "go").touch()  # not before: an end during the turn would be told in that turn
        await until(lambda: process.is_told)
        (woken, *_) = await life.gateway.store.recent_of_session(session_id, 1)
        await until(lambda: life.gateway.turns.live.get(woken.id) is None)
        (woken, *_) = await life.gateway.store.recent_of_session(session_id, 1)
        assert (woken.state, woken.inbound.key) == (TurnState.DONE, f"process:{process.record.id}")
        assert "exit code 7" in (woken.reply or ""), "the model answers what woke it"
        rows = await life.gateway.store.outbox.due("test", 10)
        assert {row.address for row in rows} == {ADDRESS}
        assert await life.notes(session_id) == []


async def test_one_that_wakes_does_so_once_over_a_restart(house: House) -> None:
    async with house.open() as life:
        session_id, process = await life.start("until [ -e go ]; do sleep 0.01; done", wake=True)
    (chat_folder(house.home, CHAT) / "go").touch()
    await until((process.folder / "exit").exists)
    for _ in range(2):
        async with house.open() as life:
            await life.rested()
            recent = await life.gateway.store.recent_of_session(session_id, 10)
            assert sum("You asked to be woken" in turn.inbound.text for turn in recent) == 1
        (process.folder / "told").unlink()  # as if a kill had come before the mark


@pytest.mark.parametrize("text", ["/new", "end", "delete", "expire"])
async def test_the_end_of_a_session_leaves_no_process_and_no_folder(house: House, text: str) -> None:
    if text == "expire":
        with (house.home / "config.toml").open("a") as file:
            file.write('[sessions]\nreset = "idle"\nidle_after = "1ms"\n')
    async with house.open() as life:
        session_id, process = await life.start("trap '' HUP; sleep 1000")
        gateway = life.gateway
        match text:
            case "/new":
                reply = (await life.say("/new")).reply or ""
                assert reply.endswith("Its background process was ended.")
                assert "was ended" not in ((await life.say("/new")).reply or ""), "it had none"
            case "end":
                await gateway.turns.end(session_id)
            case "delete":
                await gateway.deletions.delete(session_id)
            case _:
                assert (await life.say("hello")).session_id != session_id
        await until(lambda: not process.folder.exists())
        assert not start_time(process.record.pid) and not start_time(process.record.launch)
        await until(lambda: not list(house.home.glob("sessions/*/processes")))
        await until(lambda: not list(house.home.glob("sessions/*/tmp")))


async def test_what_a_session_left_that_ended_while_no_gateway_ran_is_ended_at_the_start(
    house: House,
) -> None:
    async with house.open() as life:
        session_id, process = await life.start("sleep 1000")
    assert start_time(process.record.pid), "the end of a gateway ends no process"
    async with await SqliteStore.open(house.home / "talaria.db", SystemClock()) as store:
        await store.end_session(session_id, await store.hold(session_id, new_owner_id(), 30))
    async with house.open():
        await until(lambda: not process.folder.exists())
        assert not start_time(process.record.pid)


# -- rows 37, 38, 40 and 41 of docs/incidents.md, with real shells and processes


async def by_cap(life: Life) -> None:
    inbound = Inbound(ChatAddress("main", "test", "dm", "other").key(), Sender("x"), (Text("hello"),))
    await life.gateway.turns.wait(await life.gateway.turns.submit(inbound))


async def by_idle(life: Life) -> None:
    life.gateway.pool.change_limits(PoolLimits(max_agents=1, idle_ttl=0, max_bytes=1 << 20))
    life.gateway.pool.sweep()


async def by_drain(life: Life) -> None:
    await life.gateway.pool.drain()


async def by_another_model(life: Life) -> None:
    await life.say("/model mine/another")


async def furnish(life: Life) -> tuple[SessionId, WatchedProcess]:
    """A session whose shell is elsewhere and has a variable, and that has a process."""
    await life.say(call("mkdir -p w && cd w && export MARK=here"))
    return await life.start("sleep 1000")


@pytest.mark.parametrize("leave", [by_cap, by_idle, by_drain, by_another_model], ids=lambda way: way.__name__)
async def test_a_released_agent_leaves_shell_and_processes_and_the_next_one_reaches_them(
    house: House, leave: Callable[[Life], Awaitable[None]]
) -> None:
    with (house.home / "config.toml").open("a") as file:
        file.write("[pool]\nmax_agents = 1\n")
    async with house.open() as life:
        session_id, process = await furnish(life)
        pool = life.gateway.pool
        before = pool.counters.builds + pool.counters.rebuilds
        await leave(life)
        assert start_time(process.record.pid) == process.record.start, "the process goes on"
        look = call('pwd; echo "$MARK"') + '[[call process {"action": "list"}]]'
        turn = await life.say(f"{look}[[reply seen]]")
        assert pool.counters.builds + pool.counters.rebuilds > before, "it was built again"
        assert turn.session_id == session_id
        *_, shell, listed = [
            message["content"]
            for message in json.loads(life.model.bodies[-1])["messages"]
            if message["role"] == "tool"
        ]
        assert shell.splitlines()[:2] == [str(life.folder / "w"), "here"]
        assert f"{process.record.id} runs" in listed


async def test_an_end_stops_the_processes_and_resume_brings_the_shell_back(house: House) -> None:
    async with house.open() as life:
        session_id, process = await furnish(life)
        await life.gateway.turns.end(session_id)
        await until(lambda: not process.folder.exists())
        assert not start_time(process.record.pid)
        await life.say(f"/resume {session_id}")
        turn = await life.say(f'{call("pwd; echo $MARK")}[[call process {{"action": "list"}}]][[reply seen]]')
        assert turn.session_id == session_id
        body = life.model.bodies[-1]
        assert b"There are no background processes" in body
        assert f"{life.folder / 'w'}\\nhere".encode() in body


async def test_a_server_in_the_background_is_reached_by_the_sessions_commands_also_after_a_restart(
    house: House,
) -> None:
    if not isinstance((await choose("auto", house.home)).sandbox, BubblewrapSandbox):
        pytest.skip("only bubblewrap gives a session a network of its own")
    text = (house.home / "config.toml").read_text()
    (house.home / "config.toml").write_text(text.replace('commands = "off"', 'commands = "ask"'))
    if shutil.which("python3", path=PATH) is None or shutil.which("curl", path=PATH) is None:
        pytest.skip("there is no python3 or no curl for commands")
    serve = "python3 -m http.server --bind 127.0.0.1 8123"
    look = "for n in $(seq 100); do curl -sf http://127.0.0.1:8123/here && break; sleep 0.1; done"
    async with house.open() as life:
        await life.say(call("echo reached >here"))
        await life.start(serve)
        assert "reached" in str((await life.say(call(look))).reply)
    async with house.open() as life:
        assert "reached" in str((await life.say(call(look))).reply)
