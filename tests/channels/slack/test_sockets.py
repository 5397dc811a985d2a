"""Socket Mode: acknowledgements, refreshes and cut connections, and what the status says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.slack.line import slack, way_back
from support.waiting import until
from talaria.channels.slack.part import SPLIT, UNCONFIRMED
from talaria.channels.slack.slack_api import SlackApi
from talaria.core.delivery import OutgoingMessage
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.contracts.channel_suite import FailingStore
from talaria.testing.slack_server import APP_TOKEN, BOT_TOKEN, SlackFault, SlackFaultKind, SlackServer


async def test_connected_is_shown_only_after_an_event(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server) as line:
        await server.until(lambda: bool(server.sockets))
        await until(lambda: line.channel.status == f"starting: {UNCONFIRMED}")
        line.ada.says("hello")
        await line.answers(1)
        assert line.channel.status == "ready"
        await server.cut()
        await server.until(lambda: bool(server.sockets))
        await until(lambda: line.channel.status == "ready")


async def test_a_second_program_on_the_app_shows_in_the_status(tmp_path: Path, server: SlackServer) -> None:
    """Slack splits the events of an app over all its sockets, so some would never come here."""
    async with (
        SlackApi(server.api_url, APP_TOKEN) as other,
        other.open_socket(),
        slack(tmp_path, server, clock=FakeClock(), progress="off") as line,
    ):
        await server.until(lambda: len(server.sockets) == 2)
        line.ada.says("one")
        line.ada.says("two")
        await line.pass_time(lambda: line.channel.status == "ready")
        await line.pass_time(lambda: line.channel.status == f"ready: {SPLIT}")
        assert line.clock.elapsed() >= 120, "Slack also counts a socket that has just broken"


async def test_a_refresh_loses_and_repeats_nothing(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server) as line:
        line.ada.says("one")
        await line.answers(1)
        await server.refresh()
        await server.until(lambda: len(server.sockets) == 2)
        for word in ("two", "three"):
            line.ada.says(word)
        await line.answers(3)
        assert line.channel.status == "ready", "its own second socket is not another program"
        await server.sockets[1].connection.close()
        line.ada.says("four")
        assert await line.answers(4) == [f"You said: {word}" for word in ("one", "two", "three", "four")]
        await line.handled()
        assert server.wrong_acks == []


async def test_an_event_over_two_sockets_is_one_turn(tmp_path: Path, server: SlackServer) -> None:
    store = MemoryStore(FakeClock())
    async with slack(tmp_path, server, store=store) as line:
        server.twice = True
        await server.refresh()
        line.ada.says("one")
        await server.until(lambda: len(server.sockets) >= 1)
        line.ada.says("two")
        assert await line.answers(2) == ["You said: one", "You said: two"]
        await line.handled()
    assert sum((await store.stats()).turns.values()) == 2


async def test_events_on_a_socket_that_breaks_come_again(tmp_path: Path, server: SlackServer) -> None:
    clock = FakeClock()
    store = FailingStore(clock)
    async with slack(tmp_path, server, store=store, clock=clock, progress="off") as line:
        await server.until(lambda: bool(server.sockets))
        store.is_sick = True
        line.ada.says("one")
        await server.until(lambda: bool(server.sockets and server.sockets[1].unacknowledged))
        await line.pass_time(lambda: store.refused > 0)
        await server.cut()
        store.is_sick = False
        await line.pass_time(lambda: len(line.ada.dm.replies) == 1 and not server.unacknowledged)
    assert sum((await store.stats()).turns.values()) == 1


async def test_a_message_that_is_stored_late_keeps_its_place(tmp_path: Path, server: SlackServer) -> None:
    clock = FakeClock()
    store = FailingStore(clock)
    async with slack(tmp_path, server, store=store, clock=clock, progress="off") as line:
        store.is_sick = True
        line.ada.says("one")
        await line.pass_time(lambda: store.refused > 0)
        assert line.channel.status == "waiting: The disk is full."
        line.ada.says("two")
        store.is_sick = False
        await line.pass_time(lambda: len(line.ada.dm.replies) == 2 and not server.unacknowledged)
        assert line.ada.dm.replies == ["You said: one", "You said: two"]
        assert line.channel.status == "ready"


async def test_an_unacknowledged_event_that_comes_again_is_one_turn(
    tmp_path: Path, server: SlackServer
) -> None:
    async with SlackServer(ack_seconds=0.01) as impatient:
        clock = FakeClock()
        store = FailingStore(clock)
        async with slack(tmp_path, impatient, store=store, clock=clock, progress="off") as line:
            store.is_sick = True
            line.ada.says("one")
            first = impatient.platform.log[-1]
            await line.pass_time(lambda: store.refused > 0)
            impatient.repeat(*first)
            store.is_sick = False
            await line.pass_time(lambda: bool(line.ada.dm.replies) and not impatient.unacknowledged)
        assert sum((await store.stats()).turns.values()) == 1


@pytest.mark.parametrize(
    "payload", [{}, {"type": "event_callback"}, {"event": {"type": "message", "text": 5}}]
)
async def test_an_event_of_no_use_is_acknowledged(
    tmp_path: Path, server: SlackServer, payload: dict[str, object]
) -> None:
    async with slack(tmp_path, server) as line:
        server.platform.push("events_api", payload)
        server.platform.push("a_new_type", payload)
        await line.handled()
        assert line.inbounds == []


async def test_socket_mode_that_is_off_says_so_and_waits(tmp_path: Path, server: SlackServer) -> None:
    server.is_socket_mode = False
    clock = FakeClock()
    async with slack(tmp_path, server, clock=clock) as line:
        await until(lambda: line.channel.status.startswith("waiting: Socket Mode is switched off"))
        server.is_socket_mode = True
        await line.pass_time(lambda: bool(server.sockets))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bot_token": "xoxb-wrong"}, "does not know this bot token"),
        ({"bot_token": APP_TOKEN, "app_token": BOT_TOKEN}, "swapped"),
        ({"app_token": BOT_TOKEN}, "swapped"),
    ],
)
async def test_a_refused_token_stops_the_channel_with_the_reason(
    tmp_path: Path, server: SlackServer, settings: dict[str, Any], words: str
) -> None:
    async with slack(tmp_path, server, **settings) as line:
        await until(lambda: line.channel.status.startswith("stopped: "))
        assert words in line.channel.status


@pytest.mark.parametrize(
    "kind", [SlackFaultKind.HTML, SlackFaultKind.STATUS, SlackFaultKind.CUT_BEFORE, SlackFaultKind.RATE_LIMIT]
)
async def test_a_failing_slack_is_tried_again(
    tmp_path: Path, server: SlackServer, kind: SlackFaultKind
) -> None:
    clock = FakeClock()
    server.fail("auth.test", SlackFault(kind))
    server.fail("apps.connections.open", SlackFault(kind))
    async with slack(tmp_path, server, clock=clock) as line:
        await line.pass_time(lambda: bool(server.sockets))
        line.ada.says("hello")
        await line.pass_time(lambda: line.ada.dm.replies == ["You said: hello"])


async def test_a_stream_and_its_final_text_are_one_message(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server, progress="full") as line:
        line.ada.says("[[chunks 6]][[chunk-delay 0.2]][[reply one two three four five six]]")
        await server.until(lambda: any(text.endswith("▌") for text in line.ada.dm.replies))
        assert await line.answers(1) == ["one two three four five six"]
        assert server.count("chat.postMessage") == 1 and server.count("chat.update") >= 1


async def test_edits_slow_down_when_many_turns_are_shown(server: SlackServer) -> None:
    """Slack counts the edits of all messages of an app together: 50 a minute."""
    clock = FakeClock()
    async with way_back(server, clock) as outlet:
        first = await outlet.deliver(OutgoingMessage("D7ADA:", "one", "n"))
        assert outlet.edit_pause("D7ADA:") == 2
        for number in range(40):
            await outlet.deliver(OutgoingMessage("D7ADA:", f"{number}", "n", edits=first))
        assert outlet.edit_pause("D7ADA:") == 60
        clock.advance(59)
        assert outlet.edit_pause("D7ADA:") == 2


async def test_a_ticket_is_for_one_connection(server: SlackServer) -> None:
    async with SlackApi(server.api_url, APP_TOKEN) as app, aiohttp.ClientSession() as client:
        url = (await app.call("apps.connections.open", dict[str, Any]))["url"]
        async with client.ws_connect(url):
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await client.ws_connect(url)
