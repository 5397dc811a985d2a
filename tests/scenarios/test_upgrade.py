"""A gateway of the version before is killed in the middle of its work, and this version continues it."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.earlier_version import earlier_version  # noqa: F401 - a fixture
from support.gateway import real_process
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from support.programs import needs
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer

PATIENCE = 60.0  # seconds; jobs that come due together are spread over 30


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    settings = {"LOG__LEVEL": "error"}
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_database")
        settings |= {"STORE__URL": url, "CLUSTER__LEASE": "2s", "CLUSTER_TOKEN": "one-token-for-all-gateways"}
    return settings


async def state(gateway: GatewayProcess, turn: str) -> str:
    return str((await gateway.call("GET", f"/api/turns/{turn}"))["state"])


async def until_state(gateway: GatewayProcess, turn: str, wanted: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while await state(gateway, turn) != wanted:
            await asyncio.sleep(0.02)


async def lines(gateway: GatewayProcess, session: str) -> list[str]:
    """The entries of a chat's log as JSON."""
    log = await gateway.call("GET", f"/api/sessions/{session}/entries")
    return [json.dumps(entry) for entry in log["entries"]]


@needs("bwrap")
async def test_work_of_the_version_before_continues_after_a_kill(
    settings: dict[str, str],
    tmp_path: Path,
    earlier_version: Path,  # noqa: F811
) -> None:
    async with ModelServer(record=False) as model:
        async with real_process(tmp_path, model, settings, source=earlier_version) as old:
            await old.say("talk", "one")
            start = '[[call terminal {"command": "sleep 120 && echo over", "background": true}]][[reply ok]]'
            await old.say("shell", start)
            asking = await old.begin("ask", '[[call ask_user {"question": "Which?"}]][[reply thanks]]')
            await until_state(old, asking, "waiting")
            due = datetime.fromtimestamp(time.time() + 2, UTC).isoformat()
            await old.say("jobs", "hello")
            for job in (
                {"text": "remind me in 4 seconds to stretch"},
                {"text": "tell me something", "at": due},
            ):
                await old.call("POST", "/api/jobs", json={**job, "chat": "jobs"})
            running = await old.begin("run", "[[first 1 hang]][[reply after the restart]]")
            await until_state(old, running, "running")
            await old.kill()
        async with real_process(tmp_path, model, settings) as new:
            assert (await new.say("talk", "[[history]]"))["reply"] == "4", "system, one, its answer, this"
            assert (await new.ended_turn(running))["reply"] == "after the restart"
            assert await state(new, asking) == "waiting"
            await new.begin("ask", "the second")
            assert (await new.ended_turn(asking))["reply"] == "thanks"
            listed = await new.say("shell", '[[call process {"action": "list"}]]')
            assert "runs: sleep 120" in str(listed["reply"])
            await new.call("DELETE", "/api/sessions/shell")  # ends the process
            async with asyncio.timeout(PATIENCE):
                while (
                    len(said := await lines(new, "jobs")) < 5
                ):  # the spec, a message, its answer, two results
                    await asyncio.sleep(0.1)
            assert [sum(word in line for line in said) for word in ("stretch", "something")] == [1, 1], said
