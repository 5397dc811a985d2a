"""Memory over `kill -9`: in a real process, at each point around a write and around a note."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.gateway import real_process
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer

ADD = '[[call memory {"action":"add","text":"Has a cat."}]][[reply ok]]'
FORGET = '[[call memory {"action":"forget","old":"cat"}]][[reply ok]]'


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
async def test_a_write_that_is_cut_off_is_made_once(tmp_path: Path, point: str) -> None:
    """The fact is written before the kill or after the restart, and a later `forget` holds."""
    async with ModelServer() as model, real_process(tmp_path, model, failpoints=f"{point}=1") as gateway:
        turn_id = await gateway.begin("one", ADD)
        assert await gateway.wait(60) == -9
        await gateway.start()
        assert (await gateway.ended_turn(turn_id))["state"] == "done"
        assert facts(gateway) == ["- Has a cat."]
        await gateway.say("two", FORGET)
        assert facts(gateway) == []


@pytest.mark.long
async def test_a_note_is_told_once_although_the_process_dies_before_it_knows_so(tmp_path: Path) -> None:
    async with (
        ModelServer() as model,
        real_process(tmp_path, model, failpoints="process.noted=1") as gateway,
    ):
        await gateway.say("other", "hello")
        await gateway.say("one", ADD)
        turn_id = await gateway.begin("other", "and now?")
        assert await gateway.wait(60) == -9
        await gateway.start()
        assert (await gateway.ended_turn(turn_id))["state"] == "done"
        await gateway.say("other", "again")
        said = [str(message["content"]) for message in json.loads(model.bodies[-1])["messages"]]
        assert sum("+ Has a cat." in text for text in said) == 1
