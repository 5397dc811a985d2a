"""`GET /api/events`: the states of all turns that the caller may see."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from channels.http.test_events import Sse, metrics, read
from channels.http.test_roles import add_token, bearer
from support.gateway import TOKEN, Api, in_process
from talaria.channels.http.response import StreamTiming
from talaria.core.ids import ChatKey, TurnId
from talaria.core.turns import Turn
from talaria.testing.model_server import ModelServer
from talaria.turns.feed import RecordChange, StateFeed, TurnChange


@asynccontextmanager
async def listen(api: Api, headers: Mapping[str, str] = {}) -> AsyncIterator[AsyncIterator[Sse]]:
    """The events of a listener that was told all open turns."""
    async with open_feed(api, headers) as events:
        async for _, name, _ in events:
            if name == "ready":
                break
        yield events


@asynccontextmanager
async def open_feed(api: Api, headers: Mapping[str, str] = {}) -> AsyncIterator[AsyncIterator[Sse]]:
    async with api.client.get(f"{api.url}/api/events", headers=dict(headers)) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        yield read(response)


async def until_final(events: AsyncIterator[Sse], turn_id: str) -> list[Sse]:
    told = []
    async for event in events:
        if "state" not in event[2]:
            continue
        told.append(event)
        if event[2]["id"] == turn_id and event[2]["state"] in ("done", "failed", "cancelled"):
            return told
    raise AssertionError("the stream ended early")


async def test_every_state_of_a_turn_is_told_with_its_model_times_and_cost(api: Api) -> None:
    async with listen(api) as events:
        first = await api.begin("one", "[[hang]] first")
        second = await api.begin("one", "second")
        await api.post(f"/api/turns/{first}/cancel")
        told = await until_final(events, second)
    states = [(data["id"], name) for _, name, data in told]
    assert states == [
        (first, "running"),
        (second, "accepted"),
        (first, "cancelled"),
        (second, "running"),
        (second, "done"),
    ]
    last = told[-1][2]
    assert all(name == data["state"] for _, name, data in told)
    assert (last["channel"], last["chat_key"]) == ("http", "agent:main:http:api:one")
    assert (last["text"], last["model"], last["error"]) == ("second", "scripted/scripted", None)
    assert last["usage"]["input"] > 0
    assert last["cost_usd"] is not None
    assert last["accepted_at"] <= last["ended_at"] <= last["at"]


async def test_a_listener_begins_with_the_turns_that_are_not_over(api: Api) -> None:
    await api.say("one", "over")
    hanging = await api.begin("one", "[[hang]]")
    waiting = await api.begin("one", "next")
    async with open_feed(api) as events:
        told = [await anext(events) for _ in range(3)]
    assert [(name, data.get("id")) for _, name, data in told] == [
        ("running", hanging),
        ("accepted", waiting),
        ("ready", None),
    ]
    assert told[-1][2] == {"turns": 2}
    await api.post(f"/api/turns/{waiting}/cancel")
    await api.post(f"/api/turns/{hanging}/cancel")


async def test_a_listener_that_comes_back_is_told_what_ended_meanwhile(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model) as api:
        async with listen(api) as events:
            turn = await api.begin("one", "last")
            seen = (await until_final(events, turn))[-1][0]
        failed = await api.say("one", "[[status 400]]")
    async with in_process(tmp_path, model) as api:
        told = await first_events(api, seen)
        assert await first_events(api, seen + 3_600_000) == []
    assert [(data["id"], name) for _, name, data in told] == [(turn, "done"), (failed["id"], "failed")]
    assert (told[0][2]["model"], told[0][2]["cost_usd"]) == ("scripted/scripted", "0.00")
    assert told[1][2]["error"]["type"] == failed["error"]["type"]


async def first_events(api: Api, last: int) -> list[Sse]:
    """The turns that are told before `ready`."""
    told = []
    async with open_feed(api, {"Last-Event-ID": str(last)}) as events:
        async for event in events:
            if event[1] == "ready":
                break
            if event[1] != "reset":
                told.append(event)
    return told


async def test_a_listener_that_was_away_for_too_long_is_told_so(api: Api) -> None:
    for n in range(0, 200, 25):
        await asyncio.gather(*(api.say(f"s{n + m}", "/help") for m in range(25)))
    async with open_feed(api, {"Last-Event-ID": "1"}) as events:
        assert (await anext(events))[1:] == ("reset", {})
        _, name, data = await anext(events)
    assert (name, data) == ("lagged", {"missed": None})


async def test_a_caller_that_chats_hears_of_its_own_turns_only(api: Api) -> None:
    mine, other = bearer(await add_token(api, "mine", "chat")), bearer(await add_token(api, "other", "chat"))
    reader = bearer(await add_token(api, "reader", "read"))
    async with listen(api, mine) as own, listen(api, reader) as everything:
        theirs = await api.say("one", "not yours", headers=other)
        shared = await api.say("one", "nor this")
        call = {"messages": [{"role": "user", "content": "stateless"}]}
        await api.post("/v1/chat/completions", call, headers=mine)
        yours = (await api.say("one", "yours", headers=mine))["id"]
        heard = {data["chat_key"] for _, _, data in await until_final(own, yours)}
        told = {data["id"] for _, _, data in await until_final(everything, yours)}
    assert len(heard) == 2
    assert all(":mine:" in key for key in heard)
    assert {theirs["id"], shared["id"], yours} < told


async def test_listeners_are_limited_and_leave_nothing_behind(tmp_path: Path, model: ModelServer) -> None:
    tables = {"limits": {"event_listeners": 2}}
    async with in_process(tmp_path, model, tables=tables) as api:
        async with listen(api), listen(api):
            refused = await api.get("/api/events", 503)
            assert "limits.event_listeners = 2" in refused["error"]["hint"]
        while "talaria_event_streams 0.0" not in await metrics(api):
            await asyncio.sleep(0)
        assert not api.gateway.turns.live.feed.listeners
        async with listen(api):
            pass


async def test_a_silent_feed_is_kept_alive_and_ends_with_the_drain(
    tmp_path: Path, model: ModelServer
) -> None:
    async with aiohttp.ClientSession(headers=bearer(TOKEN)) as client:
        async with in_process(tmp_path, model, timing=StreamTiming(0.05, 0.05)) as api:
            response = await client.get(f"{api.url}/api/events")
            while await response.content.readline() != b": keep-alive\n":
                pass
            turn_id = await api.begin("one", "[[hang]]")
        rest = await response.text()  # ends by itself
    assert turn_id in rest
    assert "event: done" not in rest


async def test_head_ends_at_once(api: Api) -> None:
    async with api.client.head(f"{api.url}/api/events") as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
    assert (await api.get("/api/events", 400, headers={"Last-Event-ID": "soon"}))["error"]["type"]


async def test_a_lagging_client_is_told_how_many_changes_it_missed(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model) as api:
        host, _, port = api.url.removeprefix("http://").partition(":")
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=client, limit=4096)
        head = f"GET /api/events HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        writer.write(head.encode())
        await reader.readuntil(b"event: ready")
        feed = api.gateway.turns.live.feed
        turn = (await api.say("one", "hello " * 20))["id"]
        row = (await api.gateway.turns.find(TurnId(turn))).turn
        [listener] = feed.listeners
        # As many changes as fill every buffer on the way, and then the listener's.
        n = 0
        while not listener.missed:
            for _ in range(500):
                n += 1
                listener.put(change_of(row, n))
            await asyncio.sleep(0)
        text = bytearray()
        while b'"turn_%d"' % n not in text[-70_000:]:
            text += await reader.read(65536)
        writer.close()
        shown = len(set(re.findall(rb'"id":"turn_(\d+)"', text)))
        missed = [int(count) for count in re.findall(rb'"missed":(\d+)', text)]
        assert missed and shown + sum(missed) == n


def change_of(row: Turn, n: int) -> TurnChange:
    return msgspec.structs.replace(TurnChange.of(row, float(n)), id=TurnId(f"turn_{n}"))


# -- changes of sessions, questions and jobs --------------------------------------------------------------

ASK = '[[call ask_user {"question":"Which?","choices":["red","blue"]}]]'


async def until(events: AsyncIterator[Sse], what: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the changes of records up to the first one named `what`."""
    told = []
    async for _, name, data in events:
        if "." in name:
            told.append((name, data))
            if name == what:
                return told
    raise AssertionError("the stream ended early")


