"""What is refused, and that every refusal says what is wrong and what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import pytest
import pytest_asyncio

from support.gateway import TOKEN, Api, in_process
from talaria.testing.model_server import ModelServer

MESSAGES = "/api/sessions/one/messages"
CHAT = "/v1/chat/completions"


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"json": {"messages": list(messages), **more}}


USER = {"role": "user", "content": "hi"}
CALLS = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]}
SESSION = {"X-Talaria-Session": "one"}
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
TOOL = {"type": "function", "function": {"name": "f"}}

BAD_INPUT: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", MESSAGES, {"data": b""}, 400, "no body"),
    ("POST", MESSAGES, {"data": b'{"text": "a"'}, 400, "ends too early"),
    ("POST", MESSAGES, {"data": b'{"text": @}'}, 400, "byte 9"),
    ("POST", MESSAGES, {"data": b'{"text": "\xff"}'}, 400, "UTF-8"),
    ("POST", MESSAGES, {"data": b"[" * 100_000}, 400, ""),
    ("POST", MESSAGES, {"data": b'{"text": "a", "x": ' + b"[" * 90_000}, 400, "nested too deeply"),
    ("POST", MESSAGES, {"json": []}, 400, "expected `object`, got `array`"),
    ("POST", MESSAGES, {"json": {}}, 400, "`text`"),
    ("POST", MESSAGES, {"json": {"text": 5}}, 400, "field `text`: expected `str`, got `int`"),
    ("POST", MESSAGES, {"json": {"text": "  "}}, 400, "`text` is empty"),
    ("POST", MESSAGES, {"json": {"text": "a", "model": 1}}, 400, "field `model`"),
    ("POST", MESSAGES, {"json": {"text": "a", "files": ["f"]}}, 404, "no file f"),
    ("POST", MESSAGES, {"json": {"text": "a", "files": [1]}}, 400, "`files[0]`"),
    ("POST", MESSAGES, {"json": {"text": "a", "files": ["../../http.token"]}}, 404, "no file ../"),
    ("POST", MESSAGES, {"json": {"text": "a", "files": ["f"] * 11}}, 400, "too many"),
    ("POST", MESSAGES + "?wait=soon", {"json": {"text": "a"}}, 400, "wait='soon'"),
    ("POST", MESSAGES + "?wait=nan", {"json": {"text": "a"}}, 400, "wait='nan'"),
    ("POST", MESSAGES + "?wait=-1", {"json": {"text": "a"}}, 400, "wait='-1'"),
    ("POST", MESSAGES, {"json": {"text": "a"}, "headers": {"Idempotency-Key": "k" * 256}}, 400, "256"),
    ("POST", MESSAGES, {"json": {"text": "a"}, "headers": {"Idempotency-Key": ""}}, 400, "0 characters"),
    ("POST", "/api/sessions/no name/messages", {"json": {"text": "a"}}, 400, "'no name'"),
    ("POST", f"/api/sessions/{'n' * 129}/messages", {"json": {"text": "a"}}, 400, "not a valid session name"),
    ("POST", "/api/sessions/ses_unknown/messages", {"json": {"text": "a"}}, 404, "ses_unknown"),
    ("GET", "/api/sessions/never", {}, 404, "never"),
    ("GET", "/api/sessions/never/entries", {}, 404, "never"),
    ("POST", "/api/sessions/never/end", {}, 404, "never"),
    ("GET", "/api/sessions?limit=0", {}, 400, "`limit`: expected `int` >= 1"),
    ("GET", "/api/sessions?limit=many", {}, 400, "`limit`: expected `int`"),
    ("GET", "/api/sessions?limit=" + "0" * 5000 + "1", {}, 400, "`limit`: expected `int`"),
    ("GET", "/api/sessions?limit=000000001000000000", {}, 400, "`limit`: expected `int`"),
    ("GET", "/api/sessions?" + "a=b&" * 60, {}, 400, "more than 50 fields"),
    ("GET", "/api/sessions?limit=501", {}, 400, "`limit`: expected `int` <= 500"),
    ("GET", "/api/sessions?limit=١", {}, 400, "`limit`: expected `int`"),
    ("GET", "/api/sessions?after=" + "9" * 5000, {}, 400, "`after`: expected `str` of length <= 200"),
    ("GET", "/api/sessions?after=" + "9" * 5000 + "~x", {}, 400, "`after`: expected `str` of length <= 200"),
    ("POST", MESSAGES + "?wait=" + "9" * 5000, {"json": {"text": "a"}}, 400, "no number of seconds"),
    ("POST", MESSAGES + "?wait=1e400", {"json": {"text": "a"}}, 400, "no number of seconds"),
    ("POST", MESSAGES + "?wait=1_0", {"json": {"text": "a"}}, 400, "no number of seconds"),
    ("GET", "/api/turns/x/events", {"headers": {"Last-Event-ID": "0" * 5000}}, 400, "Last-Event-ID"),
    ("GET", "/api/sessions?after=nowhere", {}, 400, "nowhere"),
    ("GET", "/api/turns/turn_unknown", {}, 404, "turn_unknown"),
    ("GET", "/api/turns/turn_unknown/events", {}, 404, "turn_unknown"),
    ("POST", "/api/turns/turn_unknown/cancel", {}, 404, "turn_unknown"),
    ("GET", "/api/turns/x/events", {"headers": {"Last-Event-ID": "x"}}, 400, "Last-Event-ID"),
    ("POST", MESSAGES, {"data": b'{"text": "a", "x": [' + b"0," * 120_000 + b"0]}"}, 413, "too many values"),
    ("POST", MESSAGES, {"data": b'{"text": "a", "x": [' + b"{}," * 60_000 + b"0]}"}, 413, "too many values"),
    ("POST", CHAT, chat(*[USER] * 5001), 413, "5001 messages"),
    ("POST", CHAT, {"json": {}}, 400, "`messages`"),
    ("POST", CHAT, chat(), 400, "`messages`"),
    ("POST", CHAT, chat(USER, n=2), 400, "`n`"),
    ("POST", CHAT, chat(USER, temperature="hot"), 400, "`temperature`"),
    ("POST", CHAT, chat(USER, max_tokens=0), 400, "`max_tokens`"),
    ("POST", CHAT, chat(USER, max_completion_tokens=2**63), 400, "`max_completion_tokens`"),
    ("POST", CHAT, chat(USER, max_tokens=10**30), 400, "`max_tokens`"),
    ("POST", CHAT, chat(USER, reasoning_effort="huge"), 400, "`reasoning_effort`"),
    ("POST", CHAT, chat({"role": "wizard", "content": "a"}), 400, "`messages[0].role`"),
    ("POST", CHAT, chat({"role": "user"}), 400, "`messages[0].content`"),
    (
        "POST",
        CHAT,
        chat({"role": "user", "content": [{"type": "song"}]}),
        400,
        "`messages[0].content[0].type`",
    ),
    (
        "POST",
        CHAT,
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc"}}]}),
        400,
        "`messages[0].content[0].image_url.url`",
    ),
    ("POST", CHAT, chat(USER, {"role": "tool", "tool_call_id": "c1", "content": ""}), 400, "`messages[1]`"),
    ("POST", CHAT, chat(USER, CALLS), 400, "`messages[1].tool_calls`"),
    (
        "POST",
        CHAT,
        chat(USER, CALLS, {"role": "tool", "tool_call_id": "c2", "content": ""}),
        400,
        "`messages[2].tool_call_id`",
    ),
    (
        "POST",
        CHAT,
        chat(USER, CALLS, *[{"role": "tool", "tool_call_id": "c1", "content": ""}] * 2),
        400,
        "`messages[3].tool_call_id`",
    ),
    ("POST", CHAT, chat(USER, tools=[TOOL, TOOL]), 400, "`tools[1].function.name`"),
    ("POST", CHAT, chat(USER, tools=[{"type": "function"}]), 400, "`tools[0].function`"),
    (
        "POST",
        CHAT,
        {"data": b'{"messages": [{"role": "user", "content": "a"}], "tool_choice": "\xff"}'},
        400,
        "UTF-8",
    ),
    ("POST", CHAT, chat(USER, tools=[TOOL]) | {"headers": SESSION}, 400, "`tools`"),
    ("POST", CHAT, chat({"role": "system", "content": "a"}) | {"headers": SESSION}, 400, "role user"),
    ("POST", CHAT, chat({"role": "user", "content": ""}) | {"headers": SESSION}, 400, "empty"),
    ("POST", CHAT, chat(USER) | {"headers": {"X-Talaria-Session": "a/b"}}, 400, "'a/b'"),
    ("POST", CHAT, chat(USER, model="nonesuch"), 404, "nonesuch"),
    ("GET", "/nowhere", {}, 404, "/nowhere"),
    ("GET", "/api/sessions/", {}, 404, "/api/sessions/"),
    ("DELETE", MESSAGES, {}, 405, "DELETE"),
    ("POST", "/healthz", {}, 405, "POST"),
    ("POST", "/api/files", {"data": b""}, 400, "empty"),
    ("POST", "/api/files", {"data": {"a": "b"}, "headers": FORM}, 415, "form"),
    ("POST", "/api/files", {"data": BytesIO(b"x" * (21 << 20))}, 413, "larger than 20.0 MiB"),
    ("GET", "/api/files/file_" + "0" * 32, {}, 404, "no file"),
    ("POST", "/api/login", {"json": {}}, 400, "`code`"),
    ("POST", "/api/login", {"json": {"code": "K" * 5000}}, 413, "larger than 4.0 KiB"),
    ("GET", "/api/pool", {"headers": {"Host": "evil.example"}}, 421, "evil.example"),
    ("GET", "/healthz", {"headers": {"Host": "evil.example"}}, 421, "evil.example"),
    ("GET", "/api/pool", {"headers": {"Origin": "http://evil.example"}}, 403, "evil.example"),
    ("GET", "/api/pool", {"headers": {"Origin": "null"}}, 403, "null"),
    ("GET", "/api/pool", {"headers": {"Authorization": ""}}, 401, "token"),
    ("GET", "/api/pool", {"headers": {"Authorization": "Bearer wrong"}}, 401, "wrong"),
    ("GET", "/api/pool", {"headers": {"Authorization": f"Basic {TOKEN}"}}, 401, "token"),
    ("GET", "/api/pool", {"headers": {"Authorization": f"Bearer {TOKEN}x"}}, 401, "token"),
    ("GET", "/nowhere", {"headers": {"Authorization": ""}}, 401, "token"),
    ("GET", "/metrics", {"headers": {"Authorization": ""}}, 401, "token"),
]


def check(body: bytes, says: str = "") -> dict[str, str]:
    error: dict[str, str] = json.loads(body)["error"]
    assert error.keys() - {"code", "param"} == {"type", "message", "hint"}
    assert error["message"]
    assert error["hint"]
    assert says.lower() in error["message"].lower()
    assert "Traceback" not in error["message"] + error["hint"]
    assert TOKEN not in body.decode()
    return error


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """One gateway for the whole table: a refusal leaves nothing behind."""
    home = tmp_path_factory.mktemp("home")
    async with ModelServer() as model, in_process(home, model) as api:
        yield api
        assert model.requests == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("method", "path", "request_", "status", "says"),
    BAD_INPUT,
    ids=[f"{status} {says or n}" for n, (_, _, _, status, says) in enumerate(BAD_INPUT)],
)
async def test_bad_input_is_refused_with_words(
    shared_api: Api, method: str, path: str, request_: dict[str, Any], status: int, says: str
) -> None:
    async with shared_api.client.request(method, shared_api.url + path, **request_) as response:
        body = await response.read()
        assert response.status == status, body
        check(body, says)
        assert "WWW-Authenticate" in response.headers or status != 401
        assert response.headers.get("Allow") or status != 405
    assert (await shared_api.get("/api/status"))["owed"]["turns"] == 0


async def test_another_body_under_a_known_key_is_refused(api: Api) -> None:
    key = {"Idempotency-Key": "k"}
    await api.say("one", "hello", headers=key)
    refused = await api.say("one", "other", headers=key, status=422)
    assert refused["error"]["type"] == "idempotency_conflict"


@asynccontextmanager
async def connected(api: Api) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = api.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


def head(api: Api, *headers: str) -> bytes:
    lines = (f"POST {MESSAGES} HTTP/1.1", f"Host: {api.url.removeprefix('http://')}", *headers)
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:] if line)
    assert fields["connection"] == "close"
    return int(lines[0].split()[1]), await reader.readexactly(int(fields["content-length"]))


# -- uploads ----------------------------------------------------------------------------------------------

HUGE = 60 << 20
LARGE = 8 << 20  # more than the buffers of a connection hold


async def test_an_announced_upload_is_refused_before_it_is_read(api: Api) -> None:
    async with connected(api) as (reader, writer):
        writer.write(head(api, f"Content-Length: {HUGE}", f"Authorization: Bearer {TOKEN}"))
        status, body = await read_answer(reader)
    assert status == 413
    check(body, "32.0 MiB")


async def test_an_unannounced_upload_is_refused_where_it_grows_too_large(api: Api) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(HUGE >> 20):
            yield b" " * (1 << 20)

    async with api.client.post(api.url + MESSAGES, data=pieces()) as response:
        assert response.status == 413
        check(await response.read())


async def test_who_sends_all_before_reading_still_hears_why(api: Api) -> None:
    """Closing on unread data would reset the connection under the sender."""
    async with connected(api) as (reader, writer):
        writer.write(head(api, f"Content-Length: {LARGE}"))
        for _ in range(LARGE >> 20):
            writer.write(bytes(1 << 20))
            await writer.drain()
        status, body = await read_answer(reader)
    assert status == 401
    check(body, "token")


async def test_commas_in_a_text_are_no_values(api: Api) -> None:
    text = "a, {},, b" * 5_000
    turn = await api.say("one", text)
    assert turn["reply"] == f"You said: {text}"


# -- below HTTP -------------------------------------------------------------------------------------------


async def speak(api: Api, data: bytes) -> tuple[int, bytes]:
    async with connected(api) as (reader, writer):
        writer.write(data)
        answer = await read_answer(reader)
        assert await reader.read() == b"", "the gateway closes the connection"
    return answer


async def test_what_is_no_http_is_told_so(api: Api) -> None:
    status, body = await speak(api, b"hello there\r\n\r\n")
    assert status == 400
    check(body, "not valid HTTP")


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000, "64 KiB"),
        (b"GET /" + b"y" * 100_000, "8 KiB"),
        (b"GET /" + b"%" * 9000 + b" HTTP/1.1\r\n\r\n", "8 KiB"),
    ],
)
async def test_an_endless_head_is_cut_off(api: Api, head: bytes, says: str) -> None:
    status, body = await speak(api, head)
    assert status == 431
    check(body, says)


async def test_a_length_of_5000_digits_is_refused(api: Api) -> None:
    length = "0" * 5000 + "2"
    status, body = await speak(
        api, head(api, f"Content-Length: {length}", f"Authorization: Bearer {TOKEN}") + b"{}"
    )
    assert status == 400
    check(body, "Content-Length")


async def test_a_second_host_header_is_refused(api: Api) -> None:
    host = api.url.removeprefix("http://").encode()
    status, body = await speak(
        api, b"GET /healthz HTTP/1.1\r\nHost: evil\r\nHost: %b\r\nConnection: close\r\n\r\n" % host
    )
    assert status == 400
    check(body, "more than once")
