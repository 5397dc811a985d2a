"""Nobody gets a turn who may not have one, by whichever way they come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from channels.telegram.line import telegram
from talaria.testing.telegram_platform import Json, PlatformChat, ShownMessage, TelegramPlatform, TelegramUser
from talaria.testing.telegram_server import TelegramServer

Deed = Callable[[TelegramPlatform, TelegramUser, PlatformChat], object]


def press(world: TelegramPlatform, person: TelegramUser, chat: PlatformChat) -> object:
    return person.presses(ShownMessage(1, "x", by_bot=True, buttons=(("Status", "/status"),)), "Status", chat)


def edit(world: TelegramPlatform, person: TelegramUser, chat: PlatformChat) -> object:
    return person.edits(person.says("@talaria_bot one", chat), "@talaria_bot two")


def push(kind: str) -> Deed:
    def deed(world: TelegramPlatform, person: TelegramUser, chat: PlatformChat) -> object:
        body: Json = {"chat": chat.json(), "from": person.json(), "user": person.json(), "date": 1, "id": "1"}
        body |= {"message_id": 1, "text": "@talaria_bot hello", "query": "hello", "offset": ""}
        return world.push(kind, body)

    return deed


DEEDS: dict[str, Deed] = {
    "message": lambda world, person, chat: person.says("@talaria_bot hello", chat),
    "command": lambda world, person, chat: person.says("/status@talaria_bot", chat),
    "start": lambda world, person, chat: person.says("/start K7QD-93MX-4TZA", chat),
    "reply": lambda world, person, chat: person.says(
        "hello",
        chat,
        reply_to_message={"message_id": 1, "chat": chat.json(), "from": world.me(), "text": "x"},
    ),
    "forward": lambda world, person, chat: person.forwards("@talaria_bot hello", chat),
    "photo": lambda world, person, chat: person.sends("photo", b"x", chat, caption="@talaria_bot"),
    "document": lambda world, person, chat: person.sends("document", b"x", chat, caption="@talaria_bot"),
    "voice": lambda world, person, chat: person.sends("voice", b"x", chat),
    "edit": edit,
    "button": press,
    "joining": lambda world, person, chat: person.joins(chat),
    **{
        kind: push(kind)
        for kind in (
            "channel_post",
            "edited_channel_post",
            "inline_query",
            "message_reaction",
            "my_chat_member",
            "chat_member",
            "chat_join_request",
            "business_message",
            "poll_answer",
        )
    },
}


def _with(person: TelegramUser, **more: object) -> TelegramUser:
    class Other(TelegramUser):
        __slots__ = ()

        def json(self) -> Json:
            return person.json() | more

    return Other(person.platform, person.id, person.first_name, person.username)


WHO: dict[str, Callable[[TelegramPlatform], TelegramUser]] = {
    "stranger": lambda world: world.person(99),
    "namesake": lambda world: world.person(99, "Ada", "7"),
    "bot with the id": lambda world: _with(world.person(7), is_bot=True),
    "telegram itself": lambda world: world.person(777000, "Telegram"),
}


@pytest.mark.parametrize("place", ["private", "group", "channel"])
@pytest.mark.parametrize("who", WHO)
async def test_no_stranger_gets_a_turn_whatever_they_do(
    tmp_path: Path, server: TelegramServer, who: str, place: str
) -> None:
    world = server.platform
    world.allowed = frozenset({*DEEDS, "message", "edited_message", "callback_query"})
    person = WHO[who](world)
    match place:
        case "private":
            chat = world.private(person)
        case "group":
            chat = world.group(-100)
        case _:
            chat = world.group(-200, kind="channel")
    for deed in DEEDS.values():
        deed(world, person, chat)
    async with telegram(tmp_path, server) as line:
        await line.confirmed()
        line.ada.says("and me?")
        assert (await line.answers())[-1] == "You said: and me?"
        assert [inbound.sender.id for inbound in line.inbounds] == ["7"]
        told = [text for text in chat.replies if text != "You said: and me?"]
        is_stranger_in_private = place == "private" and who in ("stranger", "namesake", "telegram itself")
        assert len(told) == (1 if is_stranger_in_private else 0)
    assert server.count("getFile") == 0


async def test_those_who_speak_as_a_chat_get_no_turn(tmp_path: Path, server: TelegramServer) -> None:
    group, channel = server.platform.group(-100), server.platform.group(-200, kind="channel")
    server.platform.anonymous_admin_says(group, "@talaria_bot hello")
    server.platform.posts_in_channel(channel, "@talaria_bot hello")
    server.person(7).says("@talaria_bot hello", group, sender_chat=channel.json())
    async with telegram(tmp_path, server) as line:
        await line.confirmed()
        assert line.inbounds == []
        assert group.replies == channel.replies == []


async def test_a_stranger_is_told_a_code_and_is_answered_once_it_is_approved(
    tmp_path: Path, server: TelegramServer
) -> None:
    bob = server.person(8, "Bob")
    async with telegram(tmp_path, server) as line:
        chat = server.platform.private(bob)
        bob.says("hello?")
        (told,) = await line.answers(1, chat)
        code = next(word for word in told.split() if word.count("-") == 2)
        await line.admin.approve(code)
        bob.says("and now?")
        assert (await line.answers(2, chat))[1] == "You said: and now?"
        assert [inbound.sender.id for inbound in line.inbounds] == ["8"]


async def test_an_invitation_lets_its_holder_in(tmp_path: Path, server: TelegramServer) -> None:
    bob = server.person(8, "Bob")
    async with telegram(tmp_path, server) as line:
        chat = server.platform.private(bob)
        invitation = await line.admin.invite("telegram")
        bob.says(f"/start {invitation.code}")
        assert "You are in" in (await line.answers(1, chat))[0]
        bob.says("hello")
        assert (await line.answers(2, chat))[1] == "You said: hello"
