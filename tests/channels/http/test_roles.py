"""Roles: every route by every credential, and that a caller who chats sees its own chats only."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from support.gateway import Api, in_process
from talaria.access.callers import RouteAccess
from talaria.access.credentials import Logins, hash_token
from talaria.channels.http.part import HTTP
from talaria.channels.http.response import DEFAULT_TIMING
from talaria.channels.http.routes import create_app
from talaria.core.access import AddToken, Role
from talaria.testing.model_server import ModelServer

MAX_SECONDS = 100 * 366 * 86_400.0

READ, CHAT, OPERATE = Role.READ, Role.CHAT, Role.OPERATE
ALL = {READ, CHAT, OPERATE}
# Written out a second time: a role that is changed in the table of routes by mistake is seen here.
TABLE: dict[tuple[str, str], set[Role] | None] = {
    ("POST", "/api/sessions/{x}/messages"): {CHAT, OPERATE},
    ("POST", "/v1/chat/completions"): {CHAT, OPERATE},
    ("POST", "/v1/responses"): {CHAT, OPERATE},
    ("POST", "/api/oauth"): {OPERATE},
    ("POST", "/v1/conversations"): {CHAT, OPERATE},
    ("GET", "/v1/conversations/{id}"): ALL,
    ("DELETE", "/v1/conversations/{id}"): {CHAT, OPERATE},
    ("GET", "/v1/conversations/{id}/items"): ALL,
    ("POST", "/v1/embeddings"): {CHAT, OPERATE},
    ("GET", "/v1/responses/{id}"): ALL,
    ("DELETE", "/v1/responses/{id}"): {CHAT, OPERATE},
    ("POST", "/v1/responses/{id}/cancel"): {CHAT, OPERATE},
    ("GET", "/v1/responses/{id}/input_items"): ALL,
    ("GET", "/api/turns/{id}"): ALL,
    ("GET", "/api/turns/{id}/events"): ALL,
    ("POST", "/api/turns/{id}/cancel"): {CHAT, OPERATE},
    ("GET", "/api/turns"): ALL,
    ("GET", "/api/search"): ALL,
    ("GET", "/api/events"): ALL,
    ("GET", "/api/approvals"): ALL,
    ("GET", "/api/approvals/{id}/picture"): ALL,
    ("GET", "/api/inbox"): ALL,
    ("POST", "/api/approvals/{id}"): {CHAT, OPERATE},
    ("GET", "/api/memory"): ALL,
    ("POST", "/api/memory/{page}"): {CHAT, OPERATE},
    ("GET", "/api/sessions"): ALL,
    ("PATCH", "/api/sessions/{x}"): {CHAT, OPERATE},
    ("GET", "/api/sessions/{x}"): ALL,
    ("DELETE", "/api/sessions/{x}"): {CHAT, OPERATE},
    ("GET", "/api/sessions/{x}/entries"): ALL,
    ("GET", "/api/sessions/{x}/files"): ALL,
    ("GET", "/api/sessions/{x}/options"): ALL,
    ("POST", "/api/sessions/{x}/mark"): {CHAT, OPERATE},
    ("POST", "/api/sessions/{x}/browser/login"): {CHAT, OPERATE},
    ("POST", "/api/sessions/{x}/end"): {CHAT, OPERATE},
    ("POST", "/api/sessions/{x}/project"): {OPERATE},
    ("POST", "/api/files"): {CHAT, OPERATE},
    ("GET", "/api/files/{id}"): ALL,
    ("POST", "/api/send"): {OPERATE},
    ("GET", "/api/jobs"): ALL,
    ("POST", "/api/jobs"): {CHAT, OPERATE},
    ("GET", "/api/jobs/{id}"): ALL,
    ("PATCH", "/api/jobs/{id}"): {CHAT, OPERATE},
    ("DELETE", "/api/jobs/{id}"): {CHAT, OPERATE},
    ("POST", "/api/jobs/{id}/run"): {CHAT, OPERATE},
    ("GET", "/api/jobs/{id}/runs"): ALL,
    ("GET", "/v1/models"): ALL,
    ("POST", "/v1/messages"): {CHAT, OPERATE},
    ("POST", "/v1/messages/count_tokens"): {CHAT, OPERATE},
    ("GET", "/openapi.json"): ALL,
    ("GET", "/v1/models/{model}"): ALL,
    ("POST", "/api/login/codes"): {OPERATE},
    ("GET", "/api/pairings"): {OPERATE},
    ("POST", "/api/pairings/approve"): {OPERATE},
    ("POST", "/api/pairings/revoke"): {OPERATE},
    ("POST", "/api/pairings/invite"): {OPERATE},
    ("GET", "/api/tokens"): {OPERATE},
    ("POST", "/api/tokens"): {OPERATE},
    ("POST", "/api/tokens/revoke"): {OPERATE},
    ("GET", "/api/pool"): {READ, OPERATE},
    ("GET", "/api/status"): {READ, OPERATE},
    ("GET", "/metrics"): {READ, OPERATE},
    ("POST", "/api/models/{name}/fetch"): {OPERATE},
    ("GET", "/api/models/offers"): {OPERATE},
    ("POST", "/api/models/choose"): {OPERATE},
    ("POST", "/api/backup"): {OPERATE},
    ("POST", "/api/logout"): ALL,  # the last that asks for a credential: it ends the login
    ("POST", "/api/login"): None,
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
    ("GET", "/"): None,
    ("GET", "/assets/{name}"): None,
    ("GET", "/assets/{tree}/{name}"): None,
}
ANTHROPIC = {"authentication_error": "unauthorized", "permission_error": "forbidden"}
HOME_ONLY = [("POST", "/api/login/codes")]
NOT_BY_LOGIN = [*HOME_ONLY, ("POST", "/api/tokens")]
BODIES = {("POST", "/api/tokens"): {"name": "ci", "role": "read"}}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The headers of each kind of caller, and the role that they are worth."""

    api: Api
    headers: dict[str, dict[str, str]]
    roles: dict[str, Role]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def add_token(api: Api, name: str, role: str, **more: Any) -> str:
    answer = await api.post("/api/tokens", {"name": name, "role": role, **more}, 201)
    return str(answer["secret"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def credentials(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Credentials]:
    async with (
        ModelServer() as model,
        in_process(tmp_path_factory.mktemp("home"), model) as api,
        aiohttp.ClientSession(api.url, headers={"Origin": api.url}) as browser,
    ):
        code = (await api.post("/api/login/codes", None, 201))["code"]
        async with browser.post("/api/login", json={"code": code}) as response:
            (cookie,) = response.cookies.values()
            secret = (await response.json())["secret"]
        half, other = {"Cookie": f"{cookie.key}={cookie.value}"}, {"X-Talaria-Login": secret}
        revoked = await add_token(api, "revoked", "operate")
        await api.post("/api/tokens/revoke", {"name": "revoked"})
        expired = "talaria_" + "e" * 43
        await api.gateway.store.tokens.add(AddToken("over", OPERATE, hash_token(expired.encode()), -1.0))
        named = {role.value: bearer(await add_token(api, f"t-{role}", role)) for role in Role}
        refused = {
            "none": {},
            "wrong": bearer("wrong"),
            "wrong key": {"x-api-key": "wrong"},
            "unknown": bearer("talaria_" + "u" * 43),
            "revoked": bearer(revoked),
            "expired": bearer(expired),
            "cookie alone": half,
            "secret alone": other,
        }
        good = {"home": dict(api.client.headers), "login": half | other} | named
        roles = {"home": OPERATE, "login": OPERATE} | {role.value: role for role in Role}
        yield Credentials(api, refused | good, roles)


def test_every_route_is_in_the_table(credentials: Credentials) -> None:
    gateway = credentials.api.gateway
    logins = Logins("any token", gateway.clock)
    app = create_app(gateway, gateway.settings.of(HTTP), logins, frozenset(), DEFAULT_TIMING)
    declared = {
        (method, path): None if route.access is RouteAccess.OPEN else set(route.access.roles)
        for path, methods in app.routes.items()
        for method, route in methods.items()
    }
    assert declared == TABLE


@pytest.mark.asyncio(loop_scope="module")
async def test_every_route_by_every_credential(credentials: Credentials) -> None:
    api = credentials.api
    wrong: list[object] = []
    async with aiohttp.ClientSession(api.url, headers={"Origin": api.url}) as plain:
        for (method, pattern), roles in TABLE.items():
            path = re.sub(r"{\w+}", "nowhere", pattern)
            for name, headers in credentials.headers.items():
                body = BODIES.get((method, pattern))
                async with plain.request(method, path, headers=headers, json=body) as response:
                    is_endless = response.content_type == "text/event-stream"
                    text = "" if is_endless else await response.text()
                role = credentials.roles.get(name)
                kinds = [ANTHROPIC.get(kind, kind) for kind in re.findall(r'"(?:type|code)":"(\w+)"', text)]
                route = (method, pattern)
                is_for_home = (role is OPERATE and name != "home" and route in HOME_ONLY) or (
                    name == "login" and route in NOT_BY_LOGIN
                )
                if roles is None:
                    is_right = response.status not in (401, 403) or "bad_code" in kinds
                elif role is None:
                    is_right = response.status == 401 and "unauthorized" in kinds
                elif role not in roles:
                    is_right = response.status == 403 and "forbidden" in kinds and "needs the role" in text
                elif is_for_home:
                    is_right = response.status == 403 and "token_needed" in kinds
                else:
                    is_right = response.status not in (401, 403)
                if not is_right:
                    wrong.append((name, route, response.status, text[:200]))
    assert wrong == []


async def test_a_path_that_does_not_exist_is_told_to_callers_of_every_role(api: Api) -> None:
    for role in Role:
        headers = bearer(await add_token(api, role, role))
        await api.get("/nowhere", 404, headers=headers)
        refused = await api.post("/api/status", {}, 405, headers=headers)
        assert refused["error"]["type"] == "wrong_method"


# -- chats ------------------------------------------------------------------------------------------------


async def test_a_caller_that_chats_sees_its_own_chats_only(api: Api) -> None:
    phone, laptop = [bearer(await add_token(api, name, "chat")) for name in ("phone", "laptop")]
    ours = await api.say("demo", "the operator's")
    mine = await api.say("demo", "mine", headers=phone)
    theirs = await api.say("demo", "theirs", headers=laptop)
    assert len({turn["session_id"] for turn in (ours, mine, theirs)}) == 3, "one name, three chats"

    (listed,) = (await api.get("/api/sessions", headers=phone))["items"]
    turns = (await api.get("/api/turns", headers=phone))["items"]
    assert {turn["session_id"] for turn in turns} == {mine["session_id"]}
    assert len((await api.get("/api/turns"))["items"]) > len(turns)
    assert (listed["id"], listed["name"]) == (mine["session_id"], "demo")
    assert listed["chat_key"] == "agent:main:http:token:phone:demo"
    for x in ("demo", mine["session_id"]):
        assert (await api.get(f"/api/sessions/{x}", headers=phone))["id"] == mine["session_id"]
        log = await api.get(f"/api/sessions/{x}/entries", headers=phone)
        assert "mine" in str(log)
    assert (await api.get(f"/api/turns/{mine['id']}", headers=phone))["reply"] == "You said: mine"

    never = {"session": "ses_00000000000000000000000000", "turn": "turn_00000000000000000000000000"}
    for other in (ours, theirs):
        for method, path in (
            ("GET", "/api/sessions/{session}"),
            ("DELETE", "/api/sessions/{session}"),
            ("GET", "/api/sessions/{session}/entries"),
            ("GET", "/api/sessions/{session}/files"),
            ("POST", "/api/sessions/{session}/end"),
            ("POST", "/api/sessions/{session}/messages"),
            ("GET", "/api/turns/{turn}"),
            ("GET", "/api/turns/{turn}/events"),
            ("POST", "/api/turns/{turn}/cancel"),
        ):
            told = []
            for ids in ({"session": other["session_id"], "turn": other["id"]}, never):
                place = api.url + path.format_map(ids)
                body = {"text": "x"} if method == "POST" else None
                async with api.client.request(method, place, json=body, headers=phone) as response:
                    assert response.status == 404, (method, path)
                    text = await response.text()
                    told.append(text.replace(ids["session"], "ID").replace(ids["turn"], "ID"))
            assert told[0] == told[1], "as if it did not exist"
    assert len((await api.get("/api/sessions"))["items"]) == 3, "the operator sees all"
    assert (await api.post("/api/sessions/demo/end", headers=phone))["ended_at"]
    assert (await api.get(f"/api/sessions/{theirs['session_id']}"))["ended_at"] is None


async def test_commands_do_not_lead_out_of_a_callers_chats(api: Api) -> None:
    phone = bearer(await add_token(api, "phone", "chat"))
    ours = await api.say("demo", "the operator's")
    await api.say("demo", "mine", headers=phone)
    told = await api.say("demo", f"/resume {ours['session_id']}", headers=phone)
    assert "No session of this chat matches" in told["reply"]
    assert ours["session_id"] not in (await api.say("demo", "/sessions", headers=phone))["reply"]
    assert "token:phone (phone)" in (await api.say("demo", "/whoami", headers=phone))["reply"]


async def test_stateless_calls_of_a_token_are_its_own_too(api: Api) -> None:
    phone, laptop = [bearer(await add_token(api, name, "chat")) for name in ("phone", "laptop")]
    body = {"messages": [{"role": "user", "content": "hi"}]}
    async with api.client.post(f"{api.url}/v1/chat/completions", json=body, headers=phone) as response:
        assert response.status == 200
        turn, session = (response.headers[f"X-Talaria-{what}-Id"] for what in ("Turn", "Session"))
    for path in (f"/api/turns/{turn}", f"/api/sessions/{session}/entries"):
        await api.get(path, headers=phone)
        await api.get(path, 404, headers=laptop)


async def test_a_session_of_the_openai_api_is_the_tokens_own_chat(api: Api) -> None:
    phone = bearer(await add_token(api, "phone", "chat"))
    ours = await api.say("demo", "ours")
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for name, status in (("demo", 200), (ours["session_id"], 404)):
        headers = {**phone, "X-Talaria-Session": name}
        async with api.client.post(f"{api.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == status
    (listed,) = (await api.get("/api/sessions", headers=phone))["items"]
    assert listed["chat_key"] == "agent:main:http:token:phone:demo"


async def test_a_key_means_another_turn_for_another_caller(api: Api) -> None:
    phone, laptop = [bearer(await add_token(api, name, "chat")) for name in ("phone", "laptop")]
    key = {"Idempotency-Key": "same"}
    body = {"messages": [{"role": "user", "content": "hi"}]}
    turns = []
    for headers in (phone, laptop, phone, dict(api.client.headers)):
        async with api.client.post(
            f"{api.url}/v1/chat/completions", json=body, headers={**headers, **key}
        ) as response:
            turns.append(response.headers["X-Talaria-Turn-Id"])
    assert turns[0] == turns[2]
    assert len(set(turns)) == 3


async def test_a_caller_that_reads_sees_all_and_changes_nothing(api: Api) -> None:
    monitor = bearer(await add_token(api, "monitor", "read"))
    phone = bearer(await add_token(api, "phone", "chat"))
    ours, theirs = await api.say("demo", "ours"), await api.say("demo", "theirs", headers=phone)
    listed = (await api.get("/api/sessions", headers=monitor))["items"]
    assert {item["id"] for item in listed} == {ours["session_id"], theirs["session_id"]}
    for turn in (ours, theirs):
        assert (await api.get(f"/api/turns/{turn['id']}", headers=monitor))["reply"]
    await api.say("demo", "no", headers=monitor, status=403)
    await api.post(f"/api/turns/{ours['id']}/cancel", status=403, headers=monitor)


# -- tokens -----------------------------------------------------------------------------------------------


async def test_a_revoked_token_is_refused_from_its_next_call_on_and_its_chats_stay(api: Api) -> None:
    phone = bearer(await add_token(api, "phone", "chat"))
    mine = await api.say("demo", "mine", headers=phone)
    removed = await api.post("/api/tokens/revoke", {"name": "phone"})
    assert (removed["name"], removed["role"]) == ("phone", "chat")
    refused = await api.get("/api/sessions", 401, headers=phone)
    assert "revoked" in refused["error"]["message"]
    assert "talaria token add" in refused["error"]["hint"]
    again = bearer(await add_token(api, "phone", "chat"))
    (listed,) = (await api.get("/api/sessions", headers=again))["items"]
    assert listed["id"] == mine["session_id"]


async def test_an_expired_token_is_told_so(api: Api) -> None:
    secret = await add_token(api, "brief", "read", seconds=0.000_001)
    refused = await api.get("/api/status", 401, headers=bearer(secret))
    assert "The token brief has expired" in refused["error"]["message"]


async def test_tokens_are_listed_without_secrets_and_with_their_last_use(api: Api, tmp_path: Path) -> None:
    secret = await add_token(api, "monitor", "read", seconds=3600)
    (before,) = (await api.get("/api/tokens"))["tokens"]
    assert before.keys() == {"name", "role", "created_at", "expires_at", "used_at"}
    assert before["used_at"] is None
    for _ in range(3):
        await api.get("/api/status", headers=bearer(secret))
    (after,) = (await api.get("/api/tokens"))["tokens"]
    assert after["used_at"] >= before["created_at"]
    assert secret not in str(after)
    await api.gateway.store.snapshot(tmp_path / "copy.db")
    copy = (tmp_path / "copy.db").read_bytes()
    assert b"monitor" in copy
    assert secret.encode() not in copy


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"name": "no name", "role": "read"}, "no name for a token"),
        ({"name": "", "role": "read"}, "no name for a token"),
        ({"name": "n" * 41, "role": "read"}, "no name for a token"),
        ({"name": "x", "role": "admin"}, "role"),
        ({"name": "x"}, "role"),
        ({"name": "x", "role": "read", "seconds": 0}, "expire"),
        ({"name": "x", "role": "read", "seconds": -1}, "expire"),
        ({"name": "x", "role": "read", "seconds": MAX_SECONDS + 1}, "expire"),
        ({"name": "taken", "role": "read"}, "There is a token taken already"),
    ],
)
async def test_a_token_that_cannot_be_made_says_why(api: Api, body: dict[str, Any], says: str) -> None:
    await add_token(api, "taken", "chat")
    assert says in (await api.post("/api/tokens", body, 400))["error"]["message"]
    assert len((await api.get("/api/tokens"))["tokens"]) == 1


async def test_a_token_that_is_not_there_cannot_be_revoked(api: Api) -> None:
    refused = await api.post("/api/tokens/revoke", {"name": "nobody"}, 404)
    assert "talaria token list" in refused["error"]["hint"]
