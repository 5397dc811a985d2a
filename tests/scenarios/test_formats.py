"""A conversation goes on when its provider is spoken to in another way from one start to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gateway import without_http
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.testing.model_server import ModelServer

APIS = ("openai-chat", "anthropic-messages", "openai-responses", "openai-chat")


@pytest.mark.parametrize(
    "apis", [APIS, APIS[::-1], ("anthropic-messages", "openai-chat", "anthropic-messages")]
)
async def test_the_history_survives_a_change_of_wire_format(tmp_path: Path, apis: tuple[str, ...]) -> None:
    chat = ChatAddress("main", "test", "dm", "one").key()
    text = '[[think hm]][[call todo {"items":[{"text":"x","status":"done"}]}]][[reply noted]] step'
    sessions = set()
    async with ModelServer() as server:
        for number, api in enumerate(apis):
            provider = {"base_url": server.base_url, "api": api, "api_key": "sk-test"}
            tables = {"model": {"provider": "fake", "name": "m"}, "providers": {"fake": provider}}
            async with without_http(tmp_path, server, tables=tables) as gateway:
                said = Inbound(chat, Sender("tester"), (Text(f"{text} {number}"),))
                turn = await gateway.turns.wait(await gateway.turns.submit(said))
                assert (turn.state, turn.reply) == (TurnState.DONE, "noted"), turn
                sessions.add(turn.session_id)
            body = bytes(server.bodies[-1])
            assert all(f"step {earlier}".encode() in body for earlier in range(number + 1))
    assert len(sessions) == 1
