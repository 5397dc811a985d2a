"""`kill -9` around a compaction: nothing is lost or doubled, and there is no half summary."""

from __future__ import annotations

import pytest

from talaria.core.failpoints import Failpoint
from talaria.testing.gateway_process import running_gateway

LONG = "word " * 300
COUNT = 9


@pytest.mark.parametrize(
    "point", [pytest.param(Failpoint.SUMMARISED, marks=pytest.mark.long), Failpoint.COMPACTED]
)
async def test_a_compaction_that_is_killed_is_whole_or_not_there(point: Failpoint) -> None:
    path = "/api/sessions/one"
    async with running_gateway() as (gateway, _):
        for number in range(COUNT):
            said = await gateway.call("POST", f"{path}/messages", json={"text": f"{number} {LONG}"})
            assert (await gateway.ended_turn(said["turn_id"]))["state"] == "done"
        await gateway.kill()
        await gateway.spawn(f"{point}=1")
        assert await gateway.ready()
        ticket = await gateway.call("POST", f"{path}/messages", json={"text": "/compact"})
        assert await gateway.wait(30) is not None, "it was not killed"
        await gateway.start()
        turn = await gateway.ended_turn(ticket["turn_id"])
        assert turn["state"] == "done", turn
        said = await gateway.call("POST", f"{path}/messages", json={"text": "and now?"})
        assert (await gateway.ended_turn(said["turn_id"]))["state"] == "done"
        entries = (await gateway.call("GET", f"{path}/entries?limit=500"))["entries"]
        bodies = [entry["body"] for entry in entries]
        words = [body["parts"][0]["text"].split()[0] for body in bodies if body["type"] == "user"]
        assert words == [*map(str, range(COUNT)), "and"]
        assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
        summaries = [body for body in bodies if body["type"] == "summary"]
        assert len(summaries) == 1 and summaries[0]["text"]
        assert summaries[0]["after"] < summaries[0]["before"]
