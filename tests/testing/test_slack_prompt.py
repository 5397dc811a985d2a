"""The prompt of the fake Slack does what its lines say."""

from __future__ import annotations

import asyncio

from support.waiting import until
from talaria.testing.slack_prompt import SlackPrompt
from talaria.testing.slack_server import SlackServer

BUTTON = {"type": "button", "text": {"type": "plain_text", "text": "Go"}, "action_id": "a", "value": "v"}
ASK = [{"type": "actions", "elements": [BUTTON]}]


async def test_lines_become_what_a_person_does() -> None:
    shown: list[str] = []
    async with SlackServer() as server:
        prompt = SlackPrompt(server, shown.append)
        watching = asyncio.create_task(prompt.watch())
        for line in ("hello @talaria", "edit hello", "/talaria status", "in general", "root", "> reply", ""):
            await prompt.take(line)
        server.platform.call("chat.postMessage", {"channel": "C1GENERAL", "text": "ask", "blocks": ASK})
        await until(lambda: "  [1] Go" in shown)
        for line in ("1", "2", "delete", "help"):
            await prompt.take(line)
        watching.cancel()
        await asyncio.wait((watching,))
    pushed = [(kind, payload.get("event", payload)) for kind, payload in server.platform.log]
    kinds = [f"{kind} {event.get('subtype', event.get('type', ''))}".strip() for kind, event in pushed]
    assert kinds == [
        "events_api message", "events_api message_changed", "slash_commands", "events_api message",
        "events_api message", "events_api message", "interactive block_actions", "events_api message",
        "events_api message_deleted",
    ]  # fmt: skip
    assert pushed[4][1]["thread_ts"] == pushed[3][1]["ts"]
    assert pushed[7][1]["text"] == "2", "there is no second button, so it is a message"
    assert "talaria: " in shown
