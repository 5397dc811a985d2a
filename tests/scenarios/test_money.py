"""`kill -9` while money is set aside: the next start counts it as spent, once."""

from __future__ import annotations

from decimal import Decimal

from support.gateway import running_gateway

CHATS = 4
CONFIG = """\
[prices."scripted/*"]
input = 1.0
output = 10.0
max_output = 1000

[budgets]
per_day_usd = 1.0
"""


async def test_a_kill_in_the_middle_of_calls_costs_what_was_set_aside_and_nothing_twice() -> None:
    async with running_gateway(config=CONFIG) as (gateway, server):
        turns = []
        for chat in range(CHATS):
            text = f"[[call list_files {{}}]][[first 1 hang]] {chat}"
            turns.append(await gateway.begin(f"chat-{chat}", text))
        await server.until(lambda: server.answering == CHATS and server.requests == 2 * CHATS)
        before = (await gateway.call("GET", "/api/status"))["spending"]
        assert Decimal(before["reserved_usd"]) > CHATS * Decimal("0.01")
        await gateway.kill()
        await gateway.start()
        settled = [await gateway.ended_turn(turn_id) for turn_id in turns]
        assert [turn["state"] for turn in settled] == ["done"] * CHATS
        after = (await gateway.call("GET", "/api/status"))["spending"]
        assert after["reserved_usd"] == "0.00"
        paid = sum(Decimal(turn["usage"]["cost_usd"]) for turn in settled)
        lost = Decimal(before["today_usd"]) + Decimal(before["reserved_usd"])
        assert Decimal(after["today_usd"]) == paid > lost
        assert after["estimated_calls"] == CHATS
        assert [turn["usage"]["estimated_calls"] for turn in settled] == [1] * CHATS
        assert after["caps_usd"] == {"per_day_usd": "1.00"}
