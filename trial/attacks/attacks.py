"""The attacks of `./dev chaos --only hostile`: what a model, its tool calls, clients and chats can send."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

import aiohttp

from talaria.testing.hostile_answers import hostile_answers
from trial.attacks.hostile import PERSON, WIRES, Attack, Stage, Unclear, clear_error, provider

_BIG = 8 << 20
_ANSWER_BYTES = 70 << 20  # more than limits.answer_bytes
_EVENT_BYTES = 3 << 20


def all_attacks() -> list[Attack]:
    return [*answers(), *tools(), *clients(), *chats()]


# -- answers of a model -----------------------------------------------------------------------------------


def answers() -> Iterator[Attack]:
    """Every hostile answer in each wire format that knows it: once beyond the limit for an answer, and once
    below the limit for one event. Each has a provider of its own, so that no breaker stops an attack."""
    for size, how in ((_ANSWER_BYTES, "70 MB"), (_EVENT_BYTES, "3 MB")):
        for wire in WIRES:
            for name in hostile_answers(WIRES[wire]):
                run = partial(_answer, provider=provider(wire, name), text=f"[[hostile {name} {size}]]")
                yield Attack(f"{wire}: {name}, {how}", run)


async def _answer(stage: Stage, provider: str, text: str) -> str:
    """The turn fails with a clear error, or the answer is read to its good end."""
    turn = await stage.turn(provider, text, f"{provider}/scripted")
    if turn["state"] == "done":
        return f"answered {turn['reply'][:60]!r}"
    return clear_error(turn)


# -- tool calls -------------------------------------------------------------------------------------------

_GLOB = "**/" + "*a" * 30 + "/**/" + "*b" * 30 + "c"
_REGEX = "(a+)+$"


def _calls(name: str, count: int, arguments: Mapping[str, object]) -> str:
    call = f"call {name} {json.dumps(arguments)}"
    return f"[[{' + '.join([call] * count)}]]"


_TOOL_CALLS: Mapping[str, str] = {
    "100 search_files": _calls("search_files", 100, {"pattern": "x"}),
    "100 list_files with a hostile glob": _calls("list_files", 100, {"pattern": _GLOB}),
    "100 search_files with a hostile pattern": _calls("search_files", 100, {"pattern": _REGEX}),
    "a tool name of 200 characters": f"[[call {'n' * 200} {{}}]]",
    "100 unknown tools": _calls("no_such_tool", 100, {"a": "b" * 1000}),
    "arguments of 100,000 values": f"[[call write_file {json.dumps({'path': [0] * 100_000})}]]",
    "edit_file with a text of 300 kB": _calls(
        "edit_file", 1, {"path": "a.txt", "old": "ab" * 150_000, "new": ""}
    ),
    "100 write_file of 3 kB": _calls("write_file", 100, {"path": "w.txt", "content": "w" * 3000}),
    "100 todo": _calls("todo", 100, {"items": [{"text": "x" * 200, "status": "pending"}] * 5}),
}


def tools() -> Iterator[Attack]:
    for name, text in _TOOL_CALLS.items():
        yield Attack(f"tools: {name}", partial(_tool_calls, text=text))
    yield Attack("tools: 500 calls in one answer", partial(_too_many_calls, count=500))


async def _tool_calls(stage: Stage, text: str) -> str:
    """The calls get results that the model can act on, and the turn goes on to its answer; or the answer
    with the calls is refused."""
    await stage.gateway.call("POST", "/api/sessions/tools/messages?wait=30", json={"text": _FILL})
    turn = await stage.turn("tools", text)
    if turn["state"] != "done":
        return clear_error(turn)
    return f"the turn went on: {turn['reply'][:120]!r}"


_FILL = f"[[call write_file {json.dumps({'path': 'a.txt', 'content': 'a' * 5000 + '!'})}]]"


async def _too_many_calls(stage: Stage, count: int) -> str:
    return clear_error(await stage.turn("too-many", _calls("list_files", count, {})))


# -- clients ----------------------------------------------------------------------------------------------

_CLIENTS: dict[str, Callable[[Stage], Awaitable[str]]] = {}


def _client(name: str) -> Callable[[Callable[[Stage], Awaitable[str]]], Callable[[Stage], Awaitable[str]]]:
    def register(run: Callable[[Stage], Awaitable[str]]) -> Callable[[Stage], Awaitable[str]]:
        _CLIENTS[name] = run
        return run

    return register


def clients() -> Iterator[Attack]:
    for name, run in _CLIENTS.items():
        yield Attack(f"client: {name}", run)


async def _exchange(stage: Stage, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Send the pieces and return everything that comes back until the gateway closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port, limit=1 << 20)
    received = bytearray()
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if pause:
                await asyncio.sleep(pause)
        while data := await reader.read(65_536):
            received += data
    except (ConnectionError, OSError):
        pass
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return bytes(received)


async def _many(stage: Stage, count: int, *pieces: bytes, pause: float = 0.0) -> str:
    """Do the same on many connections at once. All must be answered with an error, or closed."""
    replies = await asyncio.gather(*(_exchange(stage, *pieces, pause=pause) for _ in range(count)))
    return _judge(replies)


def _judge(replies: list[bytes]) -> str:
    statuses = sorted({_status(reply) for reply in replies})
    if any(" 500 " in status or " 200 " in status or " 202 " in status for status in statuses):
        raise Unclear(f"answered {statuses}")
    return f"answered {', '.join(repr(status) if status else 'closed' for status in statuses)}"


def _status(reply: bytes) -> str:
    return reply.split(b"\r\n", 1)[0].decode("latin-1")


def _head(stage: Stage, method: str, path: str, *more: str, token: bool = True) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{stage.port}", *more]
    if token:
        lines.append(f"Authorization: Bearer {stage.token}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _json_request(stage: Stage, path: str, body: bytes) -> list[bytes]:
    head = _head(
        stage,
        "POST",
        path,
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return [head, body]


@_client("300 logins without a body")
async def _silent_logins(stage: Stage) -> str:
    more = ("Content-Type: application/json", "Content-Length: 100", f"Origin: {stage.url}")
    return await _many(stage, 300, _head(stage, "POST", "/api/login", *more, token=False))


@_client("300 connections that send nothing")
async def _silent(stage: Stage) -> str:
    return await _many(stage, 300)


@_client("100 heads that arrive byte by byte")
async def _slow_heads(stage: Stage) -> str:
    head = _head(stage, "GET", "/healthz")
    return await _many(stage, 100, *(head[n : n + 1] for n in range(30)), pause=0.2)


@_client("50 bodies that stop half-way")
async def _half_bodies(stage: Stage) -> str:
    head, body = _json_request(stage, "/api/sessions/half/messages", b'{"text": "' + b"x" * 1000 + b'"}')
    return await _many(stage, 50, head, body[:500])


@_client("500 connections with junk")
async def _junk(stage: Stage) -> str:
    return await _many(stage, 500, b"\x16\x03\x01\x02\x00\x01\x00" + b"\xff" * 300 + b"\r\n\r\n")


@_client("20 heads of 1 MB")
async def _huge_heads(stage: Stage) -> str:
    return await _many(stage, 20, b"GET / HTTP/1.1\r\n", *[b"X: " + b"y" * 50_000 + b"\r\n"] * 20)


@_client("100 cookies of 60 kB")
async def _cookies(stage: Stage) -> str:
    cookies = "Cookie: " + "; ".join(f"c{n}={n}" for n in range(5500))
    return await _many(
        stage, 100, _head(stage, "GET", "/api/status", cookies, "Connection: close", token=False)
    )


@_client("JSON nested 4 million deep")
async def _deep(stage: Stage) -> str:
    body = b'{"text": ' + b"[" * (4 << 20)
    return _judge([await _exchange(stage, *_json_request(stage, "/api/sessions/deep/messages", body))])


@_client("JSON of 4 million values")
async def _wide(stage: Stage) -> str:
    body = b'{"text": [' + b"0," * (4 << 20) + b"0]}"
    return _judge([await _exchange(stage, *_json_request(stage, "/api/sessions/wide/messages", body))])


@_client("a chat completion of 500,000 messages")
async def _messages(stage: Stage) -> str:
    message = b'{"role":"user","content":"x"}'
    body = b'{"model":"scripted/scripted","messages":[' + b",".join([message] * 500_000) + b"]}"
    return _judge([await _exchange(stage, *_json_request(stage, "/v1/chat/completions", body))])


@_client("a body in 200,000 chunks of one byte")
async def _chunks(stage: Stage) -> str:
    head = _head(
        stage, "POST", "/api/sessions/chunks/messages", "Content-Type: application/json",
        "Transfer-Encoding: chunked", "Connection: close",
    )  # fmt: skip
    return _judge([await _exchange(stage, head, b"1\r\nx\r\n" * 200_000, b"0\r\n\r\n")])


@_client("numbers of 5,000 digits")
async def _numbers(stage: Stage) -> str:
    nines = "9" * 5000
    paths = (
        f"/api/sessions?limit={nines}",
        f"/api/sessions?limit=000000000000{nines}",
        f"/api/sessions?after={nines}",
    )
    heads = [_head(stage, "GET", path, "Connection: close") for path in paths]
    return _judge([await _exchange(stage, head) for head in heads])


@_client("500 wrong tokens")
async def _wrong_tokens(stage: Stage) -> str:
    head = _head(stage, "GET", "/api/status", "Authorization: Bearer wrong", "Connection: close", token=False)
    return await _many(stage, 500, head)


@_client("50 streams that are never read")
async def _never_read(stage: Stage) -> str:
    body = json.dumps(
        {
            "model": "scripted/scripted",
            "stream": True,
            "messages": [{"role": "user", "content": "[[words 200000]]"}],
        }
    ).encode()
    writers = []
    for _ in range(50):
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port, limit=1024)
        writer.write(b"".join(_json_request(stage, "/v1/chat/completions", body)))
        writers.append((reader, writer))
    await asyncio.sleep(8)
    status = await stage.gateway.call("GET", "/api/status")
    for _, writer in writers:
        writer.transport.abort()
    owed = status["owed"]["turns"]
    if owed > 10:
        raise Unclear(f"{owed} turns still wait for their readers")
    return "cut off as slow readers"


@_client("30 uploads that break off")
async def _broken_uploads(stage: Stage) -> str:
    head = _head(
        stage, "POST", "/api/files", "Content-Type: application/octet-stream", "X-Filename: a.bin",
        f"Content-Length: {_BIG}",
    )  # fmt: skip

    async def upload() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(head + b"x" * 100_000)
        with suppress(OSError):
            await writer.drain()
        await asyncio.sleep(0.2)
        writer.transport.abort()

    await asyncio.gather(*(upload() for _ in range(30)))
    return "broken off by the client"


@_client("400 messages to one chat at once")
async def _queue(stage: Stage) -> str:
    url, headers = f"{stage.url}/api/sessions/queue/messages", {"Authorization": f"Bearer {stage.token}"}

    async def send(client: aiohttp.ClientSession, n: int) -> int:
        async with client.post(url, json={"text": f"[[delay 0.01]] {n}"}) as answer:
            await answer.read()
            return answer.status

    async with aiohttp.ClientSession(headers=headers) as client:
        statuses = await asyncio.gather(*(send(client, n) for n in range(400)))
        refused = sum(status in (429, 503) for status in statuses)
        if refused + statuses.count(202) < 400 or not refused:
            raise Unclear(f"answered {sorted(set(statuses))}")
        while (await stage.gateway.call("GET", "/api/status"))["owed"]["turns"] > 5:
            await asyncio.sleep(0.1)
    return f"{refused} of 400 refused"


@_client("200 stateless calls that are left at once")
async def _left(stage: Stage) -> str:
    body = json.dumps(
        {"model": "scripted/scripted", "messages": [{"role": "user", "content": "[[hang]]"}]}
    ).encode()

    async def call() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(b"".join(_json_request(stage, "/v1/chat/completions", body)))
        await asyncio.sleep(0.3)
        writer.transport.abort()

    await asyncio.gather(*(call() for _ in range(200)))
    while (await stage.gateway.call("GET", "/api/status"))["owed"]["turns"] > 5:
        await asyncio.sleep(0.1)
    return "all cancelled"


@_client("an image of 200 million pixels")
async def _bomb(stage: Stage) -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 20_000, 10_000, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 20_001 * 500, 9)
    picture = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
    body = json.dumps(
        {"model": "scripted/scripted", "messages": [{"role": "user", "content": content}]}
    ).encode()
    reply = await _exchange(stage, *_json_request(stage, "/v1/chat/completions", body))
    if b" 500 " in reply[:20]:
        raise Unclear(reply[:200].decode("latin-1"))
    return f"answered {_status(reply)!r}"


# -- chat platforms ---------------------------------------------------------------------------------------


def chats() -> Iterator[Attack]:
    yield Attack("telegram: an answer of 3,000,000 characters", _long_reply)
    yield Attack("telegram: a message of 4,000 brackets", _brackets)


async def _long_reply(stage: Stage) -> str:
    before = stage.telegram.count("sendMessage")
    stage.telegram.person(PERSON).says("[[words 500000]]")
    documents = stage.telegram.count("sendDocument")
    await stage.telegram.until(lambda: stage.telegram.count("sendDocument") > documents, 60)
    await asyncio.sleep(1)
    sent = stage.telegram.count("sendMessage") - before
    if sent > 30:
        raise Unclear(f"{sent} messages were sent")
    return f"{sent} messages, and the rest as a file"


async def _brackets(stage: Stage) -> str:
    before = stage.telegram.count("sendMessage")
    stage.telegram.person(PERSON).says("[" * 2000 + "](" * 1000)
    if not await stage.telegram.until(lambda: stage.telegram.count("sendMessage") > before, 30):
        raise Unclear("no answer")
    return "answered"
