"""`kill -9` around a compaction: nothing is lost or doubled, and there is no half summary."""

from __future__ import annotations

import pytest

from support.gateway import running_gateway
from talaria.core.failpoints import Failpoint

LONG = "word " * 300
COUNT = 9


@pytest.mark.parametrize(
    "point", [pytest.param(Failpoint.SUMMARISED, marks=pytest.mark.long), Failpoint.COMPACTED]
)
async def test_a_compaction_that_is_killed_is_whole_or_not_there(point: Failpoint) -> None:
    async with running_gateway() as (gateway, _):
        for number in range(COUNT):
            await gateway.say("one", f"{number} {LONG}")
        await gateway.kill()
        await gateway.spawn(f"{point}=1")
        assert await gateway.ready()
        turn_id = await gateway.begin("one", "/compact")
        assert await gateway.wait(30) is not None, "it was not killed"
        await gateway.start()
        turn = await gateway.ended_turn(turn_id)
        assert turn["state"] == "done", turn
        await gateway.say("one", "and now?")
        entries = (await gateway.call("GET", "/api/sessions/one/entries?limit=500"))["entries"]
        bodies = [entry["body"] for entry in entries]
        words = [body["parts"][0]["text"].split()[0] for body in bodies if body["type"] == "user"]
        assert words == [*map(str, range(COUNT)), "and"]
        assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
        summaries = [body for body in bodies if body["type"] == "summary"]
        assert len(summaries) == 1 and summaries[0]["text"]
        assert summaries[0]["after"] < summaries[0]["before"]
