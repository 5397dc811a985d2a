"""A turn's events as server-sent events."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.gateway import TOKEN, Api, in_process
from talaria.channels.http.response import StreamTiming
from talaria.testing.model_server import ModelServer

Sse = tuple[int, str, dict[str, Any]]


async def read(response: aiohttp.ClientResponse) -> AsyncIterator[Sse]:
    fields: dict[str, str] = {}
    async for line in response.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif fields:
            yield int(fields["id"]), fields["event"], json.loads(fields["data"])
            fields = {}


@asynccontextmanager
async def open_stream(
    api: Api, turn_id: str, last: int | None = None
) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {"Last-Event-ID": str(last)} if last is not None else {}
    async with api.client.get(f"{api.url}/api/turns/{turn_id}/events", headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        yield response


async def collect(api: Api, turn_id: str, last: int | None = None) -> list[Sse]:
    async with open_stream(api, turn_id, last) as response:
        return [event async for event in read(response)]


async def test_a_turn_tells_all_that_happens_in_order(api: Api, model: ModelServer) -> None:
    text = '[[think hm]] [[delay 0.05]] [[call todo {"action": "list"}]] [[chunks 2]] [[reply fine]]'
    events = await collect(api, await api.begin("one", text))
    names = [name for _, name, _ in events]
    assert names[0] == "reasoning"
    assert names[-1] == "done"
    assert names.index("tool.started") < names.index("tool.finished") < names.index("delta")
    assert [number for number, _, _ in events] == [*range(1, len(events)), 1_000_000_000]
    assert events[-1][2] == {"type": "done", "reply": "fine", "files": []}


async def test_a_stream_goes_on_behind_the_last_event_seen(api: Api, model: ModelServer) -> None:
    turn_id = await api.begin("one", "[[chunks 4]] [[chunk-delay 0.05]] [[reply abcd]]")
    async with open_stream(api, turn_id) as response:
        async for number, name, data in read(response):
            if name == "delta":
                seen, said = number, data["text"]
                break
    rest = await collect(api, turn_id, seen)
    assert rest[0][0] == seen + 1
    assert said + "".join(data["text"] for _, name, data in rest if name == "delta") == "abcd"
    assert rest[-1][1] == "done"


async def test_leaving_a_stream_stops_nothing(api: Api, model: ModelServer) -> None:
    turn_id = await api.begin("one", "[[delay 0.1]] hello")
    async with open_stream(api, turn_id):
        pass
    await api.say("one", "and then")
    assert (await api.get(f"/api/turns/{turn_id}"))["state"] == "done"


async def test_a_settled_turn_tells_its_end_again(api: Api) -> None:
    done = await api.say("one", "hello")
    assert [name for _, name, _ in await collect(api, done["id"])] == ["done"]
    failed = await api.say("one", "[[status 400]]")
    [(_, name, data)] = await collect(api, failed["id"], 7)
    assert (name, data["error"]) == ("failed", failed["error"])


async def test_who_waits_in_the_lane_hears_how_long(api: Api, model: ModelServer) -> None:
    first = await api.begin("one", "[[hang]]")
    second = await api.begin("one", "hello")
    async with open_stream(api, second) as response:
        events = read(response)
        assert await anext(events) == (1, "queued", {"type": "queued", "ahead": 1})
        await api.post(f"/api/turns/{first}/cancel")
        assert [name async for _, name, _ in events][-1] == "done"


async def test_a_resumed_turn_begins_with_reset_whatever_was_seen(tmp_path: Path, model: ModelServer) -> None:
    async with in_process(tmp_path, model) as api:
        turn_id = await api.begin("one", "[[delay 0.1]] [[first 1 hang]] hello")
        await model.until(lambda: model.requests > 0)
    async with in_process(tmp_path, model) as api:
        events = await collect(api, turn_id, 57)
        assert events[0][1] == "reset"
        assert events[-1][2] == {"type": "done", "reply": "You said: hello", "files": []}
        again = await collect(api, turn_id, 57)
        assert [name for _, name, _ in again] == ["reset", "done"]


async def test_a_number_from_nowhere_still_gets_the_end(api: Api, model: ModelServer) -> None:
    turn_id = await api.begin("one", "[[delay 0.1]] hello")
    assert [name for _, name, _ in await collect(api, turn_id, 1000)] == ["done"]


async def test_a_silent_stream_is_kept_alive(tmp_path: Path, model: ModelServer) -> None:
    async with in_process(tmp_path, model, timing=StreamTiming(keep_alive=0.05)) as api:
        turn_id = await api.begin("one", "[[hang]]")
        async with open_stream(api, turn_id) as response:
            assert await response.content.readline() == b": keep-alive\n"
            assert "talaria_event_streams 1.0" in await metrics(api)
            await api.post(f"/api/turns/{turn_id}/cancel")
            assert [name async for _, name, _ in read(response)] == ["cancelled"]
        while "talaria_event_streams 0.0" not in await metrics(api):
            await asyncio.sleep(0)


async def metrics(api: Api) -> str:
    async with api.client.get(f"{api.url}/metrics") as response:
        return await response.text()


async def read_slowly(api: Api, request: str, body: str = "") -> bytes:
    """Return the body of a chunked response, which is read through a small window."""
    host, _, port = api.url.removeprefix("http://").partition(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=client)
    try:
        head = f"{request} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await reader.readuntil(b"\r\n\r\n")
        pieces = []
        while size := int(await reader.readline(), 16):
            pieces.append((await reader.readexactly(size + 2))[:-2])
        return b"".join(pieces)
    finally:
        writer.close()


@pytest.mark.parametrize("is_completion", [False, True])
async def test_no_comment_comes_within_an_event_that_a_client_reads_slowly(
    tmp_path: Path, model: ModelServer, is_completion: bool
) -> None:
    """A long reply is written in pieces, and a comment between two of them would be a part of the reply."""
    async with in_process(tmp_path / "home", model, timing=StreamTiming(0.001, 0.0)) as api:
        if is_completion:
            said = {"role": "user", "content": "[[words 90000]] [[chunks 1]]"}
            request = ("POST /v1/chat/completions", json.dumps({"messages": [said], "stream": True}))
        else:
            turn = await api.say("long", "[[words 90000]] [[chunks 1]]")
            request = (f"GET /api/turns/{turn['id']}/events", "")
        lines = (await read_slowly(api, *request)).split(b"\n")
    assert {line.partition(b": ")[0] for line in lines} <= {b"", b"id", b"event", b"data"}
    told = [line[6:] for line in lines if line.startswith(b"data: {")]
    assert max(len(json.dumps(json.loads(data))) for data in told) > 500_000


async def test_behind_the_last_event_there_is_nothing(api: Api) -> None:
    turn_id = await api.begin("one", "[[chunks 3]] [[chunk-delay 0.01]] [[reply abc]]")
    url = f"{api.url}/api/turns/{turn_id}/events"
    async with api.client.get(url) as response:
        ids = [line for line in (await response.text()).splitlines() if line.startswith("id: ")]
    last = int(ids[-1].removeprefix("id: "))
    for after, status in ((last - 1, 200), (last, 204), (last + 9, 204)):
        async with api.client.get(url, headers={"Last-Event-ID": str(after)}) as response:
            assert response.status == status
            assert (b"event: done" in await response.read()) == (status == 200)


@pytest.mark.parametrize("is_running", [False, True])
async def test_behind_the_last_event_there_is_nothing_after_a_restart(
    tmp_path: Path, model: ModelServer, is_running: bool
) -> None:
    async with in_process(tmp_path, model) as api:
        text = "[[first 1 hang]] [[reply abc]]" if is_running else "[[reply abc]]"
        turn_id = await api.begin("one", text)
        if is_running:
            await model.until(lambda: model.requests > 0)
        else:
            last = (await collect(api, turn_id))[-1][0]
    async with in_process(tmp_path, model) as api:
        if is_running:
            last = (await collect(api, turn_id))[-1][0]
        url = f"{api.url}/api/turns/{turn_id}/events"
        async with api.client.get(url, headers={"Last-Event-ID": str(last)}) as response:
            assert response.status == 204
        assert (await collect(api, turn_id, last=1))[-1][1] == "done"
