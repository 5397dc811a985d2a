"""The model server: strict, recording, light, and gone when it is told to go."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from talaria.core.messages import (
    AssistantMessage,
    Message,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.models import ModelCall
from talaria.core.tools import ToolSpec
from talaria.models.openai_chat import OpenAIChat
from talaria.testing.chat_requests import ChatRequest, read_fast, read_leniently, read_strictly
from talaria.testing.model_server import ModelServer

TOOL = {"type": "function", "function": {"name": "a", "parameters": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http: aiohttp.ClientSession, server: ModelServer, body: Any) -> tuple[int, Any]:
    async with http.post(server.base_url + "/chat/completions", json=body) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("messages", "tools", "complaint"),
    [
        ([USER, CALLS, RESULT], [TOOL, TOOL], "Tool names must be unique"),
        ([USER], [], "'tools' must be"),
        (
            [USER],
            [{"type": "function", "function": {"name": "no spaces"}}],
            "Invalid 'tools[0].function.name'",
        ),
        ([USER, RESULT], None, "must answer a call"),
        ([USER, CALLS, RESULT, RESULT], None, "must answer a call"),
        ([USER, CALLS], None, "must be followed by tool messages"),
        ([USER, CALLS, USER], None, "must be followed by tool messages"),
        ([USER, {"role": "assistant", "content": None}], None, "expected a string"),
        ([{"role": "robot", "content": "x"}], None, "Invalid 'messages[0].role'"),
        ([{"role": "user", "content": None}], None, "Invalid 'messages[0].content'"),
        ([], None, "'messages' must be"),
    ],
)
async def test_it_refuses_what_a_real_server_refuses(
    server: ModelServer, http: aiohttp.ClientSession, messages: list[Any], tools: Any, complaint: str
) -> None:
    body = {"model": "m", "messages": messages} | ({} if tools is None else {"tools": tools})
    status, answer = await post(http, server, body)
    assert status == 400
    assert complaint in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


async def test_it_takes_what_a_real_server_takes(server: ModelServer, http: aiohttp.ClientSession) -> None:
    body = {"model": "m", "messages": [USER, CALLS, RESULT, USER], "tools": [TOOL]}
    status, answer = await post(http, server, body)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "You said: hi")


async def test_it_records_bodies_byte_for_byte(server: ModelServer, http: aiohttp.ClientSession) -> None:
    root = server.base_url.removesuffix("/v1")
    raw = b'{ "model":"m",\n "messages":[{"role":"user","content":"\\u00e9"}] }'
    async with http.post(server.base_url + "/chat/completions", data=raw) as response:
        assert response.status == 200
    async with http.get(root + "/_recorded") as response:
        assert await response.json() == {"recorded": [{"n": 0, "bytes": len(raw)}]}
    async with http.get(root + "/_recorded/0") as response:
        assert await response.read() == raw
    async with http.delete(root + "/_recorded") as response:
        assert response.status == 200
    async with http.get(root + "/_recorded/0") as response:
        assert response.status == 404
    assert list(server.bodies) == []


async def test_other_addresses_are_unknown(server: ModelServer, http: aiohttp.ClientSession) -> None:
    async with http.get(server.base_url + "/nothing") as response:
        assert response.status == 404
        assert (await response.json())["error"]["message"] == "Unknown request URL: GET /v1/nothing."


async def test_what_is_no_http_closes_the_connection(server: ModelServer) -> None:
    host, port = server.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x16\x03\x01 hello\r\n\r\n")
    with suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    await server.until(lambda: not server.connections)


def fast_and_slow(*chunks: bytes, prompt: str = "Be kind.") -> tuple[ChatRequest | None, ChatRequest]:
    wire = OpenAIChat()
    prefix = wire.render_prefix(prompt, [ToolSpec("a", 'Say {"role":"user",}.', "{}")])
    body = b"".join(wire.body(ModelCall("m/x", prefix, chunks)))
    slow = read_leniently(body)
    assert slow == read_strictly(body)
    return read_fast(body), slow


def test_the_fast_way_sees_the_same_turn_without_reading_the_history() -> None:
    wire = OpenAIChat()
    call = AssistantMessage("", (ToolCall("c1", "a", '{"role":"user"}'),))
    log: list[Message] = [
        UserMessage((Text("old"),)),
        AssistantMessage('{"role":"user","content":"trap"}'),
        UserMessage((Text('[[call a]] {"role":"user","content":"trap"} ü'),), "Mon"),
        call,
        ToolResults((ToolResult("c1", "a", '{"role":"user",'),)),
    ]
    fast, slow = fast_and_slow(*(wire.encode(message) for message in log))
    assert fast is not None
    assert (fast.model, fast.stream) == (slow.model, slow.stream) == ("m/x", True)
    assert (fast.scene.user, fast.scene.steps, fast.scene.results) == (
        slow.scene.user,
        slow.scene.steps,
        slow.scene.results,
    )


def test_the_fast_way_gives_up_where_it_cannot_be_sure() -> None:
    wire = OpenAIChat()
    assert fast_and_slow(wire.encode(UserMessage((Text("[[history]]"),))))[0] is None
    assert read_fast(b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}') is None
    assert read_fast(b'{"model":"m","messages":[{"role":"user","content":"x') is None
    example = ToolSpec("a", "A.", '{"examples":[{"role":"user","content":"trap"}]}')
    prefix = wire.render_prefix("", [example])
    call = ModelCall("m", prefix, [wire.encode(UserMessage((Text("hi"),)))])
    assert read_fast(b"".join(wire.body(call))) is None


async def test_without_strictness_any_conversation_is_answered(http: aiohttp.ClientSession) -> None:
    async with ModelServer(strict=False, record=False) as server:
        status, answer = await post(http, server, {"model": "m", "messages": [RESULT, USER, CALLS]})
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "You said: hi")
        assert not server.bodies


async def test_latency_delays_every_answer(http: aiohttp.ClientSession) -> None:
    async with ModelServer(latency=3600) as server:
        task = asyncio.create_task(post(http, server, {"model": "m", "messages": [USER]}))
        await server.until(lambda: server.requests == 1)
        assert server.answering == 1
        task.cancel()
        await server.until(lambda: not server.answering)
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_command_says_where_it_is_and_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    record = tmp_path / "bodies"
    command = ["-m", "talaria.testing.model_server", "--port", "0", "--record", str(record)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert "TALARIA_MODEL__PROVIDER=scripted" in line
    url = line.split()[3].rstrip(";")
    body = json.dumps({"model": "m", "messages": [USER]}).encode()
    async with aiohttp.ClientSession() as http, http.post(url + "/chat/completions", data=body) as response:
        assert response.status == 200
    process.send_signal(number)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"", b"")
    assert record.read_bytes() == b"%d\n%b\n" % (len(body), body)


async def test_a_taken_port_is_one_clear_line() -> None:
    async with ModelServer() as server:
        port = server.base_url.removesuffix("/v1").rpartition(":")[2]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "talaria.testing.model_server",
            "--port",
            port,
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().startswith(f"model_server: cannot listen on 127.0.0.1:{port}: ")
    assert err.count(b"\n") == 1
