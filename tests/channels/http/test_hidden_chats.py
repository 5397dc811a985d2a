"""A caller cannot find out which chats exist that it may not see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.http.test_approvals import settled, waiting
from channels.http.test_roles import add_token, bearer
from support.gateway import Api, in_process
from talaria.testing.model_server import ModelServer

HIDDEN, MISSING = "agent:main:http:api:hidden", "agent:main:http:api:missing"


@pytest.fixture
async def api(tmp_path: Path, model: ModelServer) -> AsyncIterator[Api]:
    async with in_process(tmp_path / "home", model) as api:
        yield api


async def test_the_chat_of_a_job_is_refused_alike_whether_it_exists_or_not(api: Api) -> None:
    session = (await api.say("hidden", "hello"))["session_id"]
    mine: dict[str, Any] = {"headers": bearer(await add_token(api, "guest", "chat"))}
    told = []
    for to in (HIDDEN, MISSING, "hidden", "missing", session, "ses_" + "0" * len(session[4:])):
        body = {"text": "the news", "when": "every weekday at 9", "to": to}
        error = (await api.post("/api/jobs", body, 404, **mine))["error"]
        told.append((error["type"], error["message"].replace(to, "X"), error["hint"]))
    assert len(set(told)) == 1, told
    own = (await api.say("mine", "hello", **mine))["session_id"]
    body = {"text": "the news", "when": "every weekday at 9", "to": own}
    assert (await api.post("/api/jobs", body, 201, **mine))["to"] == "agent:main:http:token:guest:mine"


async def test_a_message_to_another_chat_is_refused_alike_whether_it_exists_or_not(api: Api) -> None:
    await api.say("hidden", "hello")
    mine: dict[str, Any] = {"headers": bearer(await add_token(api, "guest", "chat"))}
    told = []
    for chat in (HIDDEN, MISSING):
        call = json.dumps({"chat": chat, "text": "hello"})
        text = {"text": f"[[call send_message {call}]][[reply done]]"}
        ticket = await api.post("/api/sessions/one/messages", text, 202, **mine)
        [asked] = await waiting(api, **mine)
        await api.post(f"/api/approvals/{asked['id']}", {"decision": "approve"}, **mine)
        turn = await settled(api, ticket["turn_id"])
        told.append(turn["steps"][1]["preview"])
    assert told[0] == told[1] and "not one of this person's chats" in told[0]


async def test_an_operator_is_told_that_a_chat_does_not_exist(api: Api) -> None:
    call = json.dumps({"chat": MISSING, "text": "hello"})
    turn = await api.say("one", f"[[call send_message {call}]][[reply done]]")
    assert f"There is no chat {MISSING}" in turn["steps"][1]["preview"]
