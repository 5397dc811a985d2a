"""Several gateways on one PostgreSQL serve the same chats: real processes, real kills."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.gateways import Gateways, cluster
from support.oauth_server import oauth_server
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from support.waiting import until
from talaria.core.access import OAuthTokens
from talaria.core.clock import SystemClock
from talaria.operations.access import GrantBody
from talaria.store.in_memory import MemoryStore
from talaria.testing.gateway_process import GatewayProcess
from tools.mcp.test_oauth import guarded, log_in
from turns.test_background_delegates import reports_of
from turns.test_delegates import hand_out


async def hang(world: Gateways, gateway: GatewayProcess, chat: str) -> str:
    """Begin a turn at this gateway whose first answer never comes. Its second attempt is answered. The model
    tells conversations apart by their text, so each chat needs its own."""
    await world.model.until(lambda: not world.model.answering)
    turn_id = await gateway.begin(chat, f"[[first 1 hang]] {chat}")
    await world.model.until(lambda: world.model.answering == 1)
    owner = "SELECT 1 FROM turns t JOIN members m ON m.owner = t.begun_by WHERE t.id = %s AND m.url = %s"
    assert world.ask(owner, turn_id, gateway.url), "the turn runs at another gateway"
    return turn_id


async def reply_of(gateway: GatewayProcess, turn_id: str) -> Any:
    turn = await gateway.ended_turn(turn_id)
    assert turn["state"] == "done", turn
    return turn["reply"]


def said(world: Gateways, turn_ids: list[str]) -> list[str]:
    """Return the turns in the order in which their messages were taken into the log."""
    rows = world.ask(
        "SELECT turn_id FROM entries WHERE turn_id = ANY(%s) GROUP BY session_id, turn_id ORDER BY min(seq)",
        turn_ids,
    )
    return [turn_id for (turn_id,) in rows]


async def test_gateways_on_one_database_serve_the_same_chats(
    postgres_database: str,  # noqa: F811
) -> None:
    async with cluster(postgres_database, {}, {"SESSIONS__BUSY": "interrupt"}, lease="4s") as world:
        await check_order(world)
        await check_control(world)
        await check_answer(world)
        await check_pause(world)
        await check_kill(world)
        await check_drain(world)
        assert world.ask("SELECT id FROM turns WHERE state NOT IN ('done', 'failed', 'cancelled')") == []


async def check_order(world: Gateways) -> None:
    """Messages that both gateways accept run at one of them, in the order of acceptance."""
    here, there = world.each
    turn_ids = [await hang(world, here, "order")]
    for number in range(1, 7):
        gateway = here if number % 2 else there
        turn_ids.append(await gateway.begin("order", f"/queue {number}"))
    await there.begin("order", "/stop")
    replies = [await reply_of(there, turn_id) for turn_id in turn_ids[1:]]
    assert replies == [f"You said: {number}" for number in range(1, 7)]
    assert said(world, turn_ids) == turn_ids
    owners = world.ask("SELECT DISTINCT member FROM turns WHERE id = ANY(%s)", turn_ids)
    assert len(owners) == 1


async def check_control(world: Gateways) -> None:
    """A message joins a turn elsewhere, another interrupts it."""
    here, there = world.each
    host = await hang(world, here, "control")
    steer = await there.begin("control", "/steer more")
    assert world.ask("SELECT merged_into FROM turns WHERE id = %s", steer) == [(host,)]
    next_one = await there.begin("control", "instead")
    assert (await there.ended_turn(host))["state"] == "cancelled"
    assert await reply_of(there, steer) == "You said: more"
    assert await reply_of(there, next_one) == "You said: instead"
    assert said(world, [host, steer, next_one]) == [host, steer, next_one]


async def check_answer(world: Gateways) -> None:
    """A message to one gateway answers a question of a turn that waits at the other."""
    here, there = world.each
    asked = await here.begin("answer", '[[call ask_user {"question": "Which colour?"}]]')
    await world.until("SELECT 1 FROM turns WHERE id = %s AND state = 'waiting'", asked)
    answer = await there.begin("answer", "blue")
    assert "blue" in await reply_of(there, asked)
    assert (await there.ended_turn(answer))["state"] == "done"
    assert said(world, [answer]) == [], "it is no message of its own"


async def check_kill(world: Gateways) -> None:
    """What a gateway had when it was killed is done by the other, in order. Its next life does new work."""
    here, there = world.each
    turn_ids = [await hang(world, here, "kill"), await here.begin("kill", "1")]
    turn_ids.append(await there.begin("kill", "/queue 2"))
    await here.kill()
    replies = [await reply_of(there, turn_id) for turn_id in turn_ids]
    assert replies == ["You said: kill", "You said: 1", "You said: 2"]
    assert said(world, turn_ids) == turn_ids
    await here.start()
    assert await reply_of(here, await here.begin("kill", "3")) == "You said: 3"


async def check_drain(world: Gateways) -> None:
    """A gateway that shuts down gives up what it has, at once."""
    here, there = world.each
    turn_ids = [await hang(world, here, "drain"), await here.begin("drain", "1")]
    here.send_signal(signal.SIGTERM)
    assert await here.wait() == 0
    assert [await reply_of(there, turn_id) for turn_id in turn_ids] == ["You said: drain", "You said: 1"]
    assert said(world, turn_ids) == turn_ids


async def check_pause(world: Gateways) -> None:
    """A gateway that was stopped for longer than its lease loses its turns, and writes nothing more."""
    here, there = world.each
    turn_ids = [await hang(world, here, "pause"), await here.begin("pause", "1")]
    here.send_signal(signal.SIGSTOP)
    try:
        replies = [await reply_of(there, turn_id) for turn_id in turn_ids]
    finally:
        here.send_signal(signal.SIGCONT)
    assert replies == ["You said: pause", "You said: 1"]
    assert said(world, turn_ids) == turn_ids
    turn_id = await here.begin("pause", "2")
    assert await reply_of(here, turn_id) == "You said: 2"
    await world.until_ready(here)


@pytest.mark.long
async def test_a_delegate_in_the_background_reports_once_when_its_gateway_is_killed(
    postgres_database: str,  # noqa: F811
) -> None:
    async with cluster(postgres_database, {}, {}, lease="4s") as world:
        dead, alive = world.each
        marks = hand_out("[[first 1 hang]][[reply found 42]]", background=True) + "[[reply started]]"
        assert await reply_of(dead, await dead.begin("chat", marks)) == "started"
        await world.model.until(lambda: world.model.answering == 1)
        await dead.kill()
        (session,) = (await alive.call("GET", "/api/sessions"))["items"]

        async def has_reported() -> bool:
            return world.ask("SELECT report FROM delegates") == [(2,)]

        await until(has_reported, pause=0.1)
        assert ["found 42" in each for each in await reports_of(alive, session["id"])] == [True]


@pytest.mark.long
async def test_of_two_gateways_one_renews_the_token_of_a_login(
    postgres_database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Both are refused at once. The service ends the login if a refresh token comes twice."""

    async def call(gateway: GatewayProcess, chat: str) -> Any:
        return await reply_of(gateway, await gateway.begin(chat, "[[call mcp_one_plain {}]]"))

    async with oauth_server() as service:
        server = {"MCP__SERVERS__ONE__URL": f"{service.url}/mcp", "MCP__SERVERS__ONE__AUTH": "oauth"}
        server |= {"MCP__SERVERS__ONE__APPROVALS": "never"}
        async with cluster(postgres_database, server, server, lease="4s") as world:
            async with MemoryStore(SystemClock()) as store:
                await log_in(tmp_path, service, store)
                grant = await store.oauth.find(guarded(service).login)
            assert grant is not None
            tokens = OAuthTokens(grant.access, grant.refresh, 3600)
            body = msgspec.to_builtins(GrantBody(grant.name, grant.client, tokens))
            await world.each[0].call("POST", "/api/oauth", json=body)
            for gateway in world.each:
                while (await gateway.call("GET", "/api/status"))["mcp_servers"]["one"]["state"] != "ready":
                    await asyncio.sleep(0.02)
            for n in range(1, 6):
                service.valid.clear()
                calls = (call(gateway, f"{n}-{i}") for i, gateway in enumerate(world.each))
                assert await asyncio.gather(*calls) == ["Tool results: reached"] * 2
                assert service.renewals == n
