"""The fake Slack rejects what Slack rejects, with Slack's error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from talaria.channels.slack.slack_api import SlackApi, SlackRefused
from talaria.testing.slack_platform import ALL_SCOPES, SlackPlatform, SlackRefusal
from talaria.testing.slack_server import APP_TOKEN, BOT_TOKEN, SlackServer

SECTION = {"type": "section", "text": {"type": "mrkdwn", "text": "x"}}
BUTTON = {"type": "button", "text": {"type": "plain_text", "text": "Go"}, "action_id": "a", "value": "v"}


def section(text: str) -> dict[str, Any]:
    return SECTION | {"text": {"type": "mrkdwn", "text": text}}


def actions(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "actions", "elements": list(elements)}


@pytest.fixture
def world() -> SlackPlatform:
    platform = SlackPlatform()
    ada = platform.person("U7")
    root = ada.says("root", platform.conversation("C1"))
    ada.says("reply", platform.conversation("C1"), root["ts"])
    platform.conversations["C2"] = platform.conversation("C2")
    platform.conversation("C2").members.clear()
    platform.conversation("C3").is_archived = True
    return platform


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"channel": "C9", "text": "x"}, "channel_not_found"),
        ({"channel": "C2", "text": "x"}, "not_in_channel"),
        ({"channel": "C3", "text": "x"}, "is_archived"),
        ({"channel": "C1"}, "no_text"),
        ({"channel": "C1", "text": "x" * 40_001}, "msg_too_long"),
        ({"channel": "C1", "text": "x", "thread_ts": "yesterday"}, "invalid_thread_ts"),
        ({"channel": "C1", "text": "x", "thread_ts": "1700000000.999999"}, "thread_not_found"),
        ({"channel": "C1", "blocks": None, "text": "x"}, "invalid_blocks_format"),
        ({"channel": "C1", "blocks": [section("x" * 3001)]}, "invalid_blocks"),
        ({"channel": "C1", "blocks": [section("")]}, "invalid_blocks"),
        ({"channel": "C1", "blocks": [SECTION] * 51}, "invalid_blocks"),
        ({"channel": "C1", "blocks": [{"type": "button"}]}, "invalid_blocks"),
        ({"channel": "C1", "blocks": [actions()]}, "invalid_blocks"),
        ({"channel": "C1", "blocks": [actions(BUTTON, BUTTON)]}, "invalid_blocks"),
        ({"channel": "C1", "blocks": [actions(BUTTON | {"value": "x" * 2001})]}, "invalid_blocks"),
        ({"channel": "C1", "blocks": [actions(*({**BUTTON, "action_id": f"{n}"} for n in range(26)))]},
         "invalid_blocks"),
    ],
)  # fmt: skip
def test_a_message_that_slack_rejects(world: SlackPlatform, given: dict[str, Any], error: str) -> None:
    with pytest.raises(SlackRefusal) as refusal:
        world.call("chat.postMessage", given)
    assert refusal.value.answer["error"] == error


def test_the_ts_of_a_reply_is_no_thread(world: SlackPlatform) -> None:
    _, reply = world.conversation("C1").messages
    with pytest.raises(SlackRefusal, match="cannot_reply_to_message"):
        world.call("chat.postMessage", {"channel": "C1", "text": "x", "thread_ts": reply})


def test_only_the_bots_own_messages_can_be_edited(world: SlackPlatform) -> None:
    ts = world.call("chat.postMessage", {"channel": "C1", "text": "x", "blocks": [actions(BUTTON)]})["ts"]
    shown = world.conversation("C1").messages[ts]
    for given, error in (
        ({"ts": "1.1", "text": "x"}, "message_not_found"),
        ({"ts": next(iter(world.conversation("C1").messages)), "text": "x"}, "cant_update_message"),
        ({"ts": ts, "text": "x" * 4001}, "msg_too_long"),
    ):
        with pytest.raises(SlackRefusal, match=error):
            world.call("chat.update", {"channel": "C1"} | given)
    world.call("chat.update", {"channel": "C1", "ts": ts, "text": "only text"})
    assert (shown.text, shown.buttons) == ("only text", ()), "a text without blocks removes the blocks"


def test_an_upload_needs_its_three_calls_in_order(world: SlackPlatform) -> None:
    for wrong in ({"filename": "a", "length": 0}, {"filename": "", "length": 1}):
        with pytest.raises(SlackRefusal, match="invalid_arguments"):
            world.call("files.getUploadURLExternal", wrong)
    file = world.call("files.getUploadURLExternal", {"filename": "a.txt", "length": 3})["file_id"]
    done = {"files": [{"id": file}], "channel_id": "C1"}
    with pytest.raises(SlackRefusal, match="file_not_found"):
        world.call("files.completeUploadExternal", done)
    assert not world.receive_upload(file, b"four") and world.receive_upload(file, b"abc")
    world.call("files.completeUploadExternal", done)
    with pytest.raises(SlackRefusal, match="file_not_found"):
        world.call("files.completeUploadExternal", done)


@pytest.fixture
async def server() -> AsyncIterator[SlackServer]:
    async with SlackServer() as server:
        yield server


@pytest.mark.parametrize(
    ("token", "method", "error"),
    [
        ("xoxb-other", "auth.test", "invalid_auth"),
        (BOT_TOKEN, "apps.connections.open", "not_allowed_token_type"),
        (APP_TOKEN, "chat.postMessage", "not_allowed_token_type"),
        (BOT_TOKEN, "files.upload", "unknown_method"),
    ],
)
async def test_a_call_with_the_wrong_token(server: SlackServer, token: str, method: str, error: str) -> None:
    async with SlackApi(server.api_url, token) as api:
        with pytest.raises(SlackRefused) as refusal:
            await api.call(method, msgspec.Raw)
    assert refusal.value.error == error


async def test_a_call_needs_its_scope(server: SlackServer) -> None:
    server.platform.scopes = ALL_SCOPES.replace("chat:write,", "")
    async with SlackApi(server.api_url, BOT_TOKEN) as api:
        with pytest.raises(SlackRefused) as refusal:
            await api.call("chat.postMessage", msgspec.Raw, channel="C1", text="x")
        assert (refusal.value.needed, "chat:write" in api.scopes) == ("chat:write", False)


async def test_an_app_has_ten_connections(server: SlackServer) -> None:
    async with SlackApi(server.api_url, APP_TOKEN) as app:
        opened = [app.open_socket() for _ in range(10)]
        counts = [(await each.__aenter__()).connections for each in opened]
        assert counts == list(range(1, 11))
        async with app.open_socket() as extra:
            assert (await extra.receive()).reason == "too_many_websockets"
        for each in opened:
            await each.__aexit__(None, None, None)
