"""What the client of the command line sends to a gateway, and what it makes of each answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from talaria.console.gateway_client import (
    GatewayAddress,
    GatewayBusy,
    GatewayClient,
    GatewayGone,
    GatewayRefusal,
    RetryPolicy,
)
from talaria.core.access import Role
from talaria.core.errors import BadRequest, TalariaError
from talaria.core.events import Delta, Done
from talaria.core.files import SentFile
from talaria.jobs.desk import JobView
from talaria.operations import access, jobs, sessions, status, turns
from talaria.operations.operation import Nothing, PageQuery

Use = Callable[[GatewayClient], Awaitable[Any]]
PERSON = {
    "person": {"channel": "telegram", "user": "7", "name": "Ada"},
    "paired_at": 1.0,
    "origin": "approved",
}
SESSION = {
    "id": "ses_1", "name": "main", "chat_key": "k", "title": "", "created_at": 1.0, "updated_at": 2.0,
    "revision": "1", "ended_at": None,
}  # fmt: skip
JOB: dict[str, Any] = {
    **dict.fromkeys(JobView.__struct_fields__, ""),
    **dict.fromkeys(("reminder", "quiet"), False),
    **dict.fromkeys(("deadline", "retries", "failures", "created_at"), 0),
    **dict.fromkeys(("next_at", "tools"), None),
    "next": [],
}
TOKEN = {"name": "ci", "role": "chat", "created_at": 1.0}


@dataclass
class Gateway:
    """A server that gives the answers of the test, one for each request, and notes the requests."""

    url: str = ""
    answers: list[tuple[int, bytes] | None] = field(default_factory=list)
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)

    def answer(self, *answers: object, status: int = 200) -> None:
        self.answers += [
            (status, one if isinstance(one, bytes) else json.dumps(one).encode()) for one in answers
        ]

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((request.method, request.raw_path, await request.read()))
        self.headers.append(request.headers)
        answer = self.answers.pop(0)
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(status=answer[0], body=answer[1])


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    runner = web.ServerRunner(web.Server(gateway.serve))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    gateway.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield gateway
    await runner.cleanup()


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(GatewayAddress(gateway.url, "secret")) as client:
        yield client


@pytest.mark.parametrize(
    ("use", "request_line", "body", "answer", "result"),
    [
        (lambda c: c.cancel("t/1"), "POST /api/turns/t%2F1/cancel", None, {}, None),
        (lambda c: c.turn("t1"), "GET /api/turns/t1", None, {"a": 1}, b'{"a": 1}'),
        (
            lambda c: c.carry_out(access.approve_pairing, access.ApproveBody("X")),
            "POST /api/pairings/approve",
            {"code": "X"},
            PERSON,
            PERSON,
        ),
        (
            lambda c: c.carry_out(access.add_token, access.AddTokenBody("ci", Role.CHAT, 5.0)),
            "POST /api/tokens",
            {"name": "ci", "role": "chat", "seconds": 5.0},
            {"secret": "s", "token": TOKEN},
            {"secret": "s", "token": TOKEN},
        ),
        (lambda c: c.login_code(), "POST /api/login/codes", None, {"code": "C"}, "C"),
        (
            lambda c: c.carry_out(status.copy_database, Nothing()),
            "POST /api/backup",
            None,
            {"database": "/x"},
            {"database": "/x"},
        ),
        (
            lambda c: c.carry_out(turns.send_message, turns.SendBody("home", "hello"), "key"),
            "POST /api/send",
            {"chat": "home", "text": "hello"},
            {"id": "t1"},
            {"id": "t1"},
        ),
        (
            lambda c: c.carry_out(sessions.list_sessions, PageQuery(3)),
            "GET /api/sessions?limit=3",
            None,
            {"items": [SESSION], "next": None},
            {"items": [SESSION], "next": None},
        ),
        (
            lambda c: c.carry_out(sessions.end_session, sessions.SessionKey("a/b c")),
            "POST /api/sessions/a%2Fb%20c/end",
            None,
            SESSION,
            SESSION,
        ),
        (
            lambda c: c.carry_out(sessions.read_entries, sessions.EntriesQuery(x="ses_1", after="a&b")),
            "GET /api/sessions/ses_1/entries?after=a%26b",
            None,
            {"entries": [], "next": "n"},
            {"entries": [], "next": "n"},
        ),
        (
            lambda c: c.carry_out(jobs.list_jobs, jobs.JobQuery(unfinished=True)),
            "GET /api/jobs?unfinished=true",
            None,
            {"items": [], "next": None},
            {"items": [], "next": None},
        ),
        (
            lambda c: c.carry_out(jobs.edit_job, jobs.JobChange(id="ü", quiet=False, state="paused")),
            "PATCH /api/jobs/%C3%BC",
            {"quiet": False, "state": "paused"},
            JOB,
            JOB,
        ),
        (lambda c: c.status(), "GET /api/status", None, {"ready": True}, {"ready": True}),
        (lambda c: c.models(), "GET /v1/models", None, {"data": [{"id": "a"}, {"id": "b"}]}, ["a", "b"]),
    ],
)
async def test_each_call_is_one_request(
    gateway: Gateway, client: GatewayClient, use: Use, request_line: str, body: Any, answer: Any, result: Any
) -> None:
    gateway.answer(answer)
    found = await use(client)
    ((method, path, sent),) = gateway.requests
    assert f"{method} {path}" == request_line
    assert (json.loads(sent) if sent else None) == body
    assert gateway.headers[0]["Authorization"] == "Bearer secret"
    if body is not None:
        assert gateway.headers[0]["Content-Type"] == "application/json"
    shown = json.loads(msgspec.json.encode(found)) if not isinstance(found, bytes) else found
    assert contains(shown, result)


def contains(found: Any, wanted: Any) -> bool:
    """Return whether all that is wanted is found. Members that have their default may be more."""
    if isinstance(wanted, dict):
        return all(contains(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(contains, found, wanted))
    return bool(found == wanted)


async def test_a_message_has_its_key_and_what_goes_with_it(gateway: Gateway, client: GatewayClient) -> None:
    accepted = {"turn_id": "t1", "session_id": "ses_1", "state": "accepted"}
    gateway.answer(accepted, accepted)
    turn = await client.send("my work", "hi", "key-1")
    assert (turn.turn_id, turn.session_id, turn.state) == ("t1", "ses_1", "accepted")
    await client.send("w", "hi", "key-2", model="m", files=["f1"])
    (first, second) = gateway.requests
    assert (first[:2], json.loads(first[2])) == (
        ("POST", "/api/sessions/my%20work/messages"),
        {"text": "hi"},
    )
    assert json.loads(second[2]) == {"text": "hi", "model": "m", "files": ["f1"]}
    assert [headers["Idempotency-Key"] for headers in gateway.headers] == ["key-1", "key-2"]


async def test_a_file_is_uploaded_as_it_is(gateway: Gateway, client: GatewayClient, tmp_path: Path) -> None:
    path = tmp_path / "a b.txt"
    with pytest.raises(BadRequest, match="cannot be read: No such file"):
        await client.upload(path)
    path.write_bytes(b"\x00content")
    gateway.answer({"id": "f1"})
    assert await client.upload(path) == "f1"
    assert gateway.requests == [("POST", "/api/files?name=a%20b.txt", b"\x00content")]
    assert "json" not in gateway.headers[0]["Content-Type"]


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (404, {"error": {"type": "not_found", "message": "No.", "hint": "H."}}, GatewayRefusal, "No."),
        (
            401,
            {"error": {"type": "auth", "message": "No."}},
            GatewayRefusal,
            "does not accept this home's token",
        ),
        (503, {"error": {"type": "draining", "message": "Bye."}}, GatewayGone, "Bye."),
        (503, {"error": {"type": "overloaded", "message": "Busy."}}, GatewayBusy, "Busy."),
        (502, b"<html>", GatewayRefusal, "HTTP status 502"),
        (502, b"\xff", GatewayRefusal, "HTTP status 502"),
        (400, {"error": {"type": "bad", "message": "Wrong."}}, GatewayRefusal, "Wrong."),
        (200, b"[]", TalariaError, "not what this version expects"),
        (200, b"\xff", TalariaError, "not what this version expects"),
    ],
)
async def test_an_answer_that_is_an_error_says_so(
    gateway: Gateway, client: GatewayClient, status: int, body: Any, kind: type[TalariaError], text: str
) -> None:
    gateway.answer(body, status=status)
    with pytest.raises(TalariaError, match=text) as error:
        await client.carry_out(sessions.show_session, sessions.SessionKey("x"))
    assert type(error.value) is kind
    if status == 404:
        assert (error.value.type, error.value.hint) == ("not_found", "H.")


async def test_a_gateway_that_is_gone_is_told_and_found_again_at_its_new_address(gateway: Gateway) -> None:
    told: list[str] = []
    nowhere = GatewayAddress("http://127.0.0.1:1", "old")
    found = iter([None, GatewayAddress(gateway.url, "new")])
    policy = RetryPolicy(60, lambda error: told.append(error.user_text), lambda: told.append("back"))
    gateway.answer({"turn_id": "t1", "session_id": "ses_1", "state": "accepted"})
    async with GatewayClient(nowhere, lambda: next(found)) as client:
        assert not client.is_inside
        await client.send("main", "hi", "k", retry=policy)
        assert client.url == gateway.url
    assert told == ["The gateway at http://127.0.0.1:1 cannot be reached: nothing answers there.", "back"]
    assert gateway.headers[0]["Authorization"] == "Bearer new"


async def test_without_retries_a_lost_connection_is_told_at_once(
    gateway: Gateway, client: GatewayClient
) -> None:
    assert client.is_inside
    gateway.answers += [None]
    with pytest.raises(GatewayGone, match="the connection was lost"):
        await client.send("main", "hi", "k")
    assert len(gateway.requests) == 1


def stream(*events: tuple[str, str, object]) -> bytes:
    return "".join(
        f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n" for number, name, data in events
    ).encode()


async def test_events_go_on_behind_the_last_one_after_a_lost_connection(
    gateway: Gateway, client: GatewayClient
) -> None:
    gateway.answer(
        stream(("1", "delta", {"text": "a"}), ("2", "unheard.of", {}), ("3", "delta", {"text": 5})),
        stream(("4", "delta", {"text": "b"}), ("5", "done", {"reply": "ab"}), ("6", "delta", {"text": "c"})),
    )
    async with aclosing(client.follow("t/1")) as events:
        assert [event async for event in events] == [Delta("a"), Delta("b"), Done("ab")]
    assert [path for _, path, _ in gateway.requests] == ["/api/turns/t%2F1/events"] * 2
    assert [headers.get("Last-Event-ID") for headers in gateway.headers] == [None, "3"]
    assert gateway.headers[0]["Accept"] == "text/event-stream"


async def test_sent_files_are_named_with_their_place(gateway: Gateway, client: GatewayClient) -> None:
    file = SentFile("f1", "a.txt", "text/plain", 3)
    gateway.answer({"error": {"type": "x", "message": "No."}}, status=500)
    (line,) = await client.describe_files("t1", [file])
    assert "a.txt" in line
    assert "GET /api/files/f1" in line