async def test_a_session_a_question_and_its_decision_are_told(api: Api) -> None:
    async with listen(api) as events:
        turn = await api.begin("one", ASK)
        created, asked = await until(events, "question.asked")
        session = (await api.get("/api/sessions/one"))["id"]
        assert (created[0], created[1]["id"], created[1]["channel"]) == ("session.created", session, "http")
        question = (await api.get("/api/approvals"))["items"][0]["id"]
        key = "agent:main:http:api:one"
        assert asked[1]["id"] == question
        assert (asked[1]["session_id"], asked[1]["turn_id"], asked[1]["chat_key"]) == (session, turn, key)
        await api.post(f"/api/approvals/{question}", {"answer": "blue"})
        [(_, decided)] = await until(events, "question.decided")
        assert (decided["id"], decided["decision"], decided["by"]) == (question, "blue", "api")
        assert (await until_over(api, turn))["state"] == "done"
        await patch(api, "/api/sessions/one", {"title": "Colours"})
        assert (await until(events, "session.titled"))[-1][1]["title"] == "Colours"
        await api.post("/api/sessions/one/end")
        assert (await until(events, "session.ended"))[-1][1]["id"] == session
        await delete(api, f"/api/sessions/{session}")
        assert (await until(events, "session.deleted"))[-1][1]["id"] == session


