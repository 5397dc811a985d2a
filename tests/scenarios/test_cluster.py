"""Several gateways on one PostgreSQL serve the same chats: real processes, real kills."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from gateways import Gateways, running_gateways
from postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from talaria.testing.gateway_process import GatewayProcess

HANG = "[[first 1 hang]]"


async def send(gateway: GatewayProcess, chat: str, text: str) -> str:
    ticket = await gateway.call("POST", f"/api/sessions/{chat}/messages", json={"text": text})
    return str(ticket["turn_id"])


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


@pytest.mark.long
async def test_gateways_on_one_database_serve_the_same_chats(
    postgres_database: str,  # noqa: F811
) -> None:
    async with running_gateways(postgres_database, {}, {"SESSIONS__BUSY": "interrupt"}) as world:
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
    turn_ids = [await send(here, "order", f"{HANG} 0")]
    for number in range(1, 7):
        gateway = here if number % 2 else there
        turn_ids.append(await send(gateway, "order", f"/queue {number}"))
    await world.model.until(lambda: world.model.answering == 1)
    await send(there, "order", "/stop")
    replies = [await reply_of(there, turn_id) for turn_id in turn_ids[1:]]
    assert replies == [f"You said: {number}" for number in range(1, 7)]
    assert said(world, turn_ids) == turn_ids
    owners = world.ask("SELECT DISTINCT member FROM turns WHERE id = ANY(%s)", turn_ids)
    assert len(owners) == 1


async def check_control(world: Gateways) -> None:
    """A message joins a turn elsewhere, another interrupts it."""
    here, there = world.each
    host = await send(here, "control", f"{HANG} host")
    await world.model.until(lambda: world.model.answering == 1)
    steer = await send(there, "control", "/steer more")
    assert world.ask("SELECT merged_into FROM turns WHERE id = %s", steer) == [(host,)]
    next_one = await send(there, "control", "instead")
    assert (await there.ended_turn(host))["state"] == "cancelled"
    assert await reply_of(there, steer) == "You said: more"
    assert await reply_of(there, next_one) == "You said: instead"
    assert said(world, [host, steer, next_one]) == [host, steer, next_one]


async def check_answer(world: Gateways) -> None:
    """A message to one gateway answers a question of a turn that waits at the other."""
    here, there = world.each
    asked = await send(here, "answer", '[[call ask_user {"question": "Which colour?"}]]')
    await world.until("SELECT 1 FROM turns WHERE id = %s AND state = 'waiting'", asked)
    answer = await send(there, "answer", "blue")
    assert "blue" in await reply_of(there, asked)
    assert (await there.ended_turn(answer))["state"] == "done"
    assert said(world, [answer]) == [], "it is no message of its own"


async def check_kill(world: Gateways) -> None:
    """What a gateway had when it was killed is done by the other, in order. Its next life does new work."""
    here, there = world.each
    turn_ids = [await send(here, "kill", f"{HANG} 0"), await send(here, "kill", "1")]
    turn_ids.append(await send(there, "kill", "/queue 2"))
    await world.model.until(lambda: world.model.answering == 1)
    await here.kill()
    assert [await reply_of(there, turn_id) for turn_id in turn_ids] == [f"You said: {n}" for n in range(3)]
    assert said(world, turn_ids) == turn_ids
    await here.start()
    assert await reply_of(here, await send(here, "kill", "3")) == "You said: 3"


async def check_drain(world: Gateways) -> None:
    """A gateway that shuts down gives up what it has, at once."""
    here, there = world.each
    turn_ids = [await send(here, "drain", f"{HANG} 0"), await send(here, "drain", "1")]
    await world.model.until(lambda: world.model.answering == 1)
    here.send_signal(signal.SIGTERM)
    assert await here.wait() == 0
    assert [await reply_of(there, turn_id) for turn_id in turn_ids] == ["You said: 0", "You said: 1"]
    assert said(world, turn_ids) == turn_ids


async def check_pause(world: Gateways) -> None:
    """A gateway that was stopped for longer than its lease loses its turns, and writes nothing more."""
    here, there = world.each
    turn_ids = [await send(here, "pause", f"{HANG} 0"), await send(here, "pause", "1")]
    await world.model.until(lambda: world.model.answering == 1)
    here.send_signal(signal.SIGSTOP)
    try:
        replies = [await reply_of(there, turn_id) for turn_id in turn_ids]
    finally:
        here.send_signal(signal.SIGCONT)
    assert replies == ["You said: 0", "You said: 1"]
    assert said(world, turn_ids) == turn_ids
    turn_id = await send(here, "pause", "2")
    assert await reply_of(here, turn_id) == "You said: 2"
