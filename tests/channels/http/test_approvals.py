"""`/api/approvals`: who sees what waits, and whose decision counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.http.test_roles import add_token, bearer
from support.asking_tools import Danger, calling
from support.gateway import Api, in_process
from talaria.net.host_rules import HostAnswer, HostRequest
from talaria.testing.model_server import ModelServer


@pytest.fixture
def danger() -> Danger:
    return Danger()


@pytest.fixture
async def api(tmp_path: Path, model: ModelServer, danger: Danger) -> AsyncIterator[Api]:
    async with in_process(tmp_path / "home", model, parts=danger.parts()) as api:
        yield api


async def waiting(api: Api, **more: Any) -> list[dict[str, Any]]:
    """What waits, once something does."""
    while not (items := (await api.get("/api/approvals", **more))["items"]):
        await asyncio.sleep(0)
    return list(items)


async def state(api: Api, turn_id: str) -> str:
    return str((await api.get(f"/api/turns/{turn_id}"))["state"])


async def settled(api: Api, turn_id: str) -> Any:
    live = await api.gateway.turns.find(turn_id)  # type: ignore[arg-type]
    await api.gateway.turns.wait(live)
    return await api.get(f"/api/turns/{turn_id}")


async def test_a_question_is_listed_and_an_approval_lets_the_call_run(api: Api, danger: Danger) -> None:
    turn_id = await api.begin("one", calling("rm -rf /"))
    [asked] = await waiting(api)
    assert (asked["turn_id"], asked["kind"], asked["tool"]) == (turn_id, "approval", "danger")
    assert '"what": "rm -rf /"' in asked["text"]
    assert asked["requester"] == {"id": "api", "name": "API"}
    assert asked["expires_at"] - asked["asked_at"] == 86_400
    assert danger.ran == [] and await state(api, turn_id) == "waiting"
    body = {"decision": "approve", "for": "once"}
    decided = await api.post(f"/api/approvals/{asked['id']}", body)
    assert (decided["decision"], decided["for"], decided["turn_id"]) == ("approve", "once", turn_id)
    assert (await settled(api, turn_id))["reply"] == "done"
    assert danger.ran == ["rm -rf /"]
    again = await api.post(f"/api/approvals/{asked['id']}", body, 409)
    assert again["error"]["type"] == "question_closed"
    assert (await api.get("/api/approvals"))["items"] == []


async def test_a_denial_keeps_the_call_from_running(api: Api, danger: Danger) -> None:
    turn_id = await api.begin("one", calling())
    [asked] = await waiting(api)
    await api.post(f"/api/approvals/{asked['id']}", {"decision": "deny"})
    assert (await settled(api, turn_id))["reply"] == "done"
    assert danger.ran == []


async def test_only_the_requester_and_operators_decide(api: Api, danger: Danger) -> None:
    callers: list[dict[str, Any]] = [
        {"headers": bearer(await add_token(api, f"t-{n}", role))}
        for n, role in enumerate(("chat", "chat", "read", "operate"))
    ]
    mine, other, reader, operator = callers
    ticket = await api.post("/api/sessions/one/messages", {"text": calling()}, 202, **mine)
    [asked] = await waiting(api, **mine)
    path, body = f"/api/approvals/{asked['id']}", {"decision": "approve"}
    assert (await api.get("/api/approvals", **other))["items"] == []
    assert len((await api.get("/api/approvals", **reader))["items"]) == 1
    await api.post(path, body, 404, **other)
    await api.post(path, body, 403, **reader)
    assert danger.ran == []
    await api.post(path, body, **mine)
    await settled(api, ticket["turn_id"])
    assert danger.ran == ["x"]
    await api.post("/api/sessions/one/messages", {"text": calling("y")}, 202, **mine)
    [asked] = await waiting(api, **reader)
    await api.post(f"/api/approvals/{asked['id']}", body, **operator)
    await settled(api, asked["turn_id"])
    assert danger.ran == ["x", "y"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "either"),
        ({"decision": "approve", "answer": "yes"}, "either"),
        ({"answer": "yes"}, "needs a decision"),
        ({"decision": "approve", "for": "always"}, "Only a host"),
        ({"decision": "maybe"}, "decision"),
        ({"decision": "approve", "for": "ever"}, "for"),
    ],
)
async def test_a_decision_that_does_not_fit_changes_nothing(
    api: Api, danger: Danger, body: dict[str, str], says: str
) -> None:
    turn_id = await api.begin("one", calling())
    [asked] = await waiting(api)
    refused = await api.post(f"/api/approvals/{asked['id']}", body, 400)
    assert says in refused["error"]["message"] + refused["error"]["hint"]
    assert danger.ran == [] and await state(api, turn_id) == "waiting"


async def test_an_unknown_question_is_not_found(api: Api) -> None:
    await api.post("/api/approvals/q_none", {"decision": "approve"}, 404)


async def test_an_answer_is_the_result_of_ask_user(api: Api) -> None:
    turn_id = await api.begin(
        "one", '[[call ask_user {"question": "Which?", "choices": ["red", "blue"]}]][[reply done]]'
    )
    [asked] = await waiting(api)
    assert (asked["kind"], asked["text"], asked["choices"]) == ("answer", "Which?", ["red", "blue"])
    path = f"/api/approvals/{asked['id']}"
    await api.post(path, {"decision": "approve"}, 400)
    await api.post(path, {"answer": " "}, 400)
    await api.post(path, {"answer": "green"})
    turn = await settled(api, turn_id)
    assert (turn["reply"], turn["steps"][1]["preview"]) == ("done", "green")


async def test_commands_decide_in_the_chat(api: Api, danger: Danger) -> None:
    turn_id = await api.begin("one", calling())
    [asked] = await waiting(api)
    assert asked["id"] in (await api.say("one", "/status"))["reply"]
    told = (await api.say("one", "/approve"))["reply"]
    assert told.startswith("Approved, once: danger") and '"what": "x"' in told
    await settled(api, turn_id)
    assert danger.ran == ["x"]
    assert "Nothing waits" in (await api.say("one", "/deny"))["reply"]


async def test_a_bare_approve_decides_nothing_if_another_request_closed_since_the_last_message(
    api: Api, danger: Danger
) -> None:
    mine: dict[str, Any] = {"headers": bearer(await add_token(api, "guest", "chat"))}
    for what in ("x", "y"):  # the second message waits for the first one's turn
        ticket = await api.post("/api/sessions/one/messages", {"text": calling(what)}, 202, **mine)
    [asked] = await waiting(api, **mine)
    await api.post(f"/api/approvals/{asked['id']}", {"decision": "deny"})  # by an operator
    await settled(api, asked["turn_id"])
    [other] = await waiting(api, **mine)
    said = await api.post("/api/sessions/one/messages", {"text": "/approve"}, 202, **mine)
    told = (await settled(api, said["turn_id"]))["reply"]
    assert "Nothing was decided" in told and other["id"] in told and danger.ran == []
    said = await api.post("/api/sessions/one/messages", {"text": "/approve"}, 202, **mine)
    assert "Approved" in (await settled(api, said["turn_id"]))["reply"], "now the list was shown"
    await settled(api, ticket["turn_id"])
    assert danger.ran == ["y"]


async def test_a_bare_approve_follows_one_that_the_same_person_gave(api: Api, danger: Danger) -> None:
    turn_id = await api.begin("one", calling("x") + calling("y"))
    for _ in range(2):
        await waiting(api)
        assert "Approved" in (await api.say("one", "/approve"))["reply"]
    await settled(api, turn_id)
    assert danger.ran == ["x", "y"]


async def test_an_operator_decides_in_another_chat_by_the_id(api: Api, danger: Danger) -> None:
    turn_id = await api.begin("one", calling())
    [asked] = await waiting(api)
    assert "Nothing waits" in (await api.say("two", "/approve"))["reply"]
    assert (await api.say("two", f"/deny {asked['id']}"))["reply"].startswith("Denied: danger")
    await settled(api, turn_id)
    assert danger.ran == []


async def test_a_host_is_allowed_for_always_in_the_configuration(api: Api) -> None:
    turn_id = await api.begin("one", "hello")
    session_id = (await settled(api, turn_id))["session_id"]
    hosts = api.gateway.turns.hosts
    asking = asyncio.create_task(hosts.ask(HostRequest(session_id, "a.example", 8443)))
    [asked] = await waiting(api)
    assert (asked["kind"], asked["tool"]) == ("host", "network")
    await api.post(f"/api/approvals/{asked['id']}", {"decision": "approve", "for": "always"})
    assert (await asking).is_admitted
    assert "a.example:8443" in api.gateway.home.config.read_text()


async def test_questions_of_all_kinds_expire_after_the_setting_as_it_is_now(
    api: Api, model: ModelServer
) -> None:
    provider = f'[model]\nprovider = "scripted"\n[providers.scripted]\nbase_url = "{model.base_url}"\n'
    api.gateway.home.config.write_text(f'{provider}[tools]\nquestion_expiry = "1h"\n')
    api.gateway.reloader.reload()
    await api.begin("one", calling())
    await api.begin("two", '[[call ask_user {"question": "Red?"}]][[reply done]]')
    turn = await settled(api, await api.begin("three", "hello"))
    hosts = api.gateway.turns.hosts
    asking = asyncio.create_task(hosts.ask(HostRequest(turn["session_id"], "a.example", 443)))
    while len(items := await waiting(api)) < 3:
        await asyncio.sleep(0)
    assert {item["kind"] for item in items} == {"approval", "answer", "host"}
    assert [item["expires_at"] - item["asked_at"] for item in items] == [3600] * 3
    for item in items:
        body = {"answer": "no"} if item["kind"] == "answer" else {"decision": "deny"}
        await api.post(f"/api/approvals/{item['id']}", body)
    assert not (await asking).is_admitted


async def test_only_an_operator_allows_a_host_for_always(api: Api) -> None:
    mine: dict[str, Any] = {"headers": bearer(await add_token(api, "guest", "chat"))}
    ticket = await api.post("/api/sessions/one/messages", {"text": "hello"}, 202, **mine)
    session_id = (await settled(api, ticket["turn_id"]))["session_id"]
    asking = asyncio.create_task(api.gateway.turns.hosts.ask(HostRequest(session_id, "a.example", 443)))
    [asked] = await waiting(api, **mine)
    path = f"/api/approvals/{asked['id']}"
    refused = await api.post(path, {"decision": "approve", "for": "always"}, 403, **mine)
    assert refused["error"]["type"] == "forbidden" and "operator" in refused["error"]["message"]
    ticket = await api.post("/api/sessions/one/messages", {"text": "/approve always"}, 202, **mine)
    command = await settled(api, ticket["turn_id"])
    assert command["state"] == "failed" and "operator" in command["error"]["message"]
    assert "session" in command["error"]["hint"]
    assert [item["id"] for item in await waiting(api, **mine)] == [asked["id"]], "it is still open"
    assert not api.gateway.home.config.exists(), "nothing was written to it"
    await api.post(path, {"decision": "approve", "for": "session"}, **mine)
    assert (await asking).is_admitted


async def test_the_story_of_a_turn_has_its_questions_about_hosts(api: Api) -> None:
    turn_id = await api.begin("one", "hello")
    session_id = (await settled(api, turn_id))["session_id"]
    for decision in ({"decision": "approve", "for": "session"}, {"decision": "deny"}):
        host = f"{decision['decision']}.example"
        asking = asyncio.create_task(api.gateway.turns.hosts.ask(HostRequest(session_id, host, 443)))
        [asked] = await waiting(api)
        await api.post(f"/api/approvals/{asked['id']}", decision)
        await asking
    story = [line["text"] for line in (await api.get(f"/api/turns/{turn_id}"))["story"]]
    assert [text for text in story if ".example" in text] == [
        "Asked a person whether commands may reach approve.example (ports 80 and 443).",
        "api approved it, for the session: approve.example (ports 80 and 443).",
        "Asked a person whether commands may reach deny.example (ports 80 and 443).",
        "api denied it: deny.example (ports 80 and 443).",
    ]


async def test_nobody_is_asked_about_hosts_without_approvals(tmp_path: Path, model: ModelServer) -> None:
    tables = {"tools": {"approvals": "never"}}
    async with in_process(tmp_path / "other", model, tables=tables) as api:
        turn = await api.begin("one", "[[hang]]")
        session_id = (await api.get(f"/api/turns/{turn}"))["session_id"]
        async with asyncio.timeout(20):
            answer = await api.gateway.turns.hosts.ask(HostRequest(session_id, "a.example", 443))
        assert answer == HostAnswer(False, "It is not in network.allow, and nobody can be asked.")
        await api.post(f"/api/turns/{turn}/cancel")
