"""People who use the bot on Discord: private chats, server channels, threads, commands, buttons and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.discord.discord_line import DiscordLine, discord_line, discord_outlet
from support.asking_tools import Danger, calling
from support.waiting import until
from talaria.access.people import People, place_of
from talaria.channels.channel_loop import ChannelPhase
from talaria.channels.discord.parse import Place
from talaria.channels.live_message import REPEATED
from talaria.core.access import OWNER
from talaria.core.clock import SystemClock
from talaria.core.delivery import Button, DeliveryDelayed, DeliveryRefused, OutgoingFile, OutgoingMessage
from talaria.store.in_memory import MemoryStore
from talaria.testing.discord_platform import APPLICATION_ID, BOT_ID, DiscordMessageShown, DiscordRoom
from talaria.testing.discord_server import DiscordFault, DiscordFaultKind, DiscordServer
from talaria.tools.toolset import ToolSet
from talaria.workspace.folder import chat_folder

HOLD = "[[chunks 8]][[chunk-delay 0.05]][[reply first]]"
AT_BOT = f"<@{BOT_ID}>"


async def until_handled(line: DiscordLine, channel: DiscordRoom) -> None:
    """Send a last addressed message and wait for its answer."""
    before = len(channel.replies)
    line.ada.says(f"{AT_BOT} last", channel)
    await line.server.until(lambda: any("last" in text for text in channel.replies[before:]))


# -- who is read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "answered"), [("always", 1), ("channels", 1), ("never", 2), ("off", 0)])
async def test_the_rule_of_a_channel_says_what_is_read(
    tmp_path: Path, discord: DiscordServer, rule: str, answered: int
) -> None:
    channel = discord.platform.channel()
    other = discord.platform.channel()
    rules = {channel.id: rule}
    async with discord_line(tmp_path, discord, mention_in=rules, progress="off") as line:
        line.ada.says("not to the bot", channel)
        line.ada.says(f"{AT_BOT} to the bot", channel)
        await until_handled(line, other)
        if answered:
            await line.answers(answered, channel)
        assert len(channel.replies) == answered
        if answered:
            assert channel.replies[-1] == "You said: Ada (7) says:\nto the bot"


async def test_a_reply_to_the_bot_needs_no_mention_and_quotes_it(
    tmp_path: Path, discord: DiscordServer
) -> None:
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, progress="off") as line:
        line.ada.says(f"{AT_BOT} hello", channel)
        await line.answers(1, channel)
        [shown] = [each for each in channel.messages.values() if each.by_bot]
        line.ada.says("and now?", channel, reply_to=shown)
        answers = await line.answers(2, channel)
        assert answers[1].startswith("You said: [In reply to talaria:]")
        assert answers[1].endswith("and now?")


@pytest.mark.parametrize("unknown", ["pair", "ignore"])
async def test_a_stranger_gets_no_turn_and_a_code_only_if_that_is_wanted(
    tmp_path: Path, discord: DiscordServer, unknown: str
) -> None:
    eve = discord.person(99, "Eve")
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, unknown=unknown, progress="off") as line:
        eve.says("hello")
        eve.says(f"{AT_BOT} hello", channel)
        discord.person(98, "Bot", is_bot=True).says(f"{AT_BOT} hello", channel)
        await until_handled(line, channel)
        told = discord.platform.private(eve).replies
        assert [("pairing code" in text) for text in told] == ([True] if unknown == "pair" else [])
        assert len(channel.replies) == 1
        assert await line.turns() == 1
        code = (await line.admin.invite("discord")).code
        eve.runs("start", code)
        eve.says("hello again")
        answers = await line.answers(len(told) + 2, discord.platform.private(eve))
        assert answers[-1] == "You said: hello again"


# -- threads ------------------------------------------------------------------------------------------------


async def test_a_thread_is_a_chat_of_its_own_and_one_of_the_bot_needs_no_mention(
    tmp_path: Path, discord: DiscordServer
) -> None:
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, auto_thread=True, progress="off") as line:
        message = line.ada.says(f"{AT_BOT} hello", channel)
        await discord.until(lambda: message.id in discord.platform.channels)
        thread = discord.platform.channels[message.id]
        await line.answers(1, thread)
        line.ada.says("and without a mention", thread)
        await line.answers(2, thread)
        assert channel.replies == []
        keys = {str(turn.chat_key) for turn in await line.rig.store.histories.recent(10)}
        assert keys == {f"agent:main:discord:group:{channel.id}:{thread.id}"}


async def test_personal_memory_is_used_in_private_chats_only(tmp_path: Path, discord: DiscordServer) -> None:
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, auto_thread=True, progress="off") as line:
        line.ada.says("one")
        await line.answers(1)
        line.ada.runs("whoami", "", channel)
        await line.answers(1, channel)
        message = line.ada.says(f"{AT_BOT} two", channel)
        await discord.until(lambda: message.id in discord.platform.channels)
        await line.answers(1, discord.platform.channels[message.id])
        keys = [turn.chat_key for turn in await line.rig.store.histories.recent(10)]
    owned = People({}, {"discord": (7,)})
    places = [(place.person, place.chat) for place in (place_of(owned, key) for key in keys)]
    assert len(keys) == 3
    assert set(places) == {(OWNER, ""), (None, f"discord:group:{channel.id}")}


async def test_the_rule_always_needs_a_mention_in_a_thread_of_the_bot_too(
    tmp_path: Path, discord: DiscordServer
) -> None:
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, auto_thread=True, mention="always", progress="off") as line:
        message = line.ada.says(f"{AT_BOT} hello", channel)
        await discord.until(lambda: message.id in discord.platform.channels)
        thread = discord.platform.channels[message.id]
        await line.answers(1, thread)
        line.ada.says("not to the bot", thread)
        await until_handled(line, thread)
        assert len(thread.replies) == 2


async def test_without_the_permission_for_threads_the_channel_is_answered(
    tmp_path: Path, discord: DiscordServer
) -> None:
    channel = discord.platform.channel()
    discord.platform.may_open_threads = False
    async with discord_line(tmp_path, discord, auto_thread=True, progress="off") as line:
        line.ada.says(f"{AT_BOT} hello", channel)
        await line.answers(1, channel)
        discord.person(99, "Eve").says(f"{AT_BOT} hello", channel)
        await until_handled(line, channel)
        assert discord.count("POST threads") == 2, "a stranger's message opens no thread"


async def recent(line: DiscordLine) -> tuple[object, ...]:
    return tuple(await line.rig.store.histories.recent(10))


# -- edits and deletions ------------------------------------------------------------------------------------


async def test_an_edit_replaces_a_message_that_waits_and_corrects_one_that_was_answered(
    tmp_path: Path, discord: DiscordServer
) -> None:
    async with discord_line(tmp_path, discord, progress="off") as line:
        line.ada.says(HOLD)
        second = line.ada.says("second")
        third = line.ada.says("third")
        line.ada.edits(second, "better")
        line.ada.deletes(third)
        assert await line.answers(2) == ["first", "You said: better"]
        line.ada.edits(second, "best")
        answers = await line.answers(3)
        assert answers[2] == "You said: [This corrects an earlier message.]\nbest"
        assert len(answers) == 3, "the deleted message is not answered"


async def test_messages_that_a_moderator_deletes_together_are_not_answered(
    tmp_path: Path, discord: DiscordServer
) -> None:
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord, progress="off") as line:
        line.ada.says(f"{AT_BOT} {HOLD}", channel)
        line.ada.purges(*(line.ada.says(f"{AT_BOT} {text}", channel) for text in ("second", "third")))
        line.ada.says(f"{AT_BOT} fourth", channel)
        answers = await line.answers(2, channel)
        assert answers[0] == "first" and answers[1].endswith("fourth")


async def test_a_preview_that_discord_adds_to_a_message_is_no_edit(
    tmp_path: Path, discord: DiscordServer
) -> None:
    async with discord_line(tmp_path, discord, progress="off") as line:
        message = line.ada.says("https://example.org")
        discord.dispatch("MESSAGE_UPDATE", discord.platform.event_json(message))
        line.ada.says("next")
        assert len(await line.answers(2)) == 2
        assert await line.turns() == 2


# -- commands and buttons -----------------------------------------------------------------------------------


async def test_slash_commands_are_registered_only_when_they_change(
    tmp_path: Path, discord: DiscordServer
) -> None:
    async with discord_line(tmp_path, discord) as line:
        store = line.rig.store
        line.ada.runs("status")
        assert "idle" in (await line.answers(1))[0]
    assert {"start", "status", "new"} <= {each["name"] for each in discord.platform.commands}
    async with discord_line(tmp_path, discord, store=store):
        assert discord.count("PUT commands") == 1
    await store.set_cursor(f"discord-commands:{APPLICATION_ID}", "the digest of an earlier version")
    for _ in range(2):
        async with discord_line(tmp_path, discord, store=store):
            assert discord.count("PUT commands") == 2


async def test_a_button_decides_and_only_the_presser_is_told(tmp_path: Path, discord: DiscordServer) -> None:
    danger = Danger()

    def add(known: ToolSet) -> ToolSet:
        return ToolSet([*known, danger])

    async with discord_line(tmp_path, discord, tools=add) as line:
        line.ada.says(calling("make"))

        def asked() -> list[DiscordMessageShown]:
            return [each for each in line.chat.messages.values() if each.buttons]

        await discord.until(lambda: bool(asked()))
        [shown] = asked()
        assert '"what": "make"' in shown.text and "```" in shown.text
        eve = discord.person(99, "Eve").presses(shown, "Approve once")
        await discord.until(lambda: discord.platform.interactions[eve] is not None)
        assert discord.platform.interactions[eve] == {"type": 6}, "a stranger learns nothing"
        token = line.ada.presses(shown, "Approve once")
        await discord.until(lambda: "done" in line.chat.replies)
        assert danger.ran == ["make"]
        answer = discord.platform.interactions[token]
        assert answer is not None and answer["data"] == {"content": "Approved, once.", "flags": 64}
        assert shown.buttons == () and shown.text.endswith("Approved, once.")


async def test_an_interaction_that_comes_twice_is_one_turn(tmp_path: Path, discord: DiscordServer) -> None:
    async with discord_line(tmp_path, discord) as line:
        line.ada.runs("title", "one")
        await line.answers(1)
        discord.repeat()
        line.ada.says("next")
        assert (await line.answers(2))[-1] == "You said: next"
        assert await line.turns() == 2


# -- files --------------------------------------------------------------------------------------------------


async def test_files_come_into_the_chat_folder(tmp_path: Path, discord: DiscordServer) -> None:
    async with discord_line(tmp_path, discord, progress="off") as line:
        line.ada.says("look", file=("notes.txt", b"content"))
        assert "notes.txt" in (await line.answers(1))[0]
        [turn] = await line.rig.store.histories.recent(1)
        found = list(chat_folder(tmp_path, turn.chat_key).rglob("notes.txt"))
        assert found and found[0].read_bytes() == b"content"


async def test_a_file_is_sent_within_the_limit_of_its_address(discord: DiscordServer) -> None:
    async with discord_outlet(discord) as outlet:
        chat = discord.platform.private(discord.person(7))
        file = OutgoingFile("big.bin", b"x" * (11 << 20))
        await outlet.deliver(OutgoingMessage(f"{chat.id}:::", "here", "n1", file=file))
        [note] = chat.messages.values()
        assert note.file is None and "big.bin" in note.text and "10 MB" in note.text
        discord.platform.max_file = 50 << 20
        await outlet.deliver(OutgoingMessage(f"{chat.id}:::50", "here", "n2", file=file))
        sent = list(chat.messages.values())[1]
        assert sent.file is not None and len(sent.file) == 11 << 20 and sent.file_name == "big.bin"


async def test_the_limit_of_a_server_is_known_after_a_restart(tmp_path: Path, discord: DiscordServer) -> None:
    discord.platform.premium_tier = 2
    channel = discord.platform.channel()
    store = MemoryStore(SystemClock())
    for number in range(2):  # the second life resumes the session
        async with discord_line(tmp_path, discord, store=store, progress="off") as line:
            line.ada.says(f"{AT_BOT} hello", channel)
            await line.answers(number + 1, channel)
            [turn] = await line.rig.store.histories.recent(1)
            assert Place.read(turn.inbound.address or "").limit == 50
    assert (discord.resumed, discord.count("GET guilds")) == (1, 1)


async def test_a_file_of_another_host_is_not_fetched(tmp_path: Path, discord: DiscordServer) -> None:
    async with discord_line(tmp_path, discord, progress="off") as line:
        url = "http://169.254.169.254/latest"
        attachment = {"id": "1", "filename": "a.txt", "url": url, "size": 3}
        line.ada.says("look", attachments=[attachment])
        assert "is not here" in (await line.answers(1))[0]


# -- sending ------------------------------------------------------------------------------------------------


async def test_a_repeat_after_the_nonce_is_forgotten_is_marked(discord: DiscordServer) -> None:
    async with discord_outlet(discord) as outlet:
        chat = discord.platform.private(discord.person(7))
        post = OutgoingMessage(f"{chat.id}:::", "text", "n1")
        first = await outlet.deliver(post)
        again = OutgoingMessage(f"{chat.id}:::", "text", "n1", is_repeat=True)
        assert await outlet.deliver(again) == first
        discord.platform.nonces.clear()
        await outlet.deliver(again)
        assert chat.replies == ["text", f"{REPEATED}\n\ntext"]


async def test_the_mark_of_a_repeat_counts_towards_the_limit(discord: DiscordServer) -> None:
    """Marks around addresses that must not be links make a text longer than its markdown."""
    async with discord_outlet(discord) as outlet:
        chat = discord.platform.private(discord.person(7))
        [text] = outlet.split("\n".join(f"10.1.1.{n} is one" for n in range(100, 198)), f"{chat.id}:::")
        await outlet.deliver(OutgoingMessage(f"{chat.id}:::", text, "n1", is_repeat=True))
        [shown] = chat.replies
        assert REPEATED in shown and "10.1.1.197" in shown


async def test_a_private_chat_that_cannot_be_opened_now_delays_the_message(discord: DiscordServer) -> None:
    discord.fail("POST channels", DiscordFault(DiscordFaultKind.STATUS, status=502))
    async with discord_outlet(discord) as outlet:
        with pytest.raises(DeliveryDelayed):
            await outlet.deliver(OutgoingMessage(":7::", "hello", "n1"))


async def test_a_message_to_a_person_opens_the_private_chat(discord: DiscordServer) -> None:
    async with discord_outlet(discord) as outlet:
        await outlet.deliver(OutgoingMessage(":7::", "hello", "n1"))
        await outlet.deliver(OutgoingMessage(":7::", "again", "n2"))
        assert discord.platform.private(discord.person(7)).replies == ["hello", "again"]
        assert discord.count("POST channels") == 1


async def test_a_missing_permission_is_refused_with_what_to_click(discord: DiscordServer) -> None:
    async with discord_outlet(discord) as outlet:
        channel = discord.platform.channel()
        channel.is_forbidden = True
        with pytest.raises(DeliveryRefused, match="Permissions, let the bot's role view the channel"):
            await outlet.deliver(OutgoingMessage(f"{channel.id}:::", "hello", "n1"))


async def test_many_and_long_buttons_keep_discords_limits(discord: DiscordServer) -> None:
    async with discord_outlet(discord) as outlet:
        chat = discord.platform.private(discord.person(7))
        buttons = tuple(Button(f"{n} " + "x" * 100, "/answer " + "y" * 200) for n in range(30))
        await outlet.deliver(OutgoingMessage(f"{chat.id}:::", "choose", "n1", buttons=buttons))
        [shown] = chat.messages.values()
        assert len(shown.buttons) == 25 and shown.buttons[24][1] == "#24"


async def test_no_preview_is_fetched_and_nobody_is_notified(discord: DiscordServer) -> None:
    async with discord_outlet(discord) as outlet:
        chat = discord.platform.private(discord.person(7))
        await outlet.deliver(OutgoingMessage(f"{chat.id}:::", "@everyone https://example.org", "n1"))
        [shown] = chat.messages.values()
        assert shown.raw["flags"] == 4 and "mention_everyone" not in shown.raw


async def test_a_used_up_route_is_not_called_until_its_time(discord: DiscordServer) -> None:
    discord.fail("POST messages", DiscordFault(DiscordFaultKind.STATUS, status=429, retry_after=60))
    async with discord_outlet(discord) as outlet:
        chat = discord.platform.private(discord.person(7))
        for _ in range(3):
            with pytest.raises(Exception, match="429") as error:
                await outlet.deliver(OutgoingMessage(f"{chat.id}:::", "text", "n1"))
            assert 59 < error.value.retry_after <= 60  # type: ignore[attr-defined]
        assert discord.count("POST messages") == 1


# -- problems that the operator must solve ------------------------------------------------------------------


async def test_a_wrong_token_and_a_missing_intent_stop_the_channel_and_say_what_to_do(
    tmp_path: Path, discord: DiscordServer
) -> None:
    async with discord_line(tmp_path, discord, token="wrong", is_ready=False) as line:
        await discord.until(lambda: discord.count("GET @me") > 0)
        await until(lambda: line.channel.phase is ChannelPhase.STOPPED)
        assert "token" in line.channel.status
    discord.platform.has_message_content = False
    async with discord_line(tmp_path, discord, is_ready=False) as line:
        await until(lambda: line.channel.phase is ChannelPhase.STOPPED)
        assert "Message Content Intent" in line.channel.status
