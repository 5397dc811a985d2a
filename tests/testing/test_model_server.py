"""The model server is strict, records requests, is cheap, and stops when told to."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from talaria.core.messages import (
    AssistantMessage,
    Message,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import ModelCall
from talaria.core.tools import ToolSpec
from talaria.models.openai_chat import OpenAIChat
from talaria.testing.model_server import ModelServer
from talaria.testing.openai_chat_api import ChatCompletionsApi, read_fast

USER = {"role": "user", "content": "hi"}


async def post(http: aiohttp.ClientSession, server: ModelServer, body: Any) -> tuple[int, Any]:
    async with http.post(server.base_url + "/chat/completions", json=body) as response:
        return response.status, await response.json()


async def test_it_records_bodies_byte_for_byte(server: ModelServer, http: aiohttp.ClientSession) -> None:
    root = server.base_url.removesuffix("/v1")
    raw = b'{ "model":"m",\n "messages":[{"role":"user","content":"\\u00e9"}] }'
    async with http.post(server.base_url + "/chat/completions", data=raw) as response:
        assert response.status == 200
    assert list(server.bodies) == [raw]
    async with http.delete(root + "/_recorded") as response:
        assert await response.json() == [raw.decode()]
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


def test_the_fast_way_sees_the_same_turn_without_reading_the_history() -> None:
    wire = OpenAIChat()
    log: list[Message] = [
        UserMessage((Text("old"),)),
        AssistantMessage('{"role":"user","content":"trap"}'),
        UserMessage((Text('[[call a]] {"role":"user","content":"trap"} ü'),), "Mon"),
        AssistantMessage("", (ToolCall("c1", "a", '{"role":"user"}'),)),
        ToolResults((ToolResult("c1", "a", '{"role":"user",'),)),
    ]
    prefix = wire.render_prefix("Be kind.", [ToolSpec("a", 'Say {"role":"user",}.', "{}")])
    body = b"".join(wire.body(ModelCall("m/x", prefix, [wire.encode(message) for message in log])))
    slow = ChatCompletionsApi().read(body)
    assert read_fast(body) == replace(slow, context=replace(slow.context, system="", length=0))


def test_the_fast_way_gives_up_where_it_cannot_be_sure() -> None:
    wire = OpenAIChat()
    example = ToolSpec("a", "A.", '{"examples":[{"role":"user","content":"trap"}]}')
    for said, tools in (("[[history]]", []), ("hi", [example])):
        prefix = wire.render_prefix("", tools)
        call = ModelCall("m", prefix, [wire.encode(UserMessage((Text(said),)))])
        assert read_fast(b"".join(wire.body(call))) is None
    assert read_fast(b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}') is None
    assert read_fast(b'{"model":"m","messages":[{"role":"user","content":"x') is None


async def test_without_strictness_any_conversation_is_answered(http: aiohttp.ClientSession) -> None:
    async with ModelServer(strict=False, record=False) as server:
        body = {"model": "m", "messages": [{"role": "tool", "content": "x"}, USER, 3]}
        status, answer = await post(http, server, body)
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


async def test_waiting_for_an_unfinished_answer_ignores_answers_that_are_sent_at_once(
    http: aiohttp.ClientSession,
) -> None:
    async with ModelServer() as server:
        waiting = asyncio.create_task(server.until(lambda: server.answering > 0))
        await asyncio.sleep(0)
        await post(http, server, {"model": "m", "messages": [USER]})
        assert not waiting.done()
        waiting.cancel()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_command_says_where_it_is_and_ends_cleanly(number: signal.Signals) -> None:
    command = ["-m", "talaria.testing.model_server", "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert "TALARIA_MODEL__PROVIDER=scripted" in line
    url = line.split()[3].rstrip(";")
    assert f"TALARIA_PROVIDERS__SCRIPTED__BASE_URL={url}" in line, "it is not where the gateway looks"
    body = {"model": "m", "messages": [USER]}
    async with aiohttp.ClientSession() as http, http.post(url + "/chat/completions", json=body) as response:
        assert response.status == 200
    process.send_signal(number)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"", b"")


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
