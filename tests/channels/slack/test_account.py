"""`[channels.slack]`, what `doctor` makes of it, and how `talaria connect slack` tries an app."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.slack.line import ADA
from talaria.access.authorizer import Authorizer, PairingAdmin
from talaria.channels.self_test import SelfTest
from talaria.channels.slack.account import AppAccount, examine_app, open_app, open_check
from talaria.channels.slack.part import SCOPES, SLACK, SPLIT, UNCONFIRMED, SlackSettings, find_secrets
from talaria.config.load import load
from talaria.core.errors import ConfigError
from talaria.core.ids import ChatAddress
from talaria.core.settings import Examination
from talaria.parts import PARTS
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.slack_platform import ALL_SCOPES
from talaria.testing.slack_server import APP_TOKEN, BOT_TOKEN, SlackFault, SlackFaultKind, SlackServer

BOTH = {"bot_token": BOT_TOKEN, "app_token": APP_TOKEN}


# -- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('bot_token = "x"', "expected channels.slack.app_token_env (Socket Mode) or signing_secret_env"),
        ("allowed = [7]", "allowed"),
        ('allowed = ["ada"]', "a list of member IDs"),
        ('mention = "sometimes"', '"always", "channels", "never", "off"'),
        ('mention_in = { general = "off" }', "a channel ID such as"),
        ('unknown = "welcome"', '"pair", "ignore"'),
        ('api_url = "ftp://x"', "expected an address"),
        ('app_token_env = "xapp-secret value"', "has a wrong value (not shown)"),
    ],
)
def test_a_wrong_value_says_what_may_stand_there(tmp_path: Path, lines: str, words: str) -> None:
    (tmp_path / "config.toml").write_text(f"[channels.slack]\n{lines}\n")
    with pytest.raises(ConfigError) as error:
        load(tmp_path, {}, PARTS)
    assert words in str(error.value)
    assert "secret value" not in str(error.value)


def test_the_secrets_are_found_where_they_were_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "app").write_text(" xapp-file\n")
    settings = SlackSettings(bot_token_env="B", app_token_file="app")
    found = find_secrets(settings, tmp_path, {"B": "xoxb-env"})
    assert found == {"bot_token": "xoxb-env", "app_token": "xapp-file"}
    with pytest.raises(ConfigError, match="Slack's bot token"):
        find_secrets(settings, tmp_path, {})


def test_one_gateway_has_the_socket_and_all_take_requests() -> None:
    assert SLACK.has_one_consumer(SlackSettings(bot_token="x", app_token="z"))
    assert not SLACK.has_one_consumer(SlackSettings(bot_token="x", signing_secret="y"))


@pytest.mark.parametrize(
    ("kind", "chat", "thread", "address"),
    [
        ("dm", "U7ADA", None, "U7ADA:"),
        ("group", "C1GENERAL", "1700000000.000100", "C1GENERAL:1700000000.000100"),
        ("group", "C1GENERAL", None, "C1GENERAL:"),
        ("dm", "C1GENERAL", None, None),
        ("group", "#general", None, None),
        ("group", "C1GENERAL", "yesterday", None),
        ("other", "D7ADA", None, None),
    ],
)
def test_a_chat_has_an_address(kind: str, chat: str, thread: str | None, address: str | None) -> None:
    assert SLACK.address_of is not None
    assert SLACK.address_of(ChatAddress("main", "slack", kind, chat, thread)) == address


def test_the_manifest_asks_for_what_the_channel_needs() -> None:
    assert SLACK.connector is not None
    assert SLACK.connector.guide is not None
    guide = SLACK.connector.guide()
    listed = re.search(r"bot: \[(.*?)\]", guide, re.DOTALL)
    assert listed and set(re.split(r",\s+", listed[1])) == set(SCOPES) == set(ALL_SCOPES.split(","))
    assert all(f"message.{kind}" in guide for kind in ("channels", "groups", "im", "mpim"))
    assert "socket_mode_enabled: true" in guide and "command: /talaria" in guide
    page = Path(__file__).parents[3] / "docs" / "slack.md"
    manifest = guide[guide.index("display_information") : guide.index("3. Click")].strip()
    shown = "\n".join(line.removeprefix("   ") for line in page.read_text().splitlines())
    assert manifest in shown, "docs/slack.md shows the same manifest"


# -- talaria doctor -----------------------------------------------------------------------------------------


async def found(
    tmp_path: Path, server: SlackServer, state: str = "ready", **settings: Any
) -> list[tuple[str, str]]:
    configured = SlackSettings(**({"api_url": server.api_url} | BOTH | settings))
    examination = Examination(tmp_path, configured, {}, {"channels": {"slack": state}})
    return [(each.severity, each.text) async for each in examine_app(examination)]


async def test_the_doctor_knows_a_good_app_from_a_bad_one(tmp_path: Path, server: SlackServer) -> None:
    ok = ("ok", "@talaria in Test answers; events come by Socket Mode.")
    assert await found(tmp_path, server) == [ok]
    first, second = await found(tmp_path, server, f"starting: {UNCONFIRMED}")
    assert (first, second[0], UNCONFIRMED in second[1]) == (ok, "warn", True)
    first, second = await found(tmp_path, server, f"ready: {SPLIT}")
    assert (first, second[0], SPLIT in second[1]) == (ok, "problem", True)
    for settings, words in (
        ({"bot_token": "xoxb-x"}, "does not know"),
        ({"app_token": BOT_TOKEN}, "swapped"),
        ({"api_url": "http://127.0.0.1:1/api"}, "cannot be reached"),
    ):
        ((level, text),) = await found(tmp_path, server, **settings)
        assert (level, words in text) == ("problem", True)
    server.platform.scopes = ALL_SCOPES.replace("files:write,", "")
    ((level, text),) = await found(tmp_path, server)
    assert (level, "files:write" in text) == ("problem", True)
    server.fail("auth.test", SlackFault(SlackFaultKind.HTML))
    assert (await found(tmp_path, server))[0][0] == "problem"


# -- talaria connect ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ({"bot_token": APP_TOKEN, "app_token": BOT_TOKEN}, "swapped"),
        ({"bot_token": "xoxp-user"}, "not a bot token"),
        ({"app_token": "12345"}, "not an app-level token"),
        ({"bot_token": "xoxb-wrong"}, "does not know this bot token"),
        ({"app_token": "xapp-wrong"}, "does not know this app-level token"),
    ],
)
async def test_a_wrong_token_is_refused_in_words(
    server: SlackServer, tokens: Mapping[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        async with open_app(SlackSettings(api_url=server.api_url), **(BOTH | dict(tokens))):
            pass
    assert error.value.hint


@pytest.mark.parametrize(
    ("trouble", "words", "place"),
    [
        ("scope", "users:read", "OAuth & Permissions"),
        ("app scope", "connections:write", "App-Level Tokens"),
        ("socket", "Socket Mode is switched off", "Socket Mode"),
    ],
)
async def test_a_missing_setting_of_the_app_is_named(
    server: SlackServer, trouble: str, words: str, place: str
) -> None:
    if trouble == "scope":
        server.platform.scopes = ALL_SCOPES.replace(",users:read", "")
    elif trouble == "app scope":
        fault = SlackFault(SlackFaultKind.ERROR, error="missing_scope")
        server.fail("apps.connections.open", fault)
    else:
        server.is_socket_mode = False
    with pytest.raises(ConfigError, match=words) as error:
        async with open_app(SlackSettings(api_url=server.api_url), **BOTH):
            pass
    assert "https://api.slack.com/apps" in error.value.hint and place in error.value.hint


@asynccontextmanager
async def account(server: SlackServer) -> AsyncIterator[tuple[AppAccount, Authorizer, PairingAdmin]]:
    clock = FakeClock()
    store = MemoryStore(clock)
    async with open_app(SlackSettings(api_url=server.api_url), **BOTH) as opened:
        assert isinstance(opened, AppAccount)
        yield opened, Authorizer(store.pairings, {}, clock), PairingAdmin(store.pairings, ["slack"])


async def test_the_first_person_with_the_code_is_paired(server: SlackServer) -> None:
    async with account(server) as (app, authorizer, admin):
        code = (await admin.invite("slack")).code
        ada = server.person(ADA)
        assert any(f"!start {code}" in line for line in app.invite(code))
        waiting = asyncio.create_task(app.admit_first(authorizer, 30))
        await server.until(lambda: bool(server.sockets))
        ada.says("hello?")
        ada.says(f"!start {code}")
        assert await waiting == "Ada"
        assert any("You are in" in text for text in ada.dm.replies)
        waiting_events = [each.payload["event"].get("text") for each in server.unacknowledged]
        assert "hello?" in waiting_events, "the gateway receives it later"


async def test_the_wait_for_the_first_person_outlives_a_closed_socket(server: SlackServer) -> None:
    async with account(server) as (app, authorizer, admin):
        code = (await admin.invite("slack")).code
        waiting = asyncio.create_task(app.admit_first(authorizer, 30))
        await server.until(lambda: bool(server.sockets))
        await server.cut()
        server.fail("users.info", SlackFault(SlackFaultKind.ERROR, error="user_not_found"))
        server.person(ADA).says(f"!start {code}")
        assert await waiting == ADA, "without a name the id is known"


async def test_missing_event_subscriptions_are_named_when_nothing_came(server: SlackServer) -> None:
    async with account(server) as (app, authorizer, _):
        with pytest.raises(ConfigError, match="no event came") as error:
            await app.admit_first(authorizer, 0.05)
        assert "message.im" in error.value.hint and "Messages Tab" in error.value.hint


# -- talaria connect slack --check --------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "wrong"), [("", []), ("chat.update", ["edit"])])
async def test_each_step_of_the_self_test_is_tried(server: SlackServer, fault: str, wrong: list[str]) -> None:
    ada = server.person(ADA)
    if fault:
        server.fail(fault, SlackFault(SlackFaultKind.ERROR, error="restricted_action"))
    async with open_check(SlackSettings(api_url=server.api_url), **BOTH) as chat:
        test = asyncio.create_task(SelfTest(chat, lambda line: None, 20).run())
        ada.says("hello")
        await server.until(lambda: any(each.buttons for each in ada.dm.messages.values()))
        [asked] = [each for each in ada.dm.messages.values() if each.buttons]
        before = max(server.sockets)
        ada.presses(asked, "Press me")
        await server.until(lambda: max(server.sockets, default=0) > before)
        ada.says("again")
        results = await test
    steps = ["receive", "send", "edit", "repeat", "type", "file", "button", "reconnect"]
    assert [each.name for each in results] == steps
    assert [each.name for each in results if each.difference] == wrong
