"""What each event means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from support.slack_fuzz import fuzz
from talaria.access.authorizer import ChatKind, Ingress
from talaria.channels.incoming import ButtonPress, Withdrawal
from talaria.channels.slack.parse import Ignored, Parsed, Rules, Said, SlackPlace, parse
from talaria.channels.slack.slack_api import BotIdentity
from talaria.testing.slack_platform import BOT_USER, Json, SlackPlatform

RULES = Rules(BotIdentity(BOT_USER), "main", commands=frozenset({"new", "status"}))


def parsed(platform: SlackPlatform, rules: Rules = RULES) -> Parsed:
    kind, payload = platform.log[-1]
    return parse(kind, msgspec.json.encode(payload), rules)


def said(text: str, names: Mapping[str, str] = {}, **more: Any) -> tuple[Said, str]:
    """Return a parsed direct message, and what the model reads."""
    platform = SlackPlatform()
    platform.arrive(platform.person("U7").dm, {"user": "U7", "text": text} | more)
    found = parsed(platform)
    assert isinstance(found, Said), found
    message = found.message("main", names)
    return found, "\n".join(part for part in (message.preface, message.text) if part)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a &lt;b&gt; &amp;amp; c", "a <b> &amp; c"),
        (f"<@{BOT_USER}> hello", "hello"),
        (f"<@{BOT_USER}|talaria>: hello", "hello"),
        ("<@U8> and <@U9|old-name> and <@U5>", "@Bob and @old-name and @U5"),
        ("<#C1|general> <#C2>", "#general #C2"),
        ("<!here> <!subteam^S1|@team>", "@here @team"),
        ("<https://a.org/x> <https://a.org/y|a.org/y> <https://a.org|the page>",
         "https://a.org/x https://a.org/y the page (https://a.org)"),
        ("<mailto:a@b.org|a@b.org>", "a@b.org"),
        ("a\x00b\u202ec", "abc"),
        ("!new", "/new"),
        ("!New now", "/New now"),
        ("!news", "!news"),
    ],
)  # fmt: skip
def test_the_model_reads_what_people_see(text: str, read: str) -> None:
    assert said(text, {"U8": "Bob"})[1] == read


def test_a_command_has_no_preface_and_its_own_ingress() -> None:
    message = said("!new")[0].message("main", {})
    assert (message.ingress, message.preface) == (Ingress.COMMAND, "")


def test_a_forwarded_message_is_quoted_with_its_author() -> None:
    shared = {"is_share": True, "author_id": "U8", "author_name": "B", "text": "&lt;secret&gt;\nplan"}
    preview = {"text": "a preview of a link"}
    found, read = said("look", {"U8": "Bob"}, attachments=[shared, preview])
    assert read == "[Forwarded message of Bob:]\n> <secret>\n> plan\nlook"
    assert found.message("main", {}).repeats_others
    assert "U8" in found.people


def test_files_have_safe_names_and_hidden_ones_are_left_out() -> None:
    private = "https://files.slack.com/files-pri/x"
    file = {"id": "F1", "name": "../../etc/passwd", "mimetype": "text/plain", "size": 3}
    hidden = {"id": "F2", "name": "old.txt", "mode": "hidden_by_limit"}
    found, _ = said("", files=[file | {"url_private_download": private}, hidden], subtype="file_share")
    [remote] = found.files
    assert (remote.id, "/" in remote.name, remote.size) == (private, False, 3)
    assert found.message("main", {}).ingress is Ingress.FILE


def test_an_edit_names_the_message_and_a_preview_is_no_edit() -> None:
    platform = SlackPlatform()
    ada = platform.person("U7")
    first = ada.says("one")
    ada.edits(first, "two")
    found = parsed(platform)
    assert isinstance(found, Said)
    message = found.message("main", {})
    assert message.ingress is Ingress.EDIT and message.edits == f"m{first['ts']}" != message.key
    ada.edits(first, "two")
    assert isinstance(parsed(platform), Ignored)


def test_a_deletion_is_a_withdrawal() -> None:
    platform = SlackPlatform()
    ada = platform.person("U7")
    first = ada.says("one")
    ada.deletes(first)
    withdrawal = parsed(platform)
    assert isinstance(withdrawal, Withdrawal)
    assert (withdrawal.chat, withdrawal.key) == (SlackPlace("D7").chat("main", "U7"), f"m{first['ts']}")


def test_the_tombstone_of_a_message_with_replies_is_a_withdrawal() -> None:
    platform = SlackPlatform()
    ada, general = platform.person("U7"), platform.conversation("C1")
    root = ada.says("@talaria one", general)
    ada.says("two", general, root["ts"])
    ada.deletes(root)
    withdrawal = parsed(platform)
    assert isinstance(withdrawal, Withdrawal)
    chat = SlackPlace("C1", root["ts"]).chat("main", "U7")
    assert (withdrawal.chat, withdrawal.key) == (chat, f"m{root['ts']}")


def test_a_press_belongs_to_the_thread_of_its_message() -> None:
    platform = SlackPlatform()
    ada, general = platform.person("U7"), platform.conversation("C1")
    root = ada.says("hello", general)
    button = {
        "type": "button",
        "text": {"type": "plain_text", "text": "Go"},
        "value": "/status",
        "action_id": "b0",
    }
    block = {"type": "actions", "elements": [button]}
    given = {"channel": "C1", "text": "x", "blocks": [block], "thread_ts": root["ts"]}
    shown = general.messages[platform.call("chat.postMessage", given)["ts"]]
    ada.presses(shown, "Go", general)
    press = parsed(platform)
    assert isinstance(press, ButtonPress)
    assert (press.command, press.address, press.actor.user_id) == ("/status", f"C1:{root['ts']}", "U7")
    assert press.actor.chat_kind is ChatKind.GROUP
    assert press.chat == SlackPlace("C1", root["ts"]).chat("main", "U7")


@pytest.mark.parametrize(
    "event",
    [
        {"subtype": "channel_join", "user": "U7", "text": "joined", "channel": "D1", "ts": "1.1"},
        {"user": "U7", "text": "   ", "channel": "D1", "ts": "1.1"},
        {"user": "U7", "text": "no channel", "ts": "1.1"},
        {"user": "U7", "text": "no ts", "channel": "D1"},
        {"text": "nobody", "channel": "D1", "ts": "1.1"},
        {"type": "reaction_added", "user": "U7", "channel": "D1"},
        {"subtype": "message_changed", "channel": "D1", "message": {"user": BOT_USER, "text": "x"}},
    ],
)
def test_what_is_no_message_of_a_person_is_ignored(event: Json) -> None:
    event = {"type": "message"} | event
    payload = msgspec.json.encode({"type": "event_callback", "event": event})
    assert isinstance(parse("events_api", payload, RULES), Ignored)


def test_addresses_are_read_as_they_were_written() -> None:
    for place in (SlackPlace("D1"), SlackPlace("C1", "1700000000.000100")):
        assert SlackPlace.read(place.address()) == place
    with pytest.raises(ValueError):
        SlackPlace.read("C1")


async def test_no_broken_event_makes_a_turn_for_a_stranger_or_an_error() -> None:
    result = await fuzz(200, seed=31)
    assert (result.wrong, result.uncaught) == ([], [])
    assert result.decoded > 50 and result.turns > 10


@pytest.mark.long
async def test_no_broken_event_of_many_makes_a_turn_for_a_stranger_or_an_error() -> None:
    result = await fuzz(2000, seed=32)
    assert (result.wrong, result.uncaught) == ([], [])
