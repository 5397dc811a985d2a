"""Two gateways on one database that is slow, gone, or cut off from one of them: all is answered, once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest

from store.cutting_proxy import CuttingProxy, cutting_proxy
from support.gateway import real_process
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from support.waiting import until
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer

SETTINGS = {"CLUSTER__LEASE": "3s", "CLUSTER_TOKEN": "one-token-for-all-gateways"}
WRONG_CLOCK = (sys.executable, str(Path(__file__).with_name("wrong_clock.py")))


async def send(gateway: GatewayProcess, chat: str, text: str) -> str:
    """Send until the message is taken, as a client does that is told to try again."""
    while True:
        try:
            turn = await gateway.call(
                "POST",
                f"/api/sessions/{chat}/messages",
                json={"text": text},
                headers={"Idempotency-Key": f"{chat} {text}"},
            )
            return str(turn["turn_id"])
        except aiohttp.ClientResponseError as error:
            assert error.status == 503, error
            await asyncio.sleep(0.05)


async def reply_to(gateway: GatewayProcess, turn_id: str) -> str:
    turn: dict[str, Any] = {}
    while turn.get("state") not in ("done", "failed", "cancelled"):
        try:
            turn = await gateway.call("GET", f"/api/turns/{turn_id}")
        except aiohttp.ClientResponseError as error:
            assert error.status == 503, error
        await asyncio.sleep(0.05)
    return str(turn["reply"])


async def until_ready(gateway: GatewayProcess, *, is_ready: bool) -> None:
    while True:
        try:
            await gateway.call("GET", "/readyz")
            if is_ready:
                return
        except aiohttp.ClientResponseError as error:
            assert error.status == 503, error
            if not is_ready:
                return
        await asyncio.sleep(0.05)


async def test_two_gateways_answer_all_over_faults_of_the_database_and_of_their_link(
    postgres: PostgresServer,  # noqa: F811
    postgres_database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The clock of the first gateway is an hour ahead, which must not matter to any lease."""
    with cutting_proxy(postgres_database) as (proxy, url):
        async with (
            ModelServer(record=False) as model,
            real_process(
                tmp_path, model, SETTINGS | {"STORE__URL": url}, name="one", program=WRONG_CLOCK
            ) as one,
            real_process(tmp_path, model, SETTINGS | {"STORE__URL": postgres_database}, name="two") as two,
        ):
            turns = await _slow(one, two, postgres_database)
            turns += await _cut_off(one, two, proxy, model)
            turns += await _gone(one, two, postgres, model)
    with psycopg.connect(postgres_database) as db:
        rows = db.execute(
            "SELECT t.id, t.state,"
            " (SELECT count(*) FROM entries e WHERE e.turn_id = t.id AND e.kind = 'user'),"
            " (SELECT count(*) FROM entries e WHERE e.turn_id = t.id AND e.kind = 'assistant')"
            " FROM turns t ORDER BY t.position"
        ).fetchall()
    assert rows == [(turn_id, "done", 1, 1) for turn_id in turns]


async def _slow(one: GatewayProcess, two: GatewayProcess, url: str) -> list[str]:
    """Each order waits for a lock that somebody else has for a while."""
    first = await send(one, "a", "hello")
    assert await reply_to(two, first) == "You said: hello"
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
        waiting = asyncio.create_task(send(two, "a", "slowly"))
        await until(lambda: _waits_for_a_lock(url))
        assert not waiting.done()
    second = await waiting
    assert await reply_to(one, second) == "You said: slowly"
    return [first, second]


async def _waits_for_a_lock(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url) as db:
        found = await db.execute("SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1")
        return await found.fetchone() is not None


async def _hang(gateway: GatewayProcess, chat: str, model: ModelServer) -> str:
    """Begin a turn whose first answer never comes. Its next attempt is answered."""
    await model.until(lambda: not model.answering)
    turn_id = await send(gateway, chat, f"[[first 1 hang]] {chat}")
    await model.until(lambda: model.answering == 1)
    return turn_id


async def _cut_off(
    one: GatewayProcess, two: GatewayProcess, proxy: CuttingProxy, model: ModelServer
) -> list[str]:
    """The gateway that runs a turn loses the database; the other one answers, and the first comes back."""
    hung = await _hang(one, "a", model)
    proxy.lose()
    behind = await send(two, "a", "behind")
    await until_ready(one, is_ready=False)
    assert await reply_to(two, hung) == "You said: a"
    assert await reply_to(two, behind) == "You said: behind"
    assert "cannot be reached" in str(await one.call("GET", "/api/status"))
    proxy.is_gone = False
    await until_ready(one, is_ready=True)
    back = await send(one, "a", "back")
    assert await reply_to(one, back) == "You said: back"
    return [hung, behind, back]


async def _gone(
    one: GatewayProcess, two: GatewayProcess, server: PostgresServer, model: ModelServer
) -> list[str]:
    """The database is gone for longer than the leases, in the middle of a turn."""
    hung = await _hang(one, "b", model)
    server.stop("immediate")
    try:
        for gateway in (one, two):
            await until_ready(gateway, is_ready=False)
            with pytest.raises(aiohttp.ClientResponseError) as refused:
                await gateway.call("POST", "/api/sessions/b/messages", json={"text": "lost"})
            assert refused.value.status == 503
        while (await one.call("GET", "/api/status"))["cluster"]["is_out"] is not True:
            await asyncio.sleep(0.05)
        await model.until(lambda: not model.answering)  # the lease of the turn is younger than the member's
    finally:
        server.start()  # in this thread: the server ends with the thread that started it
    behind = await send(two, "b", "behind")
    assert await reply_to(one, hung) == "You said: b"
    assert await reply_to(one, behind) == "You said: behind"
    return [hung, behind]
