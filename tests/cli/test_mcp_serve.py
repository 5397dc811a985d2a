"""`talaria mcp serve`, by the clients of the official SDK: processes, pipes and sockets are real."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from cli.conftest import DEADLINE, Serve, Talaria
from support.forks import forks
from support.waiting import until
from talaria.cli.home_gateway import find_running
from talaria.config.home import Home
from talaria.console.gateway_client import GatewayClient
from talaria.operations.turns import TurnQuery, list_turns

WRITES = 'Save it. [[call write_file {"path":"a.txt","content":"hi"}]][[reply It is written.]]'
HANGS = "Think of the tomato. [[hang]]"
DROPPED = "Never mind."


def said(result: CallToolResult) -> str:
    return "\n".join(str(getattr(block, "text", block)) for block in result.content)


def data(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, said(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def state_of(client: Client, session: str, state: str) -> str:
    """Wait until the last turn of the session has the state, and return its id."""
    async with asyncio.timeout(DEADLINE):
        while True:
            turns = data(await client.call_tool("get_turn", {"turn_id": session}))
            if turns["state"] == state:
                return str(turns["turn_id"])
            await asyncio.sleep(0.1)


# -- over stdio -------------------------------------------------------------------------------------------


@pytest.fixture
def over_stdio(home: Path, environ: dict[str, str]) -> StdioServerParameters:
    arguments = ["-m", "talaria", "mcp", "serve", "--home", str(home)]
    return StdioServerParameters(command=sys.executable, args=arguments, env=environ)


async def test_a_client_over_stdio_asks_searches_reads_and_schedules(
    over_stdio: StdioServerParameters, home: Path, serve: Serve
) -> None:
    gateway = serve()
    async with Client(over_stdio) as client:
        await check_asking(client)
        await check_sessions(client)
        await check_jobs(client)
        await check_cancelling(client, home)
        gateway.kill()
        gateway.wait(DEADLINE)
        failed = await client.call_tool("list_jobs", {})
        assert failed.is_error
        assert said(failed).startswith("No gateway runs on this home.\nStart it with `")
        serve()  # on another port
        assert data(await client.call_tool("ask", {"text": "Are you back?"}))["state"] == "done"


async def check_asking(client: Client) -> None:
    names = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(names) >= {"ask", "list_sessions", "search_sessions", "read_session", "add_job", "list_jobs"}
    assert names["read_session"].annotations is not None
    assert names["read_session"].annotations.read_only_hint
    assert all(tool.output_schema for tool in names.values())  # the client compares the answers with it
    assert names["ask"].input_schema["properties"]["wait"]["default"] == 50
    told: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    asked = {"text": WRITES, "session": "work"}
    result = await client.call_tool("ask", asked, progress_callback=on_progress)
    assert (said(result), data(result)["reply"]) == ("It is written.", "It is written.")
    assert told.pop(0) == (1, "⚙ write_file a.txt")
    assert [number for number, _ in told] == sorted({number for number, _ in told})
    again = data(await client.call_tool("ask", {"text": "and then?", "session": "work"}))
    assert again["session_id"] == data(result)["session_id"]
    waiting = data(await client.call_tool("ask", {"text": HANGS, "session": "slow", "wait": 1}))
    assert waiting["state"] == "running"
    polled = data(await client.call_tool("get_turn", {"turn_id": waiting["turn_id"], "wait": 1}))
    assert (polled["turn_id"], polled["state"]) == (waiting["turn_id"], "running")
    later = "[[delay 1.2]][[reply In the end.]]"
    asked = data(await client.call_tool("ask", {"text": later, "session": "work", "wait": 1}))
    polled = data(await client.call_tool("get_turn", {"turn_id": asked["turn_id"], "wait": 30}))
    assert (polled["state"], polled["reply"]) == ("done", "In the end.")
    for wrong, why in (
        ({"text": "/approve ap_1"}, "Slash commands are for people"),
        ({"text": "x", "sesion": "work"}, "arguments.sesion is not known"),
        ({"text": "x", "session": "a b"}, "no name of a session"),
        ({"text": "x", "model": "nobody"}, "nobody"),
    ):
        refused = await client.call_tool("ask", wrong)
        assert refused.is_error
        assert why in said(refused)
    question = '[[call ask_user {"question":"Which colour?","choices":["red","blue"]}]][[reply Thanks.]]'
    parked = data(await client.call_tool("ask", {"text": question, "session": "colours"}))
    assert (parked["state"], parked["question"]["choices"]) == ("waiting", ["red", "blue"])
    await client.call_tool("ask", {"text": "red", "session": "colours"})
    await state_of(client, parked["turn_id"], "done")


async def check_sessions(client: Client) -> None:
    listed = data(await client.call_tool("list_sessions", {"limit": 2}))
    assert len(listed["items"]) == 2
    rest = data(await client.call_tool("list_sessions", {"after": listed["next"]}))
    names = [each["name"] for each in (*listed["items"], *rest["items"])]
    assert sorted(names) == ["colours", "slow", "work"]
    hits = data(await client.call_tool("search_sessions", {"q": "tomato"}))["items"]
    assert "tomato" in hits[0]["excerpt"]
    first = await client.call_tool("read_session", {"session": "work", "limit": 3})
    assert "Save it." in said(first)
    second = await client.call_tool("read_session", {"session": "work", "after": data(first)["next"]})
    assert "It is written." in said(second)
    assert "Save it." not in said(second)
    missing = await client.call_tool("read_session", {"session": "nothing"})
    assert missing.is_error


async def check_jobs(client: Client) -> None:
    words = {"text": "tell me the news", "when": "every weekday at 9"}
    shown = data(await client.call_tool("add_job", {**words, "confirmed": True}))
    assert (shown["saved"], len(shown["next"])) == (False, 3)
    assert data(await client.call_tool("list_jobs", {}))["items"] == []
    sure = {**words, "confirmed": True, "asked_at": shown["asked_at"]}
    saved = data(await client.call_tool("add_job", sure))
    assert (saved["saved"], saved["next"]) == (True, shown["next"])
    plain = await client.call_tool("add_job", {"text": "look", "cron": "0 9 * * *"})
    assert said(plain).count("09:00") == 3
    jobs = data(await client.call_tool("list_jobs", {}))["items"]
    assert [job["text"] for job in jobs] == ["tell me the news", "look"]
    unclear = await client.call_tool("add_job", {"text": "x", "when": "every day"})
    assert (unclear.is_error, "At what time?" in said(unclear)) == (True, True)


async def check_cancelling(client: Client, home: Path) -> None:
    """A call that the client cancels takes its turn along."""
    before = len(await hanging(home, "cancelled"))
    call = asyncio.create_task(client.call_tool("ask", {"text": f"{DROPPED} {HANGS}", "session": "dropped"}))
    async with asyncio.timeout(DEADLINE):
        await until(lambda: hanging(home, "running"))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        while await hanging(home, "running"):
            await asyncio.sleep(0.1)
    assert len(await hanging(home, "cancelled")) == before + 1


async def hanging(home: Path, state: str) -> list[str]:
    """Return the turns in this state whose model does not answer."""
    address = find_running(Home(home), {})
    assert address is not None
    async with GatewayClient(address) as gateway:
        turns = (await gateway.carry_out(list_turns, TurnQuery(50))).items
    return [turn.id for turn in turns if turn.state.value == state and turn.text.startswith(DROPPED)]


# -- over HTTP --------------------------------------------------------------------------------------------


@pytest.fixture
def url(home: Path, environ: dict[str, str], tmp_path: Path) -> Iterator[str]:
    with (tmp_path / "mcp.log").open("w") as log:
        given = {"TALARIA_HOME": str(home), **environ}
        process = forks().start_with_pipe(["mcp", "serve", "--http", "0"], given, log.fileno())
    assert process.stdout is not None
    with process.stdout:
        yield process.stdout.readline().split()[-1]
        process.terminate()
        assert process.wait(DEADLINE) in {0, -15}, (tmp_path / "mcp.log").read_text()


@asynccontextmanager
async def connected(url: str, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def test_over_http_each_call_has_the_rights_of_its_token(
    url: str, home: Path, serve: Serve, talaria: Talaria
) -> None:
    gateway = serve()
    owner = (home / "http.token").read_text().strip()
    chat, other, reader = (
        talaria("token", "add", name, "--role", role).stdout.strip()
        for name, role in (("phone", "chat"), ("tablet", "chat"), ("board", "read"))
    )
    await check_the_gate(url, owner)
    async with connected(url, owner) as client:
        assert data(await client.call_tool("ask", {"text": "hello", "session": "own"}))["state"] == "done"
    async with connected(url, chat) as client:
        assert data(await client.call_tool("ask", {"text": "hello", "session": "own"}))["state"] == "done"
        assert len(data(await client.call_tool("list_sessions", {}))["items"]) == 1
        mine = data(await client.call_tool("list_sessions", {}))["items"][0]["id"]
        await check_cancelling(client, home)
    async with connected(url, other, "legacy") as client:
        hidden = await client.call_tool("read_session", {"session": mine})
        assert hidden.is_error
        await check_cancelling(client, home)
    async with connected(url, reader) as client:
        assert "hello" in said(await client.call_tool("read_session", {"session": mine}))
        refused = await client.call_tool("ask", {"text": "hello"})
        assert (refused.is_error, "chat" in said(refused)) == (True, True)
        refused = await client.call_tool("add_job", {"text": "x", "every": "1h"})
        assert refused.is_error
    gateway.terminate()
    gateway.wait(DEADLINE)
    async with httpx2.AsyncClient() as http:
        answer = await http.post(url, headers={"Authorization": f"Bearer {owner}"}, content=b"{}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "gateway_gone")


async def check_the_gate(url: str, owner: str) -> None:
    """Nobody gets in without a token, by another name of this machine, or into the session of another."""
    call = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    usual = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    bearer = usual | {"Authorization": f"Bearer {owner}"}
    async with httpx2.AsyncClient() as http:
        for headers, status in (
            (usual, 401),
            (usual | {"Authorization": f"Bearer {owner}x"}, 401),
            (usual | {"Authorization": f"Basic {owner}"}, 401),
            (bearer | {"Host": "evil.example:80"}, 421),
            (bearer | {"Origin": "http://evil.example"}, 403),
        ):
            answer = await http.post(url, headers=headers, content=call)
            assert answer.status_code == status
            assert owner not in answer.text
        start = (
            b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
            b'"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}'
        )
        begun = await http.post(url, headers=bearer, content=start)
        session = {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
        assert (await http.post(url, headers=bearer | session, content=call)).status_code == 200
        assert (await http.post(url, headers=usual | session, content=call)).status_code == 401
