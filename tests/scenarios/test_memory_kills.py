"""Memory over `kill -9`: in a real process, at each point around a write and around a note."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer

ADD = '[[call memory {"action":"add","text":"Has a cat."}]][[reply ok]]'
FORGET = '[[call memory {"action":"forget","old":"cat"}]][[reply ok]]'


async def send(gateway: GatewayProcess, name: str, text: str) -> str:
    ticket: Any = await gateway.call("POST", f"/api/sessions/{name}/messages", json={"text": text})
    return str(ticket["turn_id"])


async def say(gateway: GatewayProcess, name: str, text: str) -> None:
    assert (await gateway.ended_turn(await send(gateway, name, text)))["state"] == "done"


@asynccontextmanager
async def killed_gateway(point: str) -> AsyncIterator[tuple[GatewayProcess, ModelServer]]:
    """A gateway that dies at the first hit of a failpoint."""
    with tempfile.TemporaryDirectory(prefix="talaria-memory-") as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        async with ModelServer(record=True) as model:
            settings = {"MODEL__PROVIDER": "scripted", "PROVIDERS__SCRIPTED__BASE_URL": model.base_url}
            async with GatewayProcess(home, Path(folder) / "log", settings) as gateway:
                await gateway.spawn(f"{point}=1")
                assert await gateway.ready()
                yield gateway, model


def facts(gateway: GatewayProcess) -> list[str]:
    lines = (gateway.home / "memory" / "main" / "MEMORY.md").read_text().splitlines()
    return [line.partition(" <!--")[0] for line in lines if line.startswith("- ")]


@pytest.mark.parametrize(
    "point",
    [
        "memory.written",
        *(
            pytest.param(point, marks=pytest.mark.long)
            for point in ("tool.started", "memory.writing", "tool.ran")
        ),
    ],
)
async def test_a_write_that_is_cut_off_is_made_once(point: str) -> None:
    """The fact is written before the kill or after the restart, and a later `forget` holds."""
    async with killed_gateway(point) as (gateway, _):
        turn_id = await send(gateway, "one", ADD)
        assert await gateway.wait(60) == -9
        await gateway.start()
        assert (await gateway.ended_turn(turn_id))["state"] == "done"
        assert facts(gateway) == ["- Has a cat."]
        await say(gateway, "two", FORGET)
        assert facts(gateway) == []


@pytest.mark.long
async def test_a_note_is_told_once_although_the_process_dies_before_it_knows_so() -> None:
    async with killed_gateway("process.noted") as (gateway, model):
        await say(gateway, "other", "hello")
        await say(gateway, "one", ADD)
        turn_id = await send(gateway, "other", "and now?")
        assert await gateway.wait(60) == -9
        await gateway.start()
        assert (await gateway.ended_turn(turn_id))["state"] == "done"
        await say(gateway, "other", "again")
        said = [str(message["content"]) for message in json.loads(model.bodies[-1])["messages"]]
        assert sum("+ Has a cat." in text for text in said) == 1
