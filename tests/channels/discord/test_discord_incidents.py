"""Failures that users of other gateways report of Discord, and connections that fail in every way.

docs/incidents.md lists the first ones by name.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from channels.discord.discord_line import DiscordLine, discord_line
from support.waiting import until
from talaria.channels.channel_loop import ChannelPhase
from talaria.channels.discord.api import DiscordApi
from talaria.channels.discord.channel import command_menu
from talaria.channels.discord.gateway import DiscordGateway
from talaria.core.clock import SystemClock
from talaria.core.errors import StoreError
from talaria.core.ledger import Accept, Accepted
from talaria.core.tasks import running
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.discord_platform import BOT_ID, DiscordMessageShown, DiscordRefusal
from talaria.testing.discord_server import DiscordFault, DiscordFaultKind, DiscordServer

AT_BOT = f"<@{BOT_ID}>"


async def lost(line: DiscordLine) -> None:
    """Wait until the channel has noticed the end of its connection."""
    await until(lambda: line.channel.phase is not ChannelPhase.READY)


# -- RESUME and duplicates ----------------------------------------------------------------------------------


async def test_events_that_a_resume_repeats_are_answered_once(tmp_path: Path, discord: DiscordServer) -> None:
    async with discord_line(tmp_path, discord, progress="off") as line:
        line.ada.says("one")
        await line.answers(1)
        discord.repeat(4)
        await discord.cut()
        line.ada.says("two")
        await line.answers(2)
        assert discord.resumed == 1 and discord.identified == 1
        discord.repeat(8)
        line.ada.says("three")
        assert await line.answers(3) == ["You said: one", "You said: two", "You said: three"]
        assert await line.turns() == 3


async def test_a_message_in_the_live_path_and_the_backfill_is_one_turn(
    tmp_path: Path, discord: DiscordServer
) -> None:
    async with discord_line(tmp_path, discord, progress="off") as line:
        line.ada.says("one")
        await line.answers(1)
        await discord.cut(forgets=True)
        await lost(line)
        missed = line.ada.says("missed")
        await line.answers(2)  # fetched after the new session began
        discord.dispatch("MESSAGE_CREATE", discord.platform.event_json(missed))
        line.ada.says("live")
        assert await line.answers(3) == ["You said: one", "You said: missed", "You said: live"]
        assert await line.turns() == 3


async def test_the_starter_of_an_auto_thread_that_comes_again_is_no_message(
    tmp_path: Path, discord: DiscordServer
) -> None:
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, auto_thread=True, progress="off") as line:
        message = line.ada.says(f"{AT_BOT} hello", channel)
        await discord.until(lambda: message.id in discord.platform.channels)
        thread = discord.platform.channels[message.id]
        line.ada.says("next", thread)
        await line.answers(2, thread)
        starters = [each for each in thread.messages.values() if each.raw.get("type") == 21]
        assert len(starters) == 1
        assert await line.turns() == 2


async def test_a_partial_thread_object_breaks_nothing(tmp_path: Path, discord: DiscordServer) -> None:
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, progress="off") as line:
        message = line.ada.says(f"{AT_BOT} one", channel, thread={"id": "1"})
        await line.answers(1, channel)
        for name in ("THREAD_CREATE", "THREAD_UPDATE", "THREAD_DELETE", "MESSAGE_UPDATE", "CHANNEL_UPDATE"):
            discord.dispatch(name, {"id": message.id})
            discord.dispatch(name, {})
        discord.dispatch("MESSAGE_CREATE", {"id": "9", "channel_id": channel.id, "guild_id": channel.guild})
        line.ada.says(f"{AT_BOT} two", channel)
        assert len(await line.answers(2, channel)) == 2


async def test_whether_a_message_was_answered_is_known_after_any_number_of_restarts(
    tmp_path: Path, discord: DiscordServer
) -> None:
    store = MemoryStore(SystemClock())
    async with discord_line(tmp_path, discord, store=store, progress="off") as line:
        line.ada.says("one")
        await line.answers(1)
    for _ in range(5):
        await discord.cut(forgets=True)
        for name, _ in await store.cursors("discord:"):
            await store.set_cursor(name, '{"last": 0}' if "session" not in name else "")
        async with discord_line(tmp_path, discord, store=store, progress="off") as line:
            line.ada.runs("status")
            await discord.until(lambda: all(discord.platform.interactions.values()))
    answers = [text for text in line.chat.replies if text.startswith("You said")]
    assert answers == ["You said: one"]
    assert discord.count("GET messages") == 5, "each start has fetched the message again"


async def test_more_than_a_hundred_commands_are_not_registered(discord: DiscordServer) -> None:
    menu = command_menu({f"c{number}": "x" * 200 for number in range(150)})
    discord.platform.set_commands(menu)
    assert [each["name"] for each in discord.platform.commands[:2]] == ["start", "c0"]
    assert len(discord.platform.commands) == 100
    with pytest.raises(DiscordRefusal, match="100"):
        discord.platform.set_commands([*menu, menu[0] | {"name": "one-more"}])


async def test_an_old_connection_is_closed_before_another_one_is_made(
    tmp_path: Path, discord: DiscordServer
) -> None:
    store = MemoryStore(SystemClock())
    for number in range(3):
        async with discord_line(tmp_path, discord, store=store, progress="off") as line:
            line.ada.says(str(number))
            await line.answers(number + 1)
        assert discord.session is not None
        await discord.until(lambda: discord.session is not None and discord.session.socket is None)
    assert (discord.identified, discord.resumed) == (1, 2)


async def test_the_parts_of_a_long_reply_wait_for_the_rate_limit(
    tmp_path: Path, discord: DiscordServer
) -> None:
    words = " ".join(f"w{number}" for number in range(2000))
    async with discord_line(tmp_path, discord, progress="off") as line:
        for _ in range(2):
            fault = DiscordFault(DiscordFaultKind.STATUS, status=429, retry_after=0.05)
            discord.fail("POST messages", fault)
        line.ada.says(f"[[reply ```\n{words}\n```]]")
        await discord.until(lambda: "w1999" in "".join(line.chat.replies))
        replies = line.chat.replies
        assert all(len(text) <= 2000 and text.count("```") == 2 for text in replies)
        assert " ".join("".join(replies).replace("```", " ").split()) == words


# -- connections --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "reconnect", "invalid", "resumable", "forgotten", "bad number"])
async def test_no_end_of_a_connection_loses_or_doubles_a_message(
    tmp_path: Path, discord: DiscordServer, how: str
) -> None:
    async with discord_line(tmp_path, discord, progress="off") as line:
        line.ada.says("one")
        await line.answers(1)
        match how:
            case "cut":
                await discord.cut()
            case "reconnect":
                discord.ask(7)
            case "invalid":
                discord.ask(9, data=False)
            case "resumable":
                discord.ask(9, data=True)
            case "forgotten":
                await discord.cut(4009, forgets=True)
            case _:
                await discord.cut(4007, forgets=True)
        await lost(line)
        line.ada.says("two")
        line.ada.says("three")
        assert await line.answers(3) == ["You said: one", "You said: two", "You said: three"]
        assert await line.turns() == 3


async def test_a_session_whose_address_is_gone_is_resumed_elsewhere(
    tmp_path: Path, discord: DiscordServer
) -> None:
    store = MemoryStore(SystemClock())
    async with discord_line(tmp_path, discord, store=store, progress="off") as line:
        line.ada.says("one")
        await line.answers(1)
    [(name, session)] = await store.cursors(f"discord:{BOT_ID}:session")
    await store.set_cursor(name, re.sub(r"ws://[^\"]*", "ws://127.0.0.1:1", session))
    line.ada.says("two")
    async with discord_line(tmp_path, discord, store=store, progress="off") as line:
        assert await line.answers(2) == ["You said: one", "You said: two"]
    assert (discord.resumed, discord.identified) == (1, 1)


async def test_an_event_counts_as_received_only_once_it_is_noted(discord: DiscordServer) -> None:
    """The position is stored while an event waits for room. A resume from it must repeat the event."""
    seen: list[tuple[str, int, int]] = []
    async with DiscordApi(discord.url, discord.token) as api:
        gateway = DiscordGateway(api, SystemClock())

        async def on_event(name: str, data: msgspec.Raw, seq: int) -> None:
            assert gateway.session is not None
            seen.append((name, seq, gateway.session.seq))

        async with running(gateway.run(on_event), name="gateway"):
            await discord.until(lambda: discord.session is not None)
            discord.person(7).says("hello")
            await until(lambda: any(name == "MESSAGE_CREATE" for name, _, _ in seen))
    assert all(before == seq - 1 for name, seq, before in seen if name != "READY")


async def test_a_connection_without_heartbeats_is_dead_and_is_made_again(
    tmp_path: Path, discord: DiscordServer
) -> None:
    clock = FakeClock()
    async with discord_line(tmp_path, discord, clock=clock, progress="off") as line:
        discord.acknowledges = False
        await line.pass_time(lambda: line.channel.phase is not ChannelPhase.READY)
        discord.acknowledges = True
        await line.pass_time(lambda: discord.resumed == 1)


async def test_events_out_of_order_keep_the_order_of_each_chat(
    tmp_path: Path, discord: DiscordServer
) -> None:
    """Discord orders the events of one channel; those of several channels may change places."""
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, progress="off") as line:
        discord.holds_events = True
        line.ada.says("private")
        line.ada.says(f"{AT_BOT} server", channel)
        discord.release_events(is_reversed=True)
        await line.answers(1)
        await line.answers(1, channel)
        assert await line.turns() == 2


class SickStore(MemoryStore):
    is_sick = False

    async def accept(self, order: Accept) -> Accepted:
        if self.is_sick:
            raise StoreError("The disk is full.", "Free some space.")
        return await super().accept(order)


async def test_what_the_store_refused_is_taken_when_it_is_well_again_in_order(
    tmp_path: Path, discord: DiscordServer
) -> None:
    clock = FakeClock()
    store = SickStore(clock)
    async with discord_line(tmp_path, discord, store=store, clock=clock, progress="off") as line:
        store.is_sick = True
        line.ada.says("one")
        line.ada.says("two")
        await line.pass_time(lambda: "disk" in line.channel.status)
        store.is_sick = False
        await line.pass_time(lambda: len(line.chat.replies) == 2)
        assert line.chat.replies == ["You said: one", "You said: two"]
        assert line.channel.status == "ready"


async def test_a_page_of_missed_messages_is_not_the_end(tmp_path: Path, discord: DiscordServer) -> None:
    store = MemoryStore(SystemClock())
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, store=store, progress="off") as line:
        line.ada.says(f"{AT_BOT} one", channel)
        await line.answers(1, channel)
    await discord.cut(forgets=True)
    for number in range(150):
        discord.person(99, "Eve").says(f"chatter {number}", channel)
    line.ada.says(f"{AT_BOT} two", channel)
    async with discord_line(tmp_path, discord, store=store, progress="off") as line:
        answers = await line.answers(2, channel)
        assert answers[1].endswith("two")
        assert await line.turns() == 2


async def test_messages_that_did_not_address_the_bot_are_not_fetched_later(
    tmp_path: Path, discord: DiscordServer
) -> None:
    """A busy channel would be fetched back to the last mention, and judged by rules that have changed."""
    clock = FakeClock()
    store = MemoryStore(clock)
    channel = discord.platform.channel()

    async def is_stored(message: DiscordMessageShown) -> bool:
        cursors = dict(await store.cursors("discord:"))
        return any(name.endswith(f":{channel.id}") and message.id in cursors[name] for name in cursors)

    async with discord_line(tmp_path, discord, store=store, clock=clock, progress="off") as line:
        line.ada.says(f"{AT_BOT} one", channel)
        await line.pass_time(lambda: len(channel.replies) == 1)
        clock.advance(31)
        chatter = line.ada.says("chatter", channel)
        while not await is_stored(chatter):
            await clock.settle()
        last = line.ada.says("more chatter", channel)
        position = line.channel.position
        assert position is not None
        await line.pass_time(lambda: position.channels[channel.id].last == int(last.id))
        assert not await is_stored(last), "not at each message"
    assert await is_stored(last), "when the gateway stops"
    discord.forget_sessions()
    line.ada.says("missed", channel)
    async with discord_line(tmp_path, discord, store=store, clock=clock, mention="never") as line:
        await line.pass_time(lambda: len(channel.replies) == 2)
        assert channel.replies[1].endswith("missed")
        assert await line.turns() == 2


async def test_the_first_reply_in_an_auto_thread_is_fetched_after_an_outage(
    tmp_path: Path, discord: DiscordServer
) -> None:
    store = MemoryStore(SystemClock())
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, store=store, auto_thread=True, progress="off") as line:
        message = line.ada.says(f"{AT_BOT} hello", channel)
        await discord.until(lambda: message.id in discord.platform.channels)
        thread = discord.platform.channels[message.id]
        await line.answers(1, thread)
    discord.forget_sessions()
    line.ada.says("and then?", thread)
    async with discord_line(tmp_path, discord, store=store, auto_thread=True, progress="off") as line:
        assert (await line.answers(2, thread))[1].endswith("and then?")
        assert await line.turns() == 2


async def test_strangers_leave_no_position_and_known_channels_are_bounded(
    tmp_path: Path, discord: DiscordServer
) -> None:
    store = MemoryStore(SystemClock())
    async with discord_line(tmp_path, discord, store=store, progress="off") as line:
        discord.person(99, "Eve").says("hello")
        line.ada.says("hello")
        await line.answers(1)
        position = line.channel.position
        assert position is not None
        assert set(position.channels) == {line.chat.id}
        for number in range(1005):
            await position.save_channel(str(number + 1), number + 1, "")
        assert len(position.channels) == 1000 and line.chat.id in position.channels
    assert len([name for name, value in await store.cursors("discord:") if value]) == 1001


async def test_a_channel_that_is_gone_is_no_longer_asked_for(tmp_path: Path, discord: DiscordServer) -> None:
    store = MemoryStore(SystemClock())
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, store=store, progress="off") as line:
        line.ada.says(f"{AT_BOT} one", channel)
        await line.answers(1, channel)
    del discord.platform.channels[channel.id]
    for _ in range(2):
        await discord.cut(forgets=True)
        async with discord_line(tmp_path, discord, store=store, progress="off") as line:
            line.ada.runs("status")
            await discord.until(lambda: all(discord.platform.interactions.values()))
    assert discord.count("GET messages") == 1


async def test_a_new_session_is_not_resumed_before_the_missed_messages_were_fetched(
    tmp_path: Path, discord: DiscordServer
) -> None:
    """A life ends between the start of a new session and the answer with the missed messages."""
    store = MemoryStore(SystemClock())
    async with discord_line(tmp_path, discord, store=store, progress="off") as line:
        line.ada.says("one")
        await line.answers(1)
    discord.forget_sessions()
    line.ada.says("missed")
    discord.fail("GET messages", DiscordFault(DiscordFaultKind.HOLD))
    async with discord_line(tmp_path, discord, store=store, progress="off") as line:
        await discord.until(lambda: discord.count("GET messages") == 1)
    discord.released.set()
    async with discord_line(tmp_path, discord, store=store, progress="off") as line:
        assert await line.answers(2) == ["You said: one", "You said: missed"]
