"""Random broken events for the Slack channel, and a check of the turns that come from them."""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from support.telegram_fuzz import Fuzzed, _Errors, mutate
from talaria.access.authorizer import Authorizer
from talaria.channels.slack.events import EventHandler
from talaria.channels.slack.outlet import SlackOutlet
from talaria.channels.slack.parse import Ignored, Rules, parse
from talaria.channels.slack.slack_api import BotIdentity, SlackApi
from talaria.config.settings import Settings
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatKey
from talaria.core.turns import Inbound
from talaria.store.in_memory import MemoryStore
from talaria.testing.slack_platform import BOT_USER, Json, SlackPlatform
from talaria.workspace.places import ChatFolders

ALLOWED = "U7ADA"
BOT = BotIdentity(BOT_USER)


def corpus() -> list[tuple[str, Json]]:
    """Return valid events of every kind, from the allowed user and from others."""
    world = SlackPlatform()
    world.has_mention_events = True
    for person in (world.person(ALLOWED), world.person("U9EVE", "Eve")):
        for place in (person.dm, world.conversation("C1"), world.conversation("G1")):
            said = person.says("@talaria hello", place)
            person.says("!status", place, said["ts"])
            person.sends("a.png", b"x", "@talaria look", place=place)
            shared = {"is_share": True, "author_id": "U8", "text": "a plan"}
            person.says("@talaria see", place, attachments=[shared])
            person.edits(said, "@talaria hello again")
            button = {"type": "button", "text": {"type": "plain_text", "text": "Go"}, "action_id": "b"}
            block = {"type": "actions", "elements": [button | {"value": "/status"}]}
            ts = world.call("chat.postMessage", {"channel": place.id, "text": "x", "blocks": [block]})["ts"]
            person.presses(place.messages[ts], "Go", place)
            person.commands("status", place)
            person.deletes(said)
            world.arrive(place, {"user": "U5", "bot_id": "B5", "text": f"<@{BOT_USER}> hello"})
    return list(world.log)


def is_their_own(payload: Json) -> bool:
    """Return whether the event says that the allowed user caused it."""
    if "event" in payload:
        event = payload["event"]
        body = event.get("message") if event.get("subtype") == "message_changed" else event
        return isinstance(body, dict) and body.get("user") == ALLOWED and not body.get("bot_id")
    if "user_id" in payload:
        return bool(payload["user_id"] == ALLOWED)
    user = payload.get("user")
    return isinstance(user, dict) and user.get("id") == ALLOWED


async def fuzz(count: int, seed: int = 0) -> Fuzzed:
    random, known, result = Random(seed), corpus(), Fuzzed()
    heard: list[Inbound] = []
    clock = SystemClock()
    logger, handler = logging.getLogger("talaria"), _Errors(result.uncaught)
    logger.addHandler(handler)

    async def note(value: Inbound) -> None:
        heard.append(value)

    async def current_session(key: ChatKey) -> object | None:
        return object() if random.random() < 0.5 else None

    async def amend(value: Inbound, edit_key: str) -> bool:
        return False

    async def find(question: str) -> None:
        raise AssertionError("no button of the corpus decides")

    try:
        with tempfile.TemporaryDirectory(prefix="talaria-fuzz-") as folder:
            async with SlackApi("http://127.0.0.1:1", "xoxb-token") as api:
                authorizer = Authorizer(MemoryStore(clock).pairings, {"slack": [ALLOWED]}, clock)
                gateway: Any = SimpleNamespace(
                    turns=SimpleNamespace(
                        submit=note,
                        amend=amend,
                        withdraw=lambda chat, key: False,
                        decisions=SimpleNamespace(find=find),
                    ),
                    store=SimpleNamespace(current_session=current_session),
                    folders=ChatFolders(Path(folder)),
                    settings=Settings(),
                    clock=clock,
                )
                events = EventHandler(api, SlackOutlet(api, clock, "off"), authorizer, gateway)
                rules = Rules(BOT, "main", commands=frozenset({"status"}))
                for _ in range(count):
                    kind, payload = random.choice(known)
                    payload = mutate(payload, random)
                    data = json.dumps(payload).encode()
                    if random.random() < 0.05:
                        data = data[: random.randrange(len(data))] + random.randbytes(3)
                        payload = {"event": {}}
                    result.updates += 1
                    await _throw(events, rules, kind, data, result)
                    if heard and not is_their_own(payload):
                        result.wrong.append(payload)
                    result.turns += len(heard)
                    heard.clear()
    finally:
        logger.removeHandler(handler)
    return result


async def _throw(events: EventHandler, rules: Rules, kind: str, data: bytes, result: Fuzzed) -> None:
    try:
        parsed = parse(kind, data, rules)
        if not isinstance(parsed, Ignored):
            result.decoded += 1
            await events.handle(parsed, rules.bot)
    except Exception as error:  # counting these is the purpose
        result.uncaught.append(f"{error!r} {data[:500]!r}")
