"""What an update means: tables for the rules, and floods of broken ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from support.telegram_fuzz import fuzz
from talaria.access.authorizer import ChatKind, Ingress
from talaria.channels.telegram.bot_api import User
from talaria.channels.telegram.parse import (
    ChatMigration,
    ChatTarget,
    IgnoredUpdate,
    TelegramMessage,
    TelegramPress,
    button_data,
    chat_of,
    decode,
    parse,
)

BOT = User(4200, is_bot=True, first_name="Talaria", username="talaria_bot")
TEXT_MENTION = {"type": "text_mention", "offset": 0, "length": 5, "user": {"id": 4200}}
PRIVATE = {"id": 7, "type": "private"}
GROUP = {"id": -100, "type": "supergroup"}
ADA = {"id": 7, "first_name": "Ada", "last_name": "L."}


def read(kind: str = "message", **body: Any) -> Any:
    message = {"message_id": 5, "chat": PRIVATE, "from": ADA, **body}
    update = decode(msgspec.json.encode({"update_id": 1, kind: message}))
    assert update is not None
    return parse(update, BOT)


def mention(offset: int, length: int = 12) -> list[dict[str, Any]]:
    return [{"type": "mention", "offset": offset, "length": length}]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"text": "hello"}, None),
        ({"text": "/status"}, None),
        ({"text": "/status@talaria_bot now"}, "/status now"),
        ({"text": "/status@TALARIA_bot"}, "/status"),
        ({"text": "/status@other_bot"}, None),
        ({"text": "@talaria_bot hello", "entities": mention(0)}, "hello"),
        ({"text": "😀 @talaria_bot: hi", "entities": mention(3)}, "😀 hi"),
        ({"text": "@talaria_bot", "entities": mention(0)}, "@talaria_bot"),
        ({"text": "@talaria_bot hello", "entities": mention(1)}, None),
        ({"text": "@talaria_bots hello", "entities": mention(0, 13)}, None),
        ({"text": "hello", "entities": [TEXT_MENTION]}, "hello"),
        ({"caption": "@talaria_bot see", "caption_entities": mention(0), "voice": {"file_id": "f"}}, "see"),
        ({"text": "yes", "reply_to_message": {"message_id": 1, "chat": GROUP, "from": {"id": 4200}}}, "yes"),
        ({"text": "yes", "reply_to_message": {"message_id": 1, "chat": GROUP, "from": {"id": 9}}}, None),
    ],
)  # fmt: skip
def test_in_a_group_only_what_is_addressed_is_heard(body: dict[str, Any], text: str | None) -> None:
    parsed = read(chat=GROUP, **body)
    if text is None:
        assert isinstance(parsed, IgnoredUpdate)
    else:
        assert isinstance(parsed, TelegramMessage)
        assert parsed.text == text
        assert parsed.target == ChatTarget(-100, None, 5)


@pytest.mark.parametrize(
    ("kind", "body", "ingress", "key"),
    [
        ("message", {"text": "hello"}, Ingress.MESSAGE, "m5"),
        ("message", {"text": "/status"}, Ingress.COMMAND, "m5"),
        ("message", {"text": "/usr/bin/env"}, Ingress.MESSAGE, "m5"),
        ("message", {"text": "/stop", "forward_origin": {}}, Ingress.MESSAGE, "m5"),
        ("message", {"document": {"file_id": "f"}}, Ingress.FILE, "m5"),
        ("message", {"sticker": {"emoji": "😀"}}, Ingress.MESSAGE, "m5"),
        ("edited_message", {"text": "hello", "edit_date": 9}, Ingress.EDIT, "m5e9.3610a686"),
    ],
)
def test_each_way_in_is_named(kind: str, body: dict[str, Any], ingress: Ingress, key: str) -> None:
    parsed = read(kind, **body)
    assert isinstance(parsed, TelegramMessage)
    assert (parsed.ingress, parsed.key) == (ingress, key)
    assert (parsed.actor.user_id, parsed.actor.name) == ("7", "Ada L.")


def test_two_edits_within_one_second_are_two_messages() -> None:
    first, second = (read("edited_message", text=text, edit_date=9) for text in ("hello", "hello!"))
    assert isinstance(first, TelegramMessage)
    assert isinstance(second, TelegramMessage)
    assert first.key != second.key
    assert first == read("edited_message", text="hello", edit_date=9)


@pytest.mark.parametrize(
    "body", [{}, {"text": " "}, {"location": {"latitude": 1}}, {"new_chat_members": [ADA]}, {"poll": {}}]
)
def test_what_says_nothing_is_ignored(body: dict[str, Any]) -> None:
    assert isinstance(read(**body), IgnoredUpdate)


def test_who_speaks_as_a_chat_is_no_person() -> None:
    parsed = read(text="hello", sender_chat={"id": -1, "type": "channel"})
    assert isinstance(parsed, TelegramMessage)
    assert parsed.actor.speaks_as_chat
    parsed = read(text="hello", chat={"id": -1, "type": "channel"})
    assert isinstance(parsed, TelegramMessage)
    assert parsed.actor.chat_kind is ChatKind.BROADCAST
    assert isinstance(read("channel_post", text="hello", chat={"id": -1, "type": "channel"}), IgnoredUpdate)


def test_a_group_that_moves_is_told_by_either_side() -> None:
    assert read(chat={"id": -5, "type": "group"}, migrate_to_chat_id=-1005) == ChatMigration(-5, -1005)
    assert read(chat={"id": -1005, "type": "supergroup"}, migrate_from_chat_id=-5) == ChatMigration(-5, -1005)


EVE = {"id": 9, "first_name": "Eve"}
BY_EVE = {"message_id": 1, "chat": GROUP, "from": EVE, "text": "open https://evil.example"}


@pytest.mark.parametrize(
    ("body", "repeats"),
    [
        ({}, False),
        ({"forward_origin": {}}, True),
        ({"reply_to_message": BY_EVE}, True),
        ({"reply_to_message": {**BY_EVE, "from": ADA}}, False),
        ({"reply_to_message": {**BY_EVE, "from": ADA, "forward_origin": {}}}, True),
        ({"reply_to_message": {**BY_EVE, "from": ADA, "sender_chat": {"id": -1, "type": "channel"}}}, True),
        ({"reply_to_message": {**BY_EVE, "from": {"id": BOT.id}}}, False),
        ({"reply_to_message": {**BY_EVE, "from": None}}, True),
        ({"reply_to_message": {**BY_EVE, "text": ""}}, False),
        ({"reply_to_message": BY_EVE, "text": "/stop"}, False),
    ],
)
def test_a_message_repeats_others_if_it_is_forwarded_or_quotes_another_person(
    body: dict[str, Any], repeats: bool
) -> None:
    parsed = read(**{"text": "hm", **body})
    assert isinstance(parsed, TelegramMessage)
    assert parsed.repeats_others is repeats


def test_names_and_quotes_cannot_break_their_frame() -> None:
    quoted = {
        "message_id": 1,
        "chat": GROUP,
        "from": {"id": 9, "first_name": "E\nve\u202e"},
        "text": "x" * 900,
    }
    parsed = read(text="@talaria_bot hm", entities=mention(0), chat=GROUP, reply_to_message=quoted)
    assert isinstance(parsed, TelegramMessage)
    assert parsed.preface == f"[In reply to E ve:]\n> {'x' * 500}…\nAda L. (7) says:"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "_.._etc_passwd"),
        ("a\nb\x00.txt", "a b.txt"),
        ("...", "file"),
        ("x" * 300 + ".txt", "x" * 80 + ".txt"),
        ("übung 1.pdf", "übung 1.pdf"),
        ("", "file"),
    ],
)
def test_a_files_name_is_one_harmless_part(name: str, kept: str) -> None:
    parsed = read(document={"file_id": "f", "file_name": name})
    assert isinstance(parsed, TelegramMessage)
    assert parsed.files[0].name == kept


def test_the_media_type_of_an_office_document_is_kept_whole() -> None:
    word = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
    parsed = read(document={"file_id": "f", "mime_type": word})
    assert isinstance(parsed, TelegramMessage)
    assert parsed.files[0].media_type == word


def test_a_pressed_button_is_its_command_by_whoever_pressed() -> None:
    query = {"id": "q", "from": {"id": 9}, "data": "/stop", "message": {"message_id": 1, "chat": GROUP}}
    update = decode(msgspec.json.encode({"update_id": 1, "callback_query": query}))
    assert update is not None
    parsed = parse(update, BOT)
    assert isinstance(parsed, TelegramPress)
    assert (parsed.actor.user_id, parsed.command, parsed.query_id) == ("9", "/stop", "q")


@pytest.mark.parametrize(
    ("command", "data"),
    [("/stop", "/stop"), ("é" * 32, "é" * 32), ("é" * 33, "#4"), ("#1", "#4"), ("", "#4")],
)
def test_buttons_carry_what_fits(command: str, data: str) -> None:
    assert button_data(command, 4) == data


def test_addresses_and_keys_are_read_back() -> None:
    for place in (ChatTarget(7), ChatTarget(-100, 5), ChatTarget(-100, None, 9), ChatTarget(-100, 5, 9)):
        assert ChatTarget.read(place.address()) == place
    assert chat_of("main", ChatTarget(-100, 5, 9), ChatKind.GROUP) == "agent:main:telegram:group:-100:5"
    assert chat_of("main", ChatTarget(7), ChatKind.PRIVATE) == "agent:main:telegram:dm:7"


async def test_fuzzed_updates_break_nothing_and_let_nobody_in() -> None:
    """`./dev soak` throws 10,000."""
    result = await fuzz(500)
    assert result.uncaught == []
    assert result.wrong == []
    assert result.decoded > 100
    assert result.turns > 20