async def test_jobs_are_told_to_those_who_see_their_chat(api: Api) -> None:
    other = bearer(await add_token(api, "other", "chat"))
    async with listen(api) as events, listen(api, other) as theirs:
        job = (await api.post("/api/jobs", {"text": "stretch", "every": "1h"}, 201))["id"]
        await patch(api, f"/api/jobs/{job}", {"state": "paused"})
        await delete(api, f"/api/jobs/{job}")
        told = await until(events, "job.removed")
        assert [(name, data["id"]) for name, data in told] == [
            ("job.saved", job),
            ("job.saved", job),
            ("job.removed", job),
        ]
        await api.say("own", "hello", headers=other)
        assert [name for name, _ in await until(theirs, "session.created")] == ["session.created"]


async def test_a_listener_that_comes_back_gets_the_changes_of_records_or_reads_its_lists_again(
    api: Api,
) -> None:
    async with listen(api):  # somebody listens all the time, so changes are kept
        async with listen(api) as events:
            turn = await api.begin("one", ASK)
            seen = (await until(events, "question.asked"))[-1][1]["at"]
        await api.post(f"/api/turns/{turn}/cancel")
        await patch(api, "/api/sessions/one", {"title": "Colours"})
        async with open_feed(api, {"Last-Event-ID": str(int(seen * 1000) + 1)}) as events:
            first = (await anext(events))[1]
            while first == "question.asked":  # told after it was asked, so it may come again
                first = (await anext(events))[1]
            assert first == "session.titled"
    async with open_feed(api, {"Last-Event-ID": str(int(seen * 1000))}) as events:
        assert (await anext(events))[1:] == ("reset", {})
    assert api.gateway.turns.live.feed.records_since(seen) is None, "nothing is kept while nobody listens"


def test_a_change_that_is_told_late_is_not_left_out_for_a_listener_that_comes_back() -> None:
    """The gateway tells of a question when it is on disk, which is after the time that it was asked at."""
    feed = StateFeed(partial(next, count(10.0)))
    with feed.listen(lambda chat: True, wants_records=True):
        feed.note(RecordChange("session.titled", "ses_a", ChatKey("agent:main:http:api:a"), 10.9))
        late = RecordChange("question.asked", "q_1", ChatKey("agent:main:http:api:a"), 10.5)
        feed.note(late)
        assert feed.records_since(11.5) == [late], "its own time is before that"
        ahead = RecordChange("session.titled", "ses_b", ChatKey("agent:main:http:api:b"), 99.0)
        feed.pass_on(ahead)  # by a gateway whose clock is ahead
        assert [change.at for change in feed.records_since(12.5) or ()] == [13.0]


async def patch(api: Api, path: str, body: dict[str, str]) -> None:
    async with api.client.patch(api.url + path, json=body) as response:
        assert response.status == 200, await response.text()


async def delete(api: Api, path: str) -> None:
    async with api.client.delete(api.url + path) as response:
        assert response.status == 200, await response.text()


async def until_over(api: Api, turn: str) -> dict[str, Any]:
    await (await api.gateway.turns.find(TurnId(turn))).settled
    found: dict[str, Any] = await api.get(f"/api/turns/{turn}")
    return found
