"""The fake Bot API keeps the platform's rules, over HTTP."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from talaria.testing.telegram_server import TOKEN, FaultKind, TelegramFault, TelegramServer
from talaria.testing.telegram_text import ParseError, parse, utf16_length


class Bot:
    def __init__(self, server: TelegramServer, client: aiohttp.ClientSession) -> None:
        self.server, self.client = server, client

    async def __call__(self, method: str, **params: Any) -> Any:
        async with self.client.post(f"{self.server.url}/bot{self.server.token}/{method}", json=params) as got:
            answer = await got.json()
            assert answer["ok"] is (got.status == 200)
            return answer["result"] if answer["ok"] else answer

    async def refused(self, method: str, **params: Any) -> str:
        answer = await self(method, **params)
        assert answer["ok"] is False, answer
        return str(answer["description"])


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


@pytest.fixture
async def bot(server: TelegramServer) -> AsyncIterator[Bot]:
    async with aiohttp.ClientSession() as client:
        yield Bot(server, client)


async def test_a_wrong_token_is_unauthorized(server: TelegramServer, bot: Bot) -> None:
    server.token = "another"
    url = f"{server.url}/botwrong/getMe"
    async with bot.client.get(url) as answer:
        assert answer.status == 401
        assert (await answer.json())["description"] == "Unauthorized"
    assert (await bot("getMe"))["username"] == "talaria_bot"
    assert await bot.refused("getNothing") == "Not Found: method not found"


async def test_updates_stay_until_an_offset_confirms_them(server: TelegramServer, bot: Bot) -> None:
    ada = server.person(7)
    ada.says("one")
    ada.says("two")
    first = await bot("getUpdates")
    assert [update["message"]["text"] for update in first] == ["one", "two"]
    assert await bot("getUpdates") == first
    rest = await bot("getUpdates", offset=first[0]["update_id"] + 1)
    assert rest == first[1:]
    assert await bot("getUpdates", offset=first[1]["update_id"] + 1) == []


async def test_a_long_poll_ends_with_the_next_update(server: TelegramServer, bot: Bot) -> None:
    polling = asyncio.create_task(bot("getUpdates", timeout=50))
    await server.until(lambda: server.polls == 1)
    server.person(7).says("hello /start @talaria_bot")
    (update,) = await polling
    kinds = [entity["type"] for entity in update["message"]["entities"]]
    assert kinds == ["bot_command", "mention"]


async def test_the_second_poller_sends_the_first_away(server: TelegramServer, bot: Bot) -> None:
    first = asyncio.create_task(bot("getUpdates", timeout=50))
    await server.until(lambda: server.polls == 1)
    assert await bot("getUpdates") == []
    assert "terminated by other getUpdates" in (await first)["description"]


async def test_allowed_updates_filter_what_comes_later(server: TelegramServer, bot: Bot) -> None:
    await bot("getUpdates", allowed_updates=["edited_message"])
    ada = server.person(7)
    ada.edits(ada.says("one"), "two")
    assert [list(update)[1] for update in await bot("getUpdates")] == ["edited_message"]


async def test_a_webhook_gets_each_update_until_it_says_200_and_polling_is_refused(
    server: TelegramServer, bot: Bot
) -> None:
    got: list[tuple[str, str]] = []

    async def receive(request: web.Request) -> web.Response:
        body = await request.json()
        got.append((request.headers["X-Telegram-Bot-Api-Secret-Token"], body["message"]["text"]))
        return web.Response(status=500 if len(got) == 1 else 200)

    app = web.Application()
    app.router.add_post("/hook", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    await bot("setWebhook", url=f"http://127.0.0.1:{port}/hook", secret_token="s3cret")
    assert "while webhook is active" in await bot.refused("getUpdates")
    server.person(7).says("one")
    await server.until(lambda: not server.platform.queue)
    assert got == [("s3cret", "one"), ("s3cret", "one")]
    assert await bot("deleteWebhook") is True
    assert await bot("getWebhookInfo") == {"url": "", "pending_update_count": 0}
    await runner.cleanup()


async def test_messages_have_ids_per_chat_and_lengths_in_utf16_units(
    server: TelegramServer, bot: Bot
) -> None:
    chat = server.platform.private(server.person(7))
    assert (await bot("sendMessage", chat_id=7, text=" 😀 " * 1024))["message_id"] == 1
    assert await bot.refused("sendMessage", chat_id=7, text="😀" * 2049) == "Bad Request: message is too long"
    assert await bot.refused("sendMessage", chat_id=7, text=" \n") == "Bad Request: message text is empty"
    assert await bot.refused("sendMessage", chat_id=8, text="x") == "Bad Request: chat not found"
    edit = {"chat_id": 7, "message_id": 1}
    assert (await bot.refused("editMessageText", **edit, text="a" * 4097)).endswith("MESSAGE_TOO_LONG")
    await bot("editMessageText", **edit, text="<b>new</b>", parse_mode="HTML")
    assert (chat.messages[1].text, chat.messages[1].edits) == ("new", 1)
    assert "message is not modified" in await bot.refused(
        "editMessageText", **edit, text="<b>new</b>", parse_mode="HTML"
    )
    assert (await bot.refused("editMessageText", chat_id=7, message_id=9, text="x")).endswith(
        "message to edit not found"
    )


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("<b>x", "HTML", 'Can\'t find end tag corresponding to start tag "b"'),
        ("a <foo>", "HTML", 'Unsupported start tag "foo" at byte offset 2'),
        ("<b>x</i>", "HTML", 'Unmatched end tag at byte offset 4, expected "</b>", found "</i>"'),
        ("x</i>", "HTML", "Unexpected end tag at byte offset 1"),
        ("1 < 2", "HTML", "Unclosed start tag at byte offset 2"),
        ("*a", "MarkdownV3", "unsupported parse_mode"),
    ],
)
def test_formatting_errors_have_the_platforms_words(text: str, mode: str, words: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text, mode)
    assert str(error.value) == words


def test_formatting_becomes_entities_at_utf16_offsets() -> None:
    text, (bold, link) = parse('😀<b>x&amp;</b><a href="https://e.x">y</a>', "HTML")
    assert text == "😀x&y"
    assert (bold.type, bold.offset, bold.length) == ("bold", 2, 2)
    assert (link.type, link.offset, link.url) == ("text_link", 4, "https://e.x")
    assert utf16_length("😀") == 2


async def test_a_blocked_or_moved_chat_refuses(server: TelegramServer, bot: Bot) -> None:
    chat = server.platform.private(server.person(7))
    chat.is_blocked = True
    answer = await bot("sendMessage", chat_id=7, text="x")
    assert (answer["error_code"], answer["description"]) == (403, "Forbidden: bot was blocked by the user")
    server.platform.migrate(server.platform.group(-5, kind="group"), -1005)
    answer = await bot("sendMessage", chat_id=-5, text="x")
    assert answer["parameters"] == {"migrate_to_chat_id": -1005}


async def test_files_travel_both_ways_within_the_limits(server: TelegramServer, bot: Bot) -> None:
    message = server.person(7).sends("document", b"content", name="a.txt", caption="see")
    found = await bot("getFile", file_id=message["document"]["file_id"])
    async with bot.client.get(f"{server.url}/file/bot{TOKEN}/{found['file_path']}") as got:
        assert await got.read() == b"content"
    server.platform.files["big"] = ("big", bytes((20 << 20) + 1))
    assert await bot.refused("getFile", file_id="big") == "Bad Request: file is too big"
    form = aiohttp.FormData({"chat_id": "7", "caption": "a" * 1025})
    form.add_field("document", b"data", filename="b.txt")
    async with bot.client.post(f"{server.url}/bot{TOKEN}/sendDocument", data=form) as got:
        assert (await got.json())["description"] == "Bad Request: message caption is too long"


async def test_buttons_are_pressed_and_each_press_is_answered_once(server: TelegramServer, bot: Bot) -> None:
    ada = server.person(7)
    chat = server.platform.private(ada)
    keyboard = {"inline_keyboard": [[{"text": "Stop", "callback_data": "/stop"}]]}
    await bot("sendMessage", chat_id=7, text="x", reply_markup=keyboard)
    query = ada.presses(chat.messages[1], "Stop")
    (update,) = await bot("getUpdates")
    assert update["callback_query"]["data"] == "/stop"
    assert await bot("answerCallbackQuery", callback_query_id=query) is True
    assert "query is too old" in await bot.refused("answerCallbackQuery", callback_query_id=query)
    keyboard = {"inline_keyboard": [[{"text": "Stop", "callback_data": "x" * 65}]]}
    refusal = await bot.refused("sendMessage", chat_id=7, text="x", reply_markup=keyboard)
    assert refusal == "Bad Request: BUTTON_DATA_INVALID"


async def test_it_can_be_told_to_misbehave(server: TelegramServer, bot: Bot) -> None:
    chat = server.platform.private(server.person(7))
    server.fail("sendMessage", TelegramFault(FaultKind.CUT_BEFORE))
    server.fail("sendMessage", TelegramFault(FaultKind.CUT_AFTER))
    server.fail("sendMessage", TelegramFault(FaultKind.STATUS, status=500))
    for _ in range(2):
        with pytest.raises(aiohttp.ClientError):
            await bot("sendMessage", chat_id=7, text="x")
    assert await bot.refused("sendMessage", chat_id=7, text="x") == "scripted 500"
    assert chat.replies == ["x"]
    assert server.count("sendMessage") == 3
    server.fail("*", TelegramFault(FaultKind.HTML))
    async with bot.client.get(f"{server.url}/bot{TOKEN}/getMe") as got:
        assert (got.status, got.content_type) == (502, "text/html")


async def test_updates_can_come_twice_and_out_of_order(server: TelegramServer, bot: Bot) -> None:
    server.person(7).says("one")
    (first,) = await bot("getUpdates")
    server.person(7).says("two")
    server.platform.repeated.append(first)
    server.platform.is_shuffled = True
    again = await bot("getUpdates", offset=first["update_id"] + 1)
    assert [update["message"]["text"] for update in again] == ["two", "one"]


async def test_another_process_can_drive_it() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "talaria.testing.telegram_server", "--port", "0",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().split()[4].rstrip(";")
        async with aiohttp.ClientSession() as client:
            async with client.post(f"{url}/_control/say", json={"user": 7, "text": "hi"}) as got:
                assert (await got.json())["message_id"] == 1
            async with client.get(f"{url}/_control/chats") as got:
                assert (await got.json())["7"][0]["text"] == "hi"
            async with client.get(f"{url}/_control/nothing") as got:
                assert got.status == 404
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_port_that_is_taken_is_said_in_one_line(server: TelegramServer) -> None:
    port = server.url.rpartition(":")[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "talaria.testing.telegram_server", "--port", port,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().startswith(f"telegram_server: cannot listen on 127.0.0.1:{port}: ")
    assert err.count(b"\n") == 1
