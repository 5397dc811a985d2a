"""What silent, slow and garbled clients can take from the others: nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from support.gateway import TOKEN, Api, in_process
from support.waiting import until
from talaria.testing.model_server import ModelServer

MESSAGES = "/api/sessions/one/messages"
AUTHORIZED = f"Authorization: Bearer {TOKEN}"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def limited(folder: Path, model: ModelServer, **limits: Any) -> AsyncIterator[Api]:
    async with in_process(folder / "home", model, tables={"limits": limits}) as api:
        yield api


@asynccontextmanager
async def connected(api: Api, source: str = "127.0.0.1") -> AsyncIterator[Stream]:
    host, _, port = api.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head(api: Api, line: str, *headers: str) -> bytes:
    lines = (f"{line} HTTP/1.1", f"Host: {api.url.removeprefix('http://')}", *headers)
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


async def status_of(reader: asyncio.StreamReader) -> int:
    answer = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).split()
    return int(answer[1])


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 20) is not None
    except ConnectionError:
        return True


def refused(api: Api, key: str) -> int:
    return api.gateway.limits.readings()[key].refused


def used(api: Api, key: str) -> float | None:
    return api.gateway.limits.readings()[key].used


# -- time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT"])
async def test_a_connection_without_a_whole_head_is_closed_in_time(
    tmp_path: Path, model: ModelServer, sent: bytes
) -> None:
    async with (
        limited(tmp_path, model, request_head=timedelta(milliseconds=80)) as api,
        connected(api) as (reader, writer),
    ):
        writer.write(sent)
        if sent:
            assert await status_of(reader) == 408
        assert await is_closed(reader)
        assert refused(api, "request_head") == 1


@pytest.mark.parametrize("is_early", [True, False], ids=["before the answer", "after the answer"])
async def test_a_second_head_that_never_ends_is_cut_off_too(
    tmp_path: Path, model: ModelServer, is_early: bool
) -> None:
    async with (
        limited(tmp_path, model, request_head=timedelta(milliseconds=500)) as api,
        connected(api) as (reader, writer),
    ):
        first, half = head(api, "HEAD /healthz"), b"GET /healthz HT"
        writer.write(first + (half if is_early else b""))
        assert await status_of(reader) == 200
        if not is_early:
            writer.write(half)
        assert await status_of(reader) == 408
        assert await is_closed(reader)


async def test_a_head_that_comes_in_drops_is_cut_off_all_the_same(tmp_path: Path, model: ModelServer) -> None:
    async with (
        limited(tmp_path, model, request_head=timedelta(milliseconds=80)) as api,
        connected(api) as (reader, writer),
    ):
        answer = asyncio.create_task(status_of(reader))
        for byte in head(api, "GET /healthz", "X: " + "y" * 5000):
            if answer.done():
                break
            writer.write(bytes([byte]))
            await asyncio.wait((answer,), timeout=0.005)
        assert await answer == 408


async def test_a_login_without_its_body_does_not_wait_for_ever(tmp_path: Path, model: ModelServer) -> None:
    async with (
        limited(tmp_path, model, request_body=timedelta(milliseconds=80)) as api,
        connected(api) as (reader, writer),
    ):
        writer.write(head(api, "POST /api/login", "Content-Length: 100"))
        assert await status_of(reader) == 408
        assert await is_closed(reader)


async def test_a_body_that_keeps_coming_gets_more_time(tmp_path: Path, model: ModelServer) -> None:
    async with (
        limited(tmp_path, model, request_body=timedelta(milliseconds=100)) as api,
        connected(api) as (reader, writer),
    ):
        body = b'{"text": "' + b"y" * 200_000  # it earns 50 seconds
        writer.write(head(api, f"POST {MESSAGES}", AUTHORIZED, f"Content-Length: {len(body) + 2}") + body)
        answer = asyncio.create_task(status_of(reader))
        await asyncio.wait((answer,), timeout=0.3)
        writer.write(b'"}')
        assert await answer == 202


async def test_an_unknown_caller_is_told_so_before_its_body_comes(api: Api) -> None:
    async with connected(api) as (reader, writer):
        writer.write(head(api, f"POST {MESSAGES}", "Content-Length: 1000000"))
        assert await status_of(reader) == 401


# -- number -----------------------------------------------------------------------------------------------


async def test_silent_strangers_make_room_for_others(tmp_path: Path, model: ModelServer) -> None:
    async with limited(tmp_path, model, connections_per_address=8) as api, AsyncExitStack() as stack:
        assert await api.get("/api/pool")  # the client's connection is known from now on
        crowd = [await stack.enter_async_context(connected(api)) for _ in range(30)]
        assert await api.get("/api/pool")
        await asyncio.gather(*(is_closed(reader) for reader, _ in crowd[:20]))
        assert used(api, "connections") == 8
        assert refused(api, "connections_per_address") == 23


async def test_an_operator_at_another_address_gets_in(tmp_path: Path, model: ModelServer) -> None:
    """All connections of one address are in use, so none of them can be closed."""
    async with (
        limited(tmp_path, model, connections=40, connections_per_address=30) as api,
        AsyncExitStack() as stack,
    ):
        turn = await api.begin("one", "[[hang]]")
        for _ in range(30):
            reader, writer = await stack.enter_async_context(connected(api))
            writer.write(head(api, f"GET /api/turns/{turn}/events", AUTHORIZED))
            assert await status_of(reader) == 200
        reader, _ = await stack.enter_async_context(connected(api))
        assert await status_of(reader) == 503
        reader, writer = await stack.enter_async_context(connected(api, "127.0.0.2"))
        writer.write(head(api, "GET /api/status", AUTHORIZED))
        assert await status_of(reader) == 200


async def test_a_request_behind_too_many_others_ends_the_connection(api: Api) -> None:
    async with connected(api) as (reader, writer):
        writer.write(head(api, "GET /healthz") * 500)
        assert (await asyncio.wait_for(reader.read(), 20)).count(b"200 OK") <= 20
    assert await api.get("/healthz")


async def test_junk_behind_a_request_that_is_being_answered_ends_the_connection_without_words(
    api: Api, model: ModelServer
) -> None:
    """An answer to the junk would be read as that of the request."""
    body = b'{"text": "[[hang]]"}'
    async with connected(api) as (reader, writer):
        writer.write(head(api, f"POST {MESSAGES}?wait=60", AUTHORIZED, f"Content-Length: {len(body)}") + body)
        await until(lambda: bool(model.bodies))
        writer.write(b"junk\r\n\r\n")
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_a_client_that_leaves_with_requests_waiting_is_no_error(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        async with connected(api) as (_, writer):
            writer.write(head(api, "GET /api/status", AUTHORIZED) * 5)
            await api.get("/healthz")
        await api.get("/api/status")
    assert "Traceback" not in caplog.text
    assert "failed" not in caplog.text


@pytest.mark.parametrize("endless", [b"a: b\r\n" * 1000, b"a: " + b"b" * 90_000], ids=["many", "long"])
async def test_a_body_without_an_end_is_cut_off(api: Api, endless: bytes) -> None:
    async with connected(api) as (reader, writer):
        writer.write(head(api, "POST /api/login", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n")
        try:
            for _ in range((3 << 20) // len(endless)):
                writer.write(endless)
                await writer.drain()
        except ConnectionError:
            pass
        assert await is_closed(reader)


async def test_a_closed_connection_leaves_memory_at_once(api: Api) -> None:
    """A reference cycle would keep its buffers until the next full collection."""
    requests = [
        head(api, "GET /api/status", AUTHORIZED),
        head(api, "POST /api/login", "Content-Length: 50"),
        b"junk\r\n\r\n",
        b"",
    ]
    gc.collect()
    gc.disable()
    try:
        for n, request in enumerate(requests * 5):
            async with connected(api, f"127.0.0.{n + 2}") as (_, writer):
                writer.write(request)
                await api.get("/healthz")

        def alive(kind: str) -> int:
            return sum(type(each).__qualname__ == kind for each in gc.get_objects())

        await until(lambda: alive("ClientConnection") == used(api, "connections") == 1)
        assert alive("_Address") == 1
    finally:
        gc.enable()


# -- clients that do not read -----------------------------------------------------------------------------

SMALL_WINDOW = 4096


@asynccontextmanager
async def mute(api: Api, count: int, request: bytes) -> AsyncIterator[list[socket.socket]]:
    """Clients that send a request and never read the response."""
    host, _, port = api.url.removeprefix("http://").partition(":")
    clients = []
    loop = asyncio.get_running_loop()
    try:
        for _ in range(count):
            client = socket.socket()
            clients.append(client)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
            client.setblocking(False)
            await loop.sock_connect(client, (host, int(port)))
            await loop.sock_sendall(client, request)
        yield clients
    finally:
        for client in clients:
            client.close()


async def long_reply(api: Api) -> dict[str, Any]:
    turn: dict[str, Any] = await api.say("long", "[[words 70000]] [[chunks 5]]")
    assert len(turn["reply"]) > 350_000
    return turn


async def test_followers_that_do_not_read_share_one_reply_and_are_cut_off(
    tmp_path: Path, model: ModelServer
) -> None:
    async with limited(tmp_path, model, slow_reader=timedelta(milliseconds=500)) as api:
        first = await api.begin("one", "[[hang]]")
        turn = await api.begin("one", "[[words 70000]] [[chunks 20]]")
        tracemalloc.start()
        try:
            async with mute(api, 30, head(api, f"GET /api/turns/{turn}/events", AUTHORIZED)) as clients:
                for client in clients:  # each follows the turn before it begins
                    await asyncio.get_running_loop().sock_recv(client, 1)
                await api.post(f"/api/turns/{first}/cancel")
                await until(lambda: refused(api, "slow_reader") == 30)
            assert tracemalloc.get_traced_memory()[1] < 12 << 20
        finally:
            tracemalloc.stop()
        async with asyncio.timeout(20):
            while (await api.get(f"/api/turns/{turn}"))["state"] == "running":
                await asyncio.sleep(0.01)
        assert (await api.get(f"/api/turns/{turn}"))["state"] == "done"


@pytest.mark.parametrize("suffix", ["", "/events"])
async def test_responses_that_are_not_read_share_a_bounded_memory(
    tmp_path: Path, model: ModelServer, suffix: str
) -> None:
    async with limited(tmp_path, model, client_memory=2 << 20) as api:
        turn = await long_reply(api)
        path = f"/api/turns/{turn['id']}{suffix}"
        async with mute(api, 30, head(api, f"GET {path}", AUTHORIZED)):
            await until(lambda: refused(api, "client_memory") > 20)
            assert (used(api, "client_memory") or 0) <= 2 << 20
            assert (await api.get(f"/api/turns/{turn['id']}"))["reply"] == turn["reply"]
        await until(lambda: used(api, "client_memory") == 0)


async def test_bodies_share_a_bounded_memory(tmp_path: Path, model: ModelServer) -> None:
    async with limited(tmp_path, model, client_memory=1 << 20) as api, AsyncExitStack() as stack:
        request = head(api, f"POST {MESSAGES}", AUTHORIZED, "Content-Length: 2000000") + bytes(700_000)
        _, writer = await stack.enter_async_context(connected(api))
        writer.write(request)
        await until(lambda: (used(api, "client_memory") or 0) > 600_000)
        second, writer = await stack.enter_async_context(connected(api))
        writer.write(request)
        answer = await asyncio.wait_for(second.readuntil(b"\r\n\r\n"), 20)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 5" in answer
        writer.transport.abort()
        await api.say("two", "hello")


async def test_a_stateless_call_whose_reader_is_cut_off_is_cancelled(
    tmp_path: Path, model: ModelServer
) -> None:
    async with limited(tmp_path, model, slow_reader=timedelta(milliseconds=300)) as api:
        text = "[[words 200000]] [[chunks 100]] [[chunk-delay 0.03]]"
        body = json.dumps({"stream": True, "messages": [{"role": "user", "content": text}]}).encode()
        lines = ("POST /v1/chat/completions", AUTHORIZED, f"Content-Length: {len(body)}")
        async with mute(api, 1, head(api, *lines) + body):
            await until(lambda: refused(api, "slow_reader") == 1)
            await until(lambda: len(api.gateway.turns.live) == 0)
        assert (await api.get("/api/status"))["turns"].get("cancelled") == 1


async def test_a_download_is_read_as_fast_as_the_client_takes_it(tmp_path: Path, model: ModelServer) -> None:
    async with limited(tmp_path, model, slow_reader=timedelta(milliseconds=300)) as api:
        data = bytes(range(256)) * (8 << 12)
        async with api.client.post(api.url + "/api/files?name=a.bin", data=BytesIO(data)) as response:
            upload = await response.json()
        async with mute(api, 20, head(api, f"GET /api/files/{upload['id']}", AUTHORIZED)):
            await until(lambda: (used(api, "client_memory") or 0) > 0)
            assert (used(api, "client_memory") or 0) <= 20 * (512 << 10)
            await until(lambda: refused(api, "slow_reader") == 20)
        async with api.client.get(f"{api.url}/api/files/{upload['id']}") as response:
            assert await response.read() == data


# -- junk -------------------------------------------------------------------------------------------------

JUNK = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"hello\r\n\r\n",
    bytes(64),
    b"GET\r\n\r\n",
]
UPGRADE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


async def test_junk_is_logged_with_a_count_and_no_traceback(
    tmp_path: Path, model: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with limited(tmp_path, model) as api:
        for data in [*JUNK, UPGRADE] * 10:
            async with connected(api) as (reader, writer):
                writer.write(data)
                assert await status_of(reader) in (400, 421)
    lines = [record for record in caplog.records if not record.name.startswith("talaria.store")]
    assert len(lines) <= 2, [record.getMessage() for record in lines]
    assert "40 connections spoke no valid HTTP (40 of them from 127.0.0.1)" in caplog.text
    assert not any(record.exc_info for record in lines)


async def test_a_body_of_too_many_values_and_a_history_of_too_many_messages_are_refused(
    tmp_path: Path, model: ModelServer
) -> None:
    history = [{"role": "user", "content": "hello"}] * 4
    async with limited(tmp_path, model, body_values=50, completion_messages=3) as api:
        for body, key in (
            ({"model": "main", "messages": history}, "completion_messages"),
            ({"model": "main", "messages": history * 20}, "body_values"),
        ):
            async with api.client.post(f"{api.url}/v1/chat/completions", json=body) as answer:
                text = await answer.text()
                assert (answer.status, f"limits.{key} = " in text) == (413, True), text
            assert refused(api, key) == 1
        assert (await api.get("/api/status"))["limits"]["body_values"]["limit"] == 50
