"""`kill -9` in the middle of turns: the next start answers what was accepted, in order, each once."""

from __future__ import annotations

import signal

from support.gateway import running_gateway
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer

MESSAGES = 3


async def check_kill(gateway: GatewayProcess, server: ModelServer, chats: int) -> None:
    """Kill the gateway while each chat has a turn that runs and others that wait, and start it again."""
    tickets = {}
    for number in range(MESSAGES):
        for chat in range(chats):
            fault = "[[first 1 hang]]" if number == 0 else ""
            call = f'[[call write_file {{"path":"{number}","content":"x"}}]]'
            text = f"{call}{fault} {chat} {number}"
            path = f"/api/sessions/chat-{chat}/messages"
            tickets[chat, number] = await gateway.call("POST", path, json={"text": text})
    await server.until(lambda: server.answering == chats)
    await gateway.kill()
    await gateway.start()
    for (chat, _), ticket in tickets.items():
        turn = await gateway.ended_turn(ticket["turn_id"])
        assert turn["state"] == "done", turn
        assert turn["session_id"] == tickets[chat, 0]["session_id"]
    for chat in range(chats):
        entries = (await gateway.call("GET", f"/api/sessions/chat-{chat}/entries"))["entries"]
        said = [entry for entry in entries if entry["body"]["type"] == "user"]
        assert [entry["body"]["parts"][0]["text"][-1] for entry in said] == ["0", "1", "2"]
        assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert (await gateway.call("GET", "/api/status"))["owed"]["turns"] == 0


async def test_what_was_accepted_before_a_kill_is_answered_after_it() -> None:
    async with running_gateway() as (gateway, server):
        await check_kill(gateway, server, 6)
        await gateway.kill(signal.SIGTERM)
        assert await gateway.wait() == 0
