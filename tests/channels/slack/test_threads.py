"""Conversations: which messages are one, which are read, and what the agent knows of a thread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from channels.slack.line import ADA, Line, slack, way_back
from support.slack_fuzz import corpus, is_their_own
from talaria.access.people import People, place_of
from talaria.channels.slack.part import SLACK
from talaria.core.access import OWNER
from talaria.core.delivery import DeliveryRefused, OutgoingMessage
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.messages import Text
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.slack_platform import BOT_USER, SlackConversation
from talaria.testing.slack_server import SlackFault, SlackFaultKind, SlackServer

DIRECT = ChatAddress("main", "slack", "dm", ADA).key()


def group_key(channel: str, thread: str) -> ChatKey:
    return ChatAddress("main", "slack", "group", channel, thread).key()


def read_by(line: Line, index: int = -1) -> str:
    """What the model reads of a message."""
    [text] = [part.text for part in line.inbounds[index].parts if isinstance(part, Text)]
    return text


async def test_a_root_and_its_replies_are_one_conversation(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server) as line:
        root = line.ada.says("@talaria one", line.general)
        await line.answers(1, line.general)
        line.ada.says("two", line.general, root["ts"])
        line.ada.says("@talaria three", line.general, root["ts"])
        await line.answers(3, line.general)
    assert {inbound.chat_key for inbound in line.inbounds} == {group_key("C1GENERAL", root["ts"])}
    shown = [each.thread_ts for each in line.general.messages.values() if each.by_bot]
    assert shown == [root["ts"]] * 3


async def test_a_mention_that_comes_as_two_events_is_one_turn(tmp_path: Path, server: SlackServer) -> None:
    server.platform.has_mention_events = True
    async with slack(tmp_path, server) as line:
        root = line.ada.says("@talaria one", line.general)
        await line.answers(1, line.general)
        line.ada.says("@talaria two", line.general, root["ts"])
        await line.answers(2, line.general)
        await line.handled()
        assert line.general.replies == [
            "You said: Ada (U7ADA) says:\none",
            "You said: Ada (U7ADA) says:\ntwo",
        ]
        assert len(line.inbounds) == 4


async def test_two_roots_are_two_conversations(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server) as line:
        roots = [line.ada.says(f"@talaria {word}", line.general) for word in ("one", "two")]
        await line.answers(2, line.general)
    assert [each.chat_key for each in line.inbounds] == [group_key("C1GENERAL", root["ts"]) for root in roots]


async def test_direct_messages_are_one_conversation_with_their_threads(
    tmp_path: Path, server: SlackServer
) -> None:
    async with slack(tmp_path, server) as line:
        first = line.ada.says("one")
        await line.answers(1)
        line.ada.says("two", thread=first["ts"])
        await line.answers(2)
    assert {inbound.chat_key for inbound in line.inbounds} == {DIRECT}
    assert [each.thread_ts for each in line.ada.dm.messages.values() if each.by_bot] == [None, first["ts"]]


async def test_an_answer_to_a_reply_goes_to_the_root_of_its_thread(
    tmp_path: Path, server: SlackServer
) -> None:
    """The fake refuses the ts of a reply as a thread, which Slack accepts and shows nowhere."""
    async with slack(tmp_path, server) as line:
        root = server.person("U8BOB", "Bob").says("lunch?", line.general)
        line.ada.says("@talaria what is for lunch?", line.general, root["ts"])
        await line.answers(1, line.general)
    assert line.inbounds[0].address == f"C1GENERAL:{root['ts']}"


# -- which messages are read --------------------------------------------------------------------------------


async def handled_after(line: Line, place: SlackConversation, text: str, thread: str | None = None) -> int:
    """Say something, and return how many messages were handed in once it was handled."""
    line.ada.says(text, place, thread)
    await line.handled()
    return len(line.inbounds)


@pytest.mark.parametrize(
    ("rule", "root", "named", "in_thread", "after_mention"),
    [("always", 0, 1, 0, 0), ("channels", 0, 1, 0, 1), ("never", 1, 1, 1, 1), ("off", 0, 0, 0, 0)],
)
async def test_the_mention_rule_says_what_is_read(
    tmp_path: Path, server: SlackServer, rule: str, root: int, named: int, in_thread: int, after_mention: int
) -> None:
    async with slack(tmp_path, server, mention="off", mention_in={"C1GENERAL": rule}) as line:
        seen = await handled_after(line, line.general, "hello all")
        assert seen == root
        now = await handled_after(line, line.general, "@talaria hello")
        assert now - seen == named
        bob = server.person("U8BOB", "Bob").says("a thread of people", line.general)
        seen = await handled_after(line, line.general, "and me", bob["ts"])
        assert seen - now == in_thread
        await handled_after(line, line.general, "@talaria come in", bob["ts"])
        seen = len(line.inbounds)
        now = await handled_after(line, line.general, "and now?", bob["ts"])
        assert now - seen == after_mention
        assert await handled_after(line, line.ada.dm, "a direct message") == now + 1


async def test_replies_to_a_message_of_the_agent_are_read_with_that_message(
    tmp_path: Path, server: SlackServer
) -> None:
    async with slack(tmp_path, server) as line:
        server.platform.call("chat.postMessage", {"channel": line.general.id, "text": "Good morning!"})
        [posted] = line.general.messages.values()
        line.ada.says("good morning", line.general, posted.ts)
        await line.answers(2, line.general)
        line.ada.says("what is new?", line.general, posted.ts)
        await line.answers(3, line.general)
    assert line.inbounds[0].chat_key == group_key("C1GENERAL", posted.ts)
    assert [read_by(line, number) for number in (0, 1)] == [
        "[Earlier in this thread:]\n> You: Good morning!\nAda (U7ADA) says:\ngood morning",
        "Ada (U7ADA) says:\nwhat is new?",
    ]


async def test_bots_in_a_followed_thread_are_never_answered(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server, mention="never") as line:
        root = line.ada.says("@talaria hello", line.general)
        await line.answers(1, line.general)
        for body in (
            {"user": "U5OTHERBOT", "bot_id": "B5OTHER", "text": f"<@{BOT_USER}> hello, bot"},
            {"bot_id": "B5OTHER", "subtype": "bot_message", "text": f"<@{BOT_USER}> hello"},
            {"user": BOT_USER, "text": "my own words"},
        ):
            server.platform.arrive(line.general, body, root["ts"])
            await line.handled()
    assert len(line.inbounds) == 1


# -- what the agent knows of a thread -----------------------------------------------------------------------


async def test_a_new_mention_reads_the_thread_again(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server, mention="always") as line:
        bob = server.person("U8BOB", "Bob")
        root = bob.says("The build <is> red.", line.general)
        bob.says("It is the linter.", line.general, root["ts"])
        line.ada.says("@talaria what is wrong?", line.general, root["ts"])
        await line.answers(1, line.general)
        assert read_by(line) == (
            "[Earlier in this thread:]\n"
            "> Bob (U8BOB): The build <is> red.\n"
            "> Bob (U8BOB): It is the linter.\n"
            "Ada (U7ADA) says:\nwhat is wrong?"
        )
        assert line.inbounds[0].repeats_others is True
        bob.says(f"<@{ADA}> has fixed it.", line.general, root["ts"])
        server.platform.arrive(line.general, {"user": "U8BOB", "text": f"Thanks <@{ADA}>!"}, root["ts"])
        line.ada.says("@talaria and now?", line.general, root["ts"])
        await line.answers(2, line.general)
        earlier, _, said = read_by(line).rpartition("\nAda (U7ADA) says:\n")
        assert (earlier.splitlines()[-1], said) == ("> Bob (U8BOB): Thanks @Ada!", "and now?")
        assert "linter" not in earlier


async def test_a_thread_that_cannot_be_read_costs_the_answer_nothing(
    tmp_path: Path, server: SlackServer
) -> None:
    async with slack(tmp_path, server) as line:
        root = server.person("U8BOB", "Bob").says("Hello.", line.general)
        server.fail("conversations.replies", SlackFault(SlackFaultKind.RATE_LIMIT))
        line.ada.says("@talaria hi", line.general, root["ts"])
        await line.answers(1, line.general)
    assert read_by(line, 0).startswith("[Earlier messages of this thread could not be read.]\n")


async def test_a_stranger_makes_no_thread_be_read(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server) as line:
        root = line.ada.says("to all", line.general)
        server.person("U9EVE", "Eve").says("@talaria hi", line.general, root["ts"])
        await line.handled()
        assert server.count("conversations.replies") == 0
        assert line.inbounds == [] and line.general.replies == []


async def test_a_stranger_makes_one_name_be_asked_for(tmp_path: Path, server: SlackServer) -> None:
    crowd = " ".join(f"<@U9X{number}>" for number in range(60))
    async with slack(tmp_path, server) as line:
        eve = server.person("U9EVE", "Eve")
        server.platform.arrive(eve.dm, {"user": eve.id, "text": f"hello {crowd}"})
        await line.answers(1, eve.dm)
        assert server.count("users.info") == 1
        server.platform.arrive(line.ada.dm, {"user": ADA, "text": f"hello {crowd}"})
        await line.answers(1)
        assert server.count("users.info") == 52, "a crowd is asked for in part"


async def test_nobody_takes_the_id_of_another_person_into_a_name(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server, allowed=("U8BOB",)) as line:
        server.platform.people["U8BOB"] = replace(server.person("U8BOB"), name=f"Ada ({ADA})")
        server.person("U8BOB").says("@talaria hello", line.general)
        await line.answers(1, line.general)
    assert read_by(line) == f"Ada {ADA} (U8BOB) says:\nhello"


async def test_the_model_sees_who_spoke_in_a_group(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server, allowed=(ADA, "U8BOB")) as line:
        root = line.ada.says("@talaria one", line.general)
        await line.answers(1, line.general)
        server.person("U8BOB").says("two", line.general, root["ts"])
        await line.answers(2, line.general)
        assert [read_by(line, index) for index in (0, 1)] == [
            "Ada (U7ADA) says:\none",
            "Bob (U8BOB) says:\ntwo",
        ]
        line.ada.says("three")
        await line.answers(1)
        assert read_by(line) == "three"
        assert server.count("users.info") == 2, "names are asked for once"


async def test_without_its_name_a_person_is_known_by_the_id(tmp_path: Path, server: SlackServer) -> None:
    server.platform.scopes = server.platform.scopes.replace("users:read", "")
    async with slack(tmp_path, server) as line:
        line.ada.says("@talaria hello", line.general)
        await line.answers(1, line.general)
    assert read_by(line) == f"{ADA} ({ADA}) says:\nhello"


async def test_personal_memory_is_used_in_direct_messages_only(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server, progress="off") as line:
        line.ada.says("one")
        line.ada.says("@talaria two", line.general)
        line.ada.says("@talaria three", server.platform.conversation("G1GROUP", ADA))
        await line.handled()
        keys = [inbound.chat_key for inbound in line.inbounds]
    owned = People({}, {"slack": (ADA,)})
    places = {(place.person, place.chat) for place in (place_of(owned, key) for key in keys)}
    assert places == {(OWNER, ""), (None, "slack:group:C1GENERAL"), (None, "slack:group:G1GROUP")}


async def test_a_message_that_was_not_asked_for_reaches_a_person(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server):
        assert SLACK.address_of is not None
        address = SLACK.address_of(ChatAddress.parse(DIRECT))
        async with way_back(server) as outlet:
            first = await outlet.deliver(OutgoingMessage(address or "", "good morning", "n"))
            await outlet.deliver(OutgoingMessage(address or "", "good evening", "n", edits=first))
        assert server.person(ADA).dm.replies == ["good evening"]
        assert server.count("conversations.open") == 1


async def test_a_channel_without_the_bot_is_refused_with_what_to_do(server: SlackServer) -> None:
    place = server.platform.conversation("C5OTHER", ADA)
    place.members.discard(BOT_USER)
    async with way_back(server) as outlet:
        with pytest.raises(DeliveryRefused, match="invite the bot to the channel with /invite"):
            await outlet.deliver(OutgoingMessage(f"{place.id}:", "hello", "n"))


# -- commands -----------------------------------------------------------------------------------------------


async def test_an_exclamation_mark_begins_a_command_in_a_thread(tmp_path: Path, server: SlackServer) -> None:
    """Slack refuses slash commands in threads."""
    store = MemoryStore(FakeClock())
    async with slack(tmp_path, server, store=store) as line:
        root = line.ada.says("@talaria hello", line.general)
        await line.answers(1, line.general)
        line.ada.says("!title Lunch", line.general, root["ts"])
        await line.answers(2, line.general)
        session = await store.current_session(group_key("C1GENERAL", root["ts"]))
        assert session is not None and session.title == "Lunch"
        line.ada.says("!important: call Bob", line.general, root["ts"])
        await line.answers(3, line.general)
        assert read_by(line) == "Ada (U7ADA) says:\n!important: call Bob"


@pytest.mark.parametrize(
    ("typed", "handed_in"), [("title Lunch", "/title Lunch"), ("", "/help"), ("what is up?", "what is up?")]
)
async def test_the_slash_command_takes_commands_and_messages(
    tmp_path: Path, server: SlackServer, typed: str, handed_in: str
) -> None:
    async with slack(tmp_path, server) as line:
        line.ada.commands(typed)
        await line.answers(1)
        await line.handled()
    assert read_by(line) == handed_in


async def test_the_slash_command_between_two_people_is_answered_by_the_bot_in_private(
    tmp_path: Path, server: SlackServer
) -> None:
    between = SlackConversation("D0BOTHOFTHEM", {ADA, "U8BOB"})  # Slack lets no bot write there
    server.platform.conversations[between.id] = between
    async with slack(tmp_path, server) as line:
        line.ada.commands("what is up?", between)
        assert await line.answers(1) == ["You said: what is up?"]
        server.person("U8BOB").commands("and me?", between)
        assert "pairing code" in (await line.answers(1, server.person("U8BOB").dm))[0]
        await line.handled()
    assert between.messages == {} and line.inbounds[0].chat_key == DIRECT


# -- edits, deletions, strangers ----------------------------------------------------------------------------


async def test_waiting_messages_can_be_edited_and_deleted(tmp_path: Path, server: SlackServer) -> None:
    async with slack(tmp_path, server) as line:
        root = line.ada.says("@talaria [[delay 0.5]]one", line.general)
        second = line.ada.says("two", line.general, root["ts"])
        third = line.ada.says("three", line.general, root["ts"])
        await server.until(lambda: not server.unacknowledged)
        line.ada.edits(second, "the second")
        line.ada.deletes(third)
        line.ada.says("four", line.general, root["ts"])
        replies = await line.answers(3, line.general)
        assert [reply.split("says:")[1].strip() for reply in replies] == ["one", "the second", "four"]
        line.ada.edits(second, "too late")
        assert (await line.answers(4, line.general))[-1].startswith(
            "You said: [This corrects an earlier message.]"
        )


@pytest.mark.parametrize(("unknown", "answers"), [("pair", 1), ("ignore", 0)])
async def test_a_setting_says_whether_unknown_senders_are_answered(
    tmp_path: Path, server: SlackServer, unknown: str, answers: int
) -> None:
    async with slack(tmp_path, server, unknown=unknown) as line:
        eve = server.person("U9EVE", "Eve")
        eve.says("hello")
        await line.handled()
        assert len(eve.dm.replies) == answers
        code = (await line.admin.invite("slack")).code
        eve.says(f"!start {code}")
        await line.answers(answers + 1, eve.dm)
        eve.says("hello again")
        assert (await line.answers(answers + 2, eve.dm))[-1] == "You said: hello again"


@pytest.mark.parametrize("stranger", ["unknown", "bot", "nobody"])
async def test_no_kind_of_event_of_a_stranger_is_a_turn(
    tmp_path: Path, server: SlackServer, stranger: str
) -> None:
    """The last two have the id of the person who is allowed, or none."""
    changes = {"unknown": {"user": "U9EVE"}, "bot": {"bot_id": "B5"}, "nobody": {"user": ""}}[stranger]
    sent = 0
    async with slack(tmp_path, server) as line:
        for kind, payload in corpus():
            if not is_their_own(payload):
                continue
            if "event" in payload:
                event = payload["event"]
                message = event.get("message", event) if event.get("subtype") == "message_changed" else event
                message |= changes
            elif stranger == "bot":
                continue  # bots press no buttons
            elif "user_id" in payload:
                payload["user_id"] = changes["user"]
            else:
                payload["user"] = {"id": changes["user"]}
            server.platform.push(kind, payload)
            sent += 1
        await line.handled()
        assert sent >= 20
        assert line.inbounds == []
