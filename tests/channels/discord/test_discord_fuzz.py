"""Random broken events over the real connection: nothing breaks, and nobody gets in."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from channels.discord.discord_line import ADA, discord_line
from support.telegram_fuzz import mutate
from support.waiting import until
from talaria.channels.channel_loop import ChannelPhase
from talaria.testing.discord_platform import BOT_ID, DiscordPlatform
from talaria.testing.discord_server import DiscordServer

EVE = 99
Event = tuple[str, dict[str, Any]]


def corpus(platform: DiscordPlatform) -> list[Event]:
    """Return valid events of every kind, from the allowed person and from another one."""
    found: list[Event] = []
    kept, platform.on_event = platform.on_event, lambda name, data: found.append((name, data))
    channel = platform.channel()
    for person in (platform.person(ADA), platform.person(EVE, "Eve")):
        for place in (platform.private(person), channel):
            said = person.says(f"<@{BOT_ID}> hello", place)
            person.says("answer", place, reply_to=said)
            person.says("look", place, file=("a.txt", b"x"))
            person.edits(said, f"<@{BOT_ID}> hello again")
            person.runs("status", "now", place)
            said.buttons = (("Yes", "/status"),)
            person.presses(said, "Yes")
            person.reacts(said, "👍")
            person.purges(person.says("one", place), person.says("two", place))
            person.deletes(said)
    platform.thread(channel, BOT_ID, next(iter(channel.messages.values())))
    for name in ("GUILD_CREATE", "CHANNEL_UPDATE", "THREAD_DELETE", "TYPING_START", "READY"):
        found.append((name, {"id": "1", "session_id": "s", "resume_gateway_url": "ws://127.0.0.1:1"}))
    platform.on_event = kept
    return found


def sender_of(event: Event) -> str:
    _, data = event
    for path in (("author",), ("user",), ("member", "user")):
        found: Any = data
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict):
            return str(found.get("id"))
    return ""


async def fuzz(folder: Path, server: DiscordServer, count: int, errors: Callable[[], list[str]]) -> int:
    random = Random(7)
    async with discord_line(folder, server, progress="off") as line:
        known = [event for event in corpus(server.platform) if event[0] != "READY"]
        own = 0

        def is_idle() -> bool:
            return line.channel.position is not None and not line.channel.position.pending

        for number in range(count):
            name, data = random.choice(known)
            event = name, mutate(data, random) if random.random() < 0.95 else json.loads("[]")
            own += sender_of(event) == str(ADA) if isinstance(event[1], dict) else 0
            server.dispatch(*event)
            if number % 50 == 0:
                await until(is_idle)
        line.ada.says("the last one")
        await server.until(lambda: any("the last one" in text for text in line.chat.replies))
        await until(is_idle)
        assert line.channel.phase is ChannelPhase.READY
        turns = await line.rig.store.histories.recent(100)
        assert {turn.inbound.sender.id for turn in turns} == {str(ADA)}
        assert await line.turns() <= own + 1
        assert errors() == []
        return await line.turns()


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.long)])
async def test_fuzzed_events_break_nothing_and_let_nobody_in(
    tmp_path: Path, discord: DiscordServer, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    def errors() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]

    turns = await fuzz(tmp_path, discord, count, errors)
    # Most mutated events repeat the ids of a few messages, so the turns are fewer than the events.
    assert turns > min(count / 50, 20), "events are refused before they matter"


@pytest.mark.parametrize("stranger", ["unknown", "bot", "webhook", "nobody"])
async def test_no_kind_of_event_of_a_stranger_is_a_turn(
    tmp_path: Path, discord: DiscordServer, stranger: str
) -> None:
    """The last three have the id of the person who is allowed, or none."""

    def disguise(data: dict[str, Any]) -> dict[str, Any]:
        data = json.loads(json.dumps(data))
        people = [data.get("author"), data.get("user"), (data.get("member") or {}).get("user")]
        for person in filter(None, people):
            if stranger == "bot":
                person["bot"] = True
            elif stranger == "nobody":
                person["id"] = ""
        return data | ({"webhook_id": "5"} if stranger == "webhook" else {})

    sender = EVE if stranger == "unknown" else ADA
    async with discord_line(tmp_path, discord, progress="off") as line:
        events = [event for event in corpus(discord.platform) if sender_of(event) == str(sender)]
        if stranger == "webhook":  # they write messages only
            events = [event for event in events if event[0].startswith("MESSAGE")]
        assert len({(name, data.get("type")) for name, data in events}) >= (3 if stranger == "webhook" else 5)
        for name, data in events:
            discord.dispatch(name, disguise(data))
        line.ada.says("the last one")
        await line.answers(1)
        await until(lambda: line.channel.position is not None and not line.channel.position.pending)
        assert await line.turns() == 1
