"""Sessions, pool, status and health, as operators read them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from support.gateway import Api, in_process
from talaria.core.program import this_version
from talaria.observe.health import GatewayPhase
from talaria.testing.model_server import ModelServer


async def test_sessions_are_listed_newest_first_in_pages(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.say(name, "hello")
    names, after = [], ""
    while True:
        page = await api.get(f"/api/sessions?limit=2{after}")
        names += [session["name"] for session in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert names == ["c", "b", "a"]


async def test_a_session_is_found_by_name_and_by_id(api: Api) -> None:
    turn = await api.say("one", "hello")
    session = await api.get("/api/sessions/one")
    assert session["id"] == turn["session_id"]
    assert session == await api.get(f"/api/sessions/{session['id']}")


async def test_entries_come_in_order_and_in_pages(api: Api) -> None:
    await api.say("one", "hello")
    first = await api.get("/api/sessions/one/entries?limit=2")
    rest = await api.get(f"/api/sessions/one/entries?after={first['next']}")
    entries = first["entries"] + rest["entries"]
    assert [entry["seq"] for entry in entries] == [1, 2, 3]
    assert [entry["body"]["type"] for entry in entries] == ["spec", "user", "assistant"]
    assert rest["next"] is None


async def test_ending_a_session_releases_its_agent_and_the_next_message_starts_another(api: Api) -> None:
    turn = await api.say("one", "hello")
    ended = await api.post("/api/sessions/one/end")
    assert ended["ended_at"] is not None
    assert (await api.get("/api/pool"))["size"] == 0
    assert await api.post(f"/api/sessions/{turn['session_id']}/end") == ended
    assert (await api.say("one", "hello"))["session_id"] != turn["session_id"]


async def test_a_session_with_a_running_turn_is_not_ended(api: Api, model: ModelServer) -> None:
    turn_id = await api.begin("one", "[[hang]]")
    await model.until(lambda: model.requests > 0)
    refused = await api.post("/api/sessions/one/end", status=409)
    assert "cancel" in refused["error"]["hint"]
    await api.post(f"/api/turns/{turn_id}/cancel")
    await api.post("/api/sessions/one/end")


async def test_the_pool_has_the_shape_of_the_contract(api: Api, model: ModelServer) -> None:
    await api.say("one", "hello")
    running = await api.begin("two", "[[hang]]")
    await model.until(lambda: model.requests > 1)
    pool = await api.get("/api/pool")
    contract = ["cap", "size", "busy", "building", "bytes", "max_bytes", "agents", "counters"]
    assert list(pool) == [*contract, "closing", "dropped"]
    assert [list(agent) for agent in pool["agents"]] == [
        ["session_id", "chat_key", "state", "bytes", "idle_seconds", "revision"]
    ] * 2
    assert sorted(agent["state"] for agent in pool["agents"]) == ["busy", "idle"]
    assert pool["counters"].keys() == {
        "hits",
        "builds",
        "catchups",
        "rebuilds",
        "evicted_cap",
        "evicted_idle",
        "evicted_bytes",
        "released",
    }
    await api.post(f"/api/turns/{running}/cancel")


async def test_the_status_says_what_is_owed(api: Api, model: ModelServer) -> None:
    await api.say("one", "hello")
    running = await api.begin("two", "[[hang]]")
    await model.until(lambda: model.requests > 1)
    status = await api.get("/api/status")
    assert status["version"] == this_version()
    assert (status["ready"], status["reasons"]) == (True, [])
    assert (status["turns"]["done"], status["turns"]["running"]) == (1, 1)
    assert status["owed"].pop("oldest_seconds") > 0
    assert status["owed"] == {"turns": 1, "replies": 0, "channels": {}}
    assert status["store"]["engine"]
    await api.post(f"/api/turns/{running}/cancel")


async def test_health_needs_no_token_and_follows_the_gateway(api: Api) -> None:
    async def statuses() -> list[int]:
        seen = []
        for path in ("/", "/healthz", "/readyz"):
            async with stranger.get(api.url + path) as response:
                seen.append(response.status)
        return seen

    async with aiohttp.ClientSession() as stranger:
        assert await statuses() == [200, 200, 200]
        api.gateway.health.enter(GatewayPhase.DRAINING)
        assert await statuses() == [200, 200, 503]


async def test_metrics_count_answers_by_route(api: Api) -> None:
    await api.say("one", "hello")
    await api.get("/api/turns/turn_unknown", 404)
    async with api.client.get(api.url + "/metrics") as response:
        text = await response.text()
    assert 'route="/api/sessions/{x}/messages",status="200"} 1.0' in text
    assert 'route="/api/turns/{id}",status="404"} 1.0' in text
    assert "turn_unknown" not in text


async def test_calls_run_side_by_side(api: Api) -> None:
    turns = await asyncio.gather(*(api.say(f"s{n}", f"hello {n}") for n in range(20)))
    assert [turn["reply"] for turn in turns] == [f"You said: hello {n}" for n in range(20)]


async def test_a_fault_of_ours_is_logged_and_shows_nothing_of_the_inside(
    tmp_path: Path, model: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        @property
        def status(self) -> str:
            raise RuntimeError("a secret of the inside")

    async with in_process(tmp_path, model) as api:
        api.gateway.channels["broken"] = Broken()
        error = (await api.get("/api/status", 500))["error"]
    assert error["type"] == "internal"
    assert error["hint"]
    assert "secret" not in str(error)
    assert "a secret of the inside" in caplog.text


async def test_a_draining_gateway_accepts_nothing_and_says_so(api: Api) -> None:
    await api.gateway.turns.drain(0)
    for path, body in (
        ("/api/sessions/one/messages", {"text": "hello"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ):
        assert (await api.post(path, body, 503))["error"]["type"] == "draining"
