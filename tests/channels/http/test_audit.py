"""Audit lines: who operated, from where, on what, and how it ended; no secret, and no line for strangers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from support.gateway import TOKEN, Api
from support.waiting import until
from talaria.access.callers import AuditLog
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender
from talaria.testing.clock import FakeClock

Line = tuple[str, str, str, str]


@pytest.fixture
async def lines(api: Api, caplog: pytest.LogCaptureFixture) -> AsyncIterator[list[Line]]:
    """The lines so far: action, who, about, result. All of them come from this machine."""
    logging.getLogger("talaria").setLevel(logging.ERROR)  # audit lines do not depend on it
    found = _Lines(caplog)
    yield found
    logging.getLogger("talaria").setLevel(logging.NOTSET)
    assert TOKEN not in caplog.text
    for record in caplog.records:
        if record.name == "talaria.audit":
            assert vars(record)["address"] == "127.0.0.1"


class _Lines(list[Line]):
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self) -> list[Line]:
        records = [vars(each) for each in self._caplog.records if each.name == "talaria.audit"]
        lines = [(each["msg"] % each["args"], each["who"], each["about"], each["result"]) for each in records]
        new = lines[len(self) :]
        self.extend(new)
        return new


async def add_token(api: Api, name: str, role: str) -> dict[str, str]:
    secret = (await api.post("/api/tokens", {"name": name, "role": role}, 201))["secret"]
    return {"Authorization": f"Bearer {secret}"}


async def test_what_operates_is_told_with_its_result(api: Api, lines: Any) -> None:
    ops = await add_token(api, "ops", "operate")
    assert lines.take() == [("token.add", "home", "ops (operate)", "done")]
    code = (await api.post("/api/pairings/invite", {"channel": "telegram"}, headers=ops))["code"]
    await api.post("/api/pairings/approve", {"code": code}, 404, headers=ops)
    await api.post("/api/pairings/revoke", {"channel": "telegram", "user": "1"}, 404)
    await api.post("/api/backup")
    await api.post("/api/tokens/revoke", {"name": "ops"})
    assert lines.take() == [
        ("pair.invite", "token:ops", "telegram", "done"),
        ("pair.approve", "token:ops", "", "not_found"),
        ("pair.revoke", "home", "telegram:1", "not_found"),
        ("backup", "home", "", "done"),
        ("token.revoke", "home", "ops", "done"),
    ]
    assert all(code not in str(line) for line in lines)


async def test_copy_of_the_database_that_no_caller_fetches_is_deleted(api: Api) -> None:
    left = await api.gateway.snapshot(seconds=0.0)
    await until(lambda: not left.exists(), pause=0)
    gone = asyncio.create_task(api.gateway.snapshot())
    await until(lambda: list(api.gateway.home.path.glob(".snapshot-*")), pause=0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await until(lambda: not list(api.gateway.home.path.glob(".snapshot-*")), pause=0)


async def test_a_login_is_told_from_its_beginning_to_its_end(api: Api, lines: Any) -> None:
    async with aiohttp.ClientSession(api.url, headers={"Origin": api.url}) as browser:
        code = (await api.post("/api/login/codes", None, 201))["code"]
        async with browser.post("/api/login", json={"code": code}) as response:
            (cookie,) = response.cookies.values()
            secret = (await response.json())["secret"]
        page = {"Cookie": f"{cookie.key}={cookie.value}", "X-Talaria-Login": secret}
        async with browser.post("/api/logout", headers=page) as response:
            assert response.status == 204
    (made, begun, ended) = lines.take()
    assert made == ("login.code", "home", "", "done")
    assert (begun[0], ended[0]) == ("login", "logout")
    assert begun[1] == ended[1]
    assert begun[1].startswith("login:")
    told = str((made, begun, ended))
    assert not any(each in told for each in (code, secret, cookie.value))


async def test_strangers_leave_no_line(api: Api, lines: Any) -> None:
    async with aiohttp.ClientSession(api.url) as stranger:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "talaria_login=x"}):
            for path in ("/api/backup", "/api/tokens", "/api/login"):
                async with stranger.post(path, json={"code": "wrong"}, headers=headers) as response:
                    assert response.status == 401
    assert lines.take() == []


async def test_a_caller_without_the_role_is_told_of_once_an_hour(api: Api, lines: Any) -> None:
    phone = await add_token(api, "phone", "chat")
    lines.take()
    for _ in range(5):
        await api.post("/api/backup", status=403, headers=phone)
    assert lines.take() == [("backup", "token:phone", "", "forbidden")]


async def test_chats_of_others_are_told_of_and_own_ones_are_not(api: Api, lines: Any) -> None:
    phone, monitor = await add_token(api, "phone", "chat"), await add_token(api, "monitor", "read")
    lines.take()
    mine, ours = await api.say("demo", "mine", headers=phone), await api.say("demo", "ours")
    for turn, headers in ((mine, phone), (ours, {})):
        await api.get(f"/api/sessions/{turn['session_id']}/entries", headers=headers)
        await api.get(f"/api/turns/{turn['id']}", headers=headers)
    assert lines.take() == []

    key = "agent:main:http:token:phone:demo"
    for _ in range(3):
        await api.get(f"/api/sessions/{mine['session_id']}/entries", headers=monitor)
        await api.get(f"/api/turns/{mine['id']}", headers=monitor)
    await api.say(mine["session_id"], "from the operator")
    await api.post(f"/api/turns/{mine['id']}/cancel")
    await api.post(f"/api/sessions/{mine['session_id']}/end")
    assert lines.take() == [
        ("session.read", "token:monitor", key, "done"),
        ("turn.read", "token:monitor", key, "done"),
        ("message.send", "home", key, "done"),
        ("turn.cancel", "home", key, "done"),
        ("session.end", "home", key, "done"),
    ]


async def test_chats_of_people_on_other_channels_are_those_of_others(api: Api, lines: Any) -> None:
    key = ChatAddress("main", "telegram", "dm", "7").key()
    live = await api.gateway.turns.submit(Inbound(key, Sender("7", "Ann"), (Text("hi"),)))
    await live.settled
    await api.get(f"/api/sessions/{live.turn.session_id}")
    assert lines.take() == [("session.read", "home", key, "done")]


def test_a_repeated_line_is_written_once_an_hour_and_few_are_remembered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    audit = AuditLog(clock)
    for seconds in (0, 3599, 1):
        clock.advance(seconds)
        audit.note_hourly("session.read", "home", "", "chat", "done")
    assert len(caplog.records) == 2
    for number in range(3000):
        audit.note_hourly("session.read", "home", "", f"chat {number}", "done")
    audit.note_hourly("session.read", "home", "", "chat", "done")
    assert len(caplog.records) == 3003, "the oldest was forgotten, so it is written again"


def test_refused_calls_of_one_caller_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A caller without the role can name any number of chats. Other callers keep their lines."""
    clock = FakeClock()
    audit = AuditLog(clock)
    for number in range(1000):
        audit.note_hourly("session.read", "token:low", "127.0.0.1", f"chat {number}", "forbidden")
    audit.note_hourly("session.read", "token:other", "127.0.0.1", "chat 1", "forbidden")
    audit.note("backup", "token:low", "127.0.0.1", "", "done")
    found = [vars(each) for each in caplog.records if each.name == "talaria.audit"]
    assert len(found) == 103
    assert (found[100]["message"], found[100]["who"]) == ("lines.limited", "token:low")
    assert [each["who"] for each in found[101:]] == ["token:other", "token:low"]
    clock.advance(3601)
    audit.note_hourly("session.read", "token:low", "127.0.0.1", "chat 1", "forbidden")
    found = [vars(each) for each in caplog.records if each.name == "talaria.audit"]
    assert [(each["message"], each["about"]) for each in found[103:]] == [
        ("lines.left_out", "900"),
        ("session.read", "chat 1"),
    ]
