"""The examples of docs/webhooks.md are called as a sender would call them."""

from __future__ import annotations

import re
import time
import tomllib
from pathlib import Path

import aiohttp
import msgspec
import pytest

from support.gateway import in_process
from support.webhook_calls import SECRET, sign
from talaria.core.ids import TurnId
from talaria.testing.model_server import ModelServer

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```.*?```json\n(.*?)```.*?```text\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_three_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize(("table", "body", "message"), EXAMPLES, ids=["github", "payments", "other"])
async def test_example_makes_the_message_that_the_page_shows(
    tmp_path: Path, table: str, body: str, message: str
) -> None:
    hooks = tomllib.loads(table)["webhooks"]
    ((name, hook),) = hooks.items()
    hook |= {"secret": SECRET, "deliver_to": ""}
    data = body.strip().encode()
    headers = sign(hook["signature"], data, event_id="1", at=time.time())
    async with ModelServer() as model, in_process(tmp_path, model, tables={"webhooks": hooks}) as api:
        async with aiohttp.ClientSession() as sender:
            url = f"{api.url}/hooks/{name}"
            async with sender.post(url, data=data, headers=headers) as answer:
                assert answer.status == 202
                turn_id = msgspec.json.decode(await answer.read())["turn_id"]
        live = await api.gateway.turns.find(TurnId(turn_id))
        turn = await api.gateway.turns.wait(live)
    assert turn.inbound.text.endswith("\n\n" + message.strip())
