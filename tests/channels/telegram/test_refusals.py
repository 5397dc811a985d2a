"""What each refusal of Telegram means for the part that meets it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from channels.telegram.line import ADA, telegram, way_back
from channels.telegram.test_live import View, stage
from support.rig import start
from talaria.access.authorizer import Authorizer, PairingAdmin
from talaria.channels.live_message import CURSOR, LiveText
from talaria.channels.pieces import tail
from talaria.channels.platform_api import PlatformTooLarge, PlatformUnanswered
from talaria.channels.telegram.account import BotAccount, open_bot
from talaria.channels.telegram.bot_api import BotApi, BotApiRefused, User
from talaria.channels.telegram.channel import TelegramWebhook, _explain
from talaria.channels.telegram.parse import CHANNEL, decode
from talaria.channels.telegram.part import TelegramSettings, find_token
from talaria.channels.telegram.render import to_html
from talaria.channels.telegram.updates import UpdateHandler
from talaria.core.clock import SystemClock
from talaria.core.delivery import Button, DeliveryRefused, OutgoingFile, OutgoingMessage
from talaria.core.errors import ConfigError
from talaria.core.events import Delta, ModelLoading, Reset, ToolFinished, ToolOutput, ToolStarted
from talaria.core.messages import ToolOutcome
from talaria.core.turns import Inbound
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.telegram_server import FaultKind, TelegramFault, TelegramServer
from talaria.workspace.folder import chat_folder


def refusal(code: int, description: str = "No", **parameters: Any) -> TelegramFault:
    body = {"ok": False, "error_code": code, "description": description, "parameters": parameters}
    return TelegramFault(FaultKind.STATUS, status=code, body=body)


# -- talaria connect ----------------------------------------------------------------------------------------


async def test_a_bot_is_opened_only_with_its_token(server: TelegramServer) -> None:
    settings = TelegramSettings(api_url=server.url)
    async with open_bot(settings, server.token) as bot:
        assert bot.name == "@talaria_bot"
    for token in ("1:wrong", "nonsense"):
        with pytest.raises(ConfigError, match="Telegram does not know this token"):
            async with open_bot(settings, token):
                raise AssertionError("the bot was opened")
    server.fail("getMe", refusal(429))
    with pytest.raises(BotApiRefused):
        async with open_bot(settings, server.token):
            raise AssertionError("the bot was opened")


async def wait_for_the_first(server: TelegramServer, seconds: float) -> tuple[str | None, BotAccount]:
    store = MemoryStore(SystemClock())
    invitation = await PairingAdmin(store.pairings, [CHANNEL]).invite(CHANNEL)
    authorizer = Authorizer(store.pairings, {CHANNEL: ()}, SystemClock())
    async with open_bot(TelegramSettings(api_url=server.url), server.token) as bot:
        server.platform.push("message", {"message_id": "broken"})
        server.person(8, "Bob").says("/start wrong")
        server.person(9, "Eve").says(invitation.code)
        server.person(ADA, "Ada").says(f"/start {invitation.code}")
        return await bot.admit_first(authorizer, seconds), bot


async def test_the_first_person_with_the_code_is_let_in_and_named(server: TelegramServer) -> None:
    name, bot = await wait_for_the_first(server, 30)
    assert name == "Ada"
    assert bot.invite("abc") == ("Open  https://t.me/talaria_bot?start=abc", "or send the bot  /start abc")
    assert server.platform.chats[ADA].replies
    assert len(server.platform.queue) == 4, "the updates stay for the gateway"


async def test_an_update_that_is_seen_again_is_not_answered_again(server: TelegramServer) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    server.person(8, "Bob").says("/start wrong")
    async with BotApi(server.url, server.token) as api:
        account = BotAccount(api, await api.call("getMe", User), clock)
        waiting = asyncio.create_task(account.admit_first(Authorizer(store.pairings, {}, clock), 5))
        while not waiting.done():
            clock.advance(1)
            await clock.settle()
        assert await waiting is None
    assert server.count("getUpdates") >= 2
    assert server.count("sendMessage") == 1


async def test_another_program_with_the_token_is_named_and_other_errors_pass(server: TelegramServer) -> None:
    server.fail("getUpdates", refusal(409, "Conflict"))
    with pytest.raises(ConfigError, match="another program uses its token"):
        await wait_for_the_first(server, 30)
    server.fail("getUpdates", refusal(400, "Bad Request"))
    with pytest.raises(BotApiRefused):
        await wait_for_the_first(server, 30)


async def test_nobody_is_named_when_the_time_is_over(server: TelegramServer) -> None:
    name, _ = await wait_for_the_first(server, 0)
    assert name is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file or directory"), (b"\xff\xfe", "not a text"), (b" \n", "is empty")],
)
def test_a_token_file_that_holds_no_token_is_named(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    settings = TelegramSettings(token_file="token")
    with pytest.raises(ConfigError, match=reason) as error:
        find_token(settings, tmp_path, {})
    assert str(tmp_path / "token") in str(error.value)
    (tmp_path / "token").write_text(" 1:good\n")
    assert find_token(settings, tmp_path, {}) == "1:good"


@pytest.mark.parametrize(
    ("code", "description", "reason"),
    [
        (409, "Conflict: can't use getUpdates while webhook is active", "a webhook is set for this bot"),
        (409, "Conflict: terminated by other getUpdates request", "another process polls"),
        (400, "Bad Request", "Bad Request"),
    ],
)
def test_a_refused_poll_is_explained(code: int, description: str, reason: str) -> None:
    assert reason in _explain(BotApiRefused(code, description))


def test_a_webhook_has_a_secret() -> None:
    with pytest.raises(ValueError, match="needs a secret"):
        TelegramWebhook(None, "")  # type: ignore[arg-type]


# -- sending ------------------------------------------------------------------------------------------------


async def test_an_edit_takes_its_buttons_along(server: TelegramServer) -> None:
    async with way_back(server) as outlet:
        first = await outlet.deliver(OutgoingMessage("7::", "text", "n", buttons=(Button("Yes", "/yes"),)))
        buttons = (Button("No", "/no"), Button("Later", "/later"))
        await outlet.deliver(OutgoingMessage("7::", "other", "n", edits=first, buttons=buttons))
        (shown,) = server.platform.chats[7].messages.values()
        assert shown.buttons == (("No", "/no"), ("Later", "/later"))


@pytest.mark.parametrize(
    ("name", "method", "description", "arrives"),
    [
        ("a.png", "sendPhoto", "Bad Request: PHOTO_INVALID_DIMENSIONS", True),
        ("a.png", "sendPhoto", "Bad Request: IMAGE_PROCESS_FAILED", True),
        ("a.ogg", "sendVoice", "Bad Request: VOICE_MESSAGES_FORBIDDEN", True),
        ("a.png", "sendPhoto", "Bad Request: chat not found", False),
        ("a.txt", "sendDocument", "Bad Request: PHOTO_INVALID_DIMENSIONS", False),
    ],
)
async def test_a_picture_that_telegram_does_not_take_goes_as_a_document(
    server: TelegramServer, name: str, method: str, description: str, arrives: bool
) -> None:
    server.fail(method, refusal(400, description))
    async with way_back(server) as outlet:
        post = OutgoingMessage("7::", "caption", "n", file=OutgoingFile(name, b"data"))
        if not arrives:
            with pytest.raises(DeliveryRefused):
                await outlet.deliver(post)
            return
        sent = await outlet.deliver(post)
        ((number, shown),) = server.platform.chats[7].messages.items()
        assert sent == str(number)
        assert (shown.file, shown.file_name, shown.text) == (b"data", name, "caption")
        assert "document" in shown.raw


# -- the live message ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "calls"), [(403, 1), (429, 3)])
async def test_typing_ends_when_it_is_refused_and_waits_when_it_is_too_much(
    server: TelegramServer, code: int, calls: int
) -> None:
    server.fail("sendChatAction", refusal(code, retry_after=20))
    async with stage(server, "off", View()) as on:
        await on.pass_time(lambda: server.count("sendChatAction") == 1)
        for _ in range(40):
            await on.clock.play(1)
            if server.count("sendChatAction") >= calls > 1:
                break
        assert server.count("sendChatAction") == calls
        if code == 429:
            assert on.clock.elapsed() >= 20
        await on.end()


async def test_a_live_message_that_is_refused_is_not_tried_again(server: TelegramServer) -> None:
    server.fail("sendMessage", refusal(403, "Forbidden: bot was blocked"))
    async with stage(server) as on:
        on.hear(Delta("text"))
        await on.pass_time(lambda: server.count("sendMessage") == 1)
        on.hear(Delta("more"))
        await on.clock.play(30)
        await on.end()
        assert server.count("sendMessage") == 1
        assert on.shown == []


def loading(stage: str = "fetching") -> ModelLoading:
    return ModelLoading("tiny", stage, 30.0)


def test_the_live_text_tells_that_the_model_is_loaded_until_it_speaks() -> None:
    text = LiveText("brief")
    event = loading()
    assert event.is_on_its_way
    assert text.take(event)
    assert text.body() == event.sentence() + CURSOR
    assert not text.take(loading()), "the sentence stays as it is"
    assert not text.take(Delta(" \n")), "blanks are nothing to show"
    assert text.take(Delta("Hello"))
    assert text.body() == " \nHello".strip("\n") + CURSOR
    assert text.take(Delta("")), "the text so far is there to show"


@pytest.mark.parametrize("event", [Reset(), ToolStarted("1", "now", "{}")], ids=["reset", "tool"])
def test_a_new_start_clears_the_live_text(event: Any) -> None:
    text = LiveText("brief")
    for each in (loading(), ToolStarted("0", "terminal", "{}"), ToolOutput("0", "output"), Delta("words")):
        text.take(each)
    text.take(loading())
    text.take(event)
    shown = text.body()
    assert "output" not in shown
    assert "words" not in shown
    assert "Saved" not in shown
    assert not text.take(Delta("\n")), "it is blank again"


def test_a_finished_tool_takes_its_output_along() -> None:
    text = LiveText("full")
    text.take(ToolStarted("1", "terminal", '{"command": "make"}'))
    text.take(ToolOutput("1", "half way"))
    assert not text.take(ToolFinished("1", "terminal", ToolOutcome.OK, "")), "nothing new to show"
    assert text.body() == "`⚙ terminal make`" + CURSOR
    text.take(ToolOutput("1", "half way"))
    assert text.take(ToolFinished("1", "terminal", ToolOutcome.ERROR, ""))
    assert text.body() == "`⚙ terminal make`\n`⚠ terminal: error`" + CURSOR


def test_only_the_end_of_a_long_live_text_is_shown_and_its_cut_is_marked() -> None:
    text = LiveText("brief")
    for n in range(3000):
        assert text.take(Delta(f"{n:05} "))
    shown = text.body()
    assert "02998 02999" in shown[-20:]
    assert shown.startswith("…")
    assert 1000 < len(shown) <= 4096


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "…\nefg"),
        ("ab\ncdefgh\nij", 8, "…\nij"),
        ("abcdefgh\n", 4, "…\nh\n"),
        ("😀😀😀", 6, "😀😀😀"),
    ],
)
def test_the_tail_of_a_text_begins_at_a_line(text: str, limit: int, shown: str) -> None:
    assert tail(text, limit) == shown


@pytest.mark.parametrize(
    ("markdown", "inside"),
    [
        ("```\na\n``` b\n~~~\nc\n```\nd", "a\n``` b\n~~~\nc"),
        ("````\na\n```\nb\n````\nd", "a\n```\nb"),
        ("~~~\na\n```\n~~~~\nd", "a\n```"),
    ],
)
def test_a_code_block_ends_at_its_own_fence(markdown: str, inside: str) -> None:
    assert to_html(markdown) == f"<pre>{inside}</pre>\nd"


# -- files and groups ---------------------------------------------------------------------------------------


async def test_a_download_has_a_limit_and_a_status(server: TelegramServer) -> None:
    path = server.platform.keep(b"12345", "a.bin")
    async with BotApi(server.url, server.token) as api:
        assert await api.download(path, 5) == b"12345"
        with pytest.raises(PlatformTooLarge):
            await api.download(path, 4)
        with pytest.raises(PlatformUnanswered, match="404"):
            await api.download("none", 5)


async def test_a_group_that_moves_takes_its_files_along(tmp_path: Path, server: TelegramServer) -> None:
    group = server.platform.group(-5, kind="group")
    async with telegram(tmp_path, server, progress="off") as line:
        line.ada.says("@talaria_bot hello", group)
        await line.answers(1, group)
        before = chat_folder(tmp_path, line.inbounds[0].chat_key)
        before.mkdir(parents=True, exist_ok=True)
        (before / "notes.txt").write_bytes(b"content")
        new = server.platform.migrate(group, -1005)
        await line.confirmed()
        line.ada.says("@talaria_bot again", new)
        await line.answers(1, new)
        after = chat_folder(tmp_path, line.inbounds[1].chat_key)
        assert (after / "notes.txt").read_bytes() == b"content"
        assert not before.exists()


class BrokenTurns:
    """Turns that fail for one text with an error that nothing expects."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    async def submit(self, inbound: Inbound) -> None:
        if inbound.text == "break":
            raise LookupError
        self.taken.append(inbound.text)


async def test_a_message_that_breaks_the_handler_is_left_out(tmp_path: Path, server: TelegramServer) -> None:
    turns = BrokenTurns()
    for text in ("break", "hello"):
        server.person(ADA).says(text)
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path) as rig, BotApi(server.url, server.token) as api:
        authorizer = Authorizer(store.pairings, {CHANNEL: (ADA,)}, SystemClock())
        handler = UpdateHandler(api, authorizer, rig.gateway(tmp_path, turns=turns), "mention")
        bot = await api.call("getMe", User)
        updates = [decode(each) for each in await api.call("getUpdates", list[msgspec.Raw])]
        await handler.handle([each for each in updates if each is not None], bot)
    assert turns.taken == ["hello"]


# -- the connection -----------------------------------------------------------------------------------------


async def test_a_redirect_is_not_followed_since_the_address_holds_the_token() -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 307 Elsewhere\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with BotApi(f"http://127.0.0.1:{port}", "1:secret") as api:
            with pytest.raises(PlatformUnanswered, match="is not one of the Bot API"):
                await api.call("getMe", User)
    assert [line.split()[1] for line in asked] == [b"/bot1:secret/getMe"]
