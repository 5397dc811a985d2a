"""The channel's own troubles: refused tokens, other pollers, a platform that fails, and the webhook."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path

import aiohttp
import msgspec
import pytest

from channels.telegram.line import ADA, Line, telegram
from support.faulty_store import FaultyStore
from support.waiting import until
from talaria.access.callers import AuditLog
from talaria.access.credentials import Logins, TokenChecker
from talaria.channels.channel_loop import ChannelPhase
from talaria.channels.http.guard import Guard
from talaria.channels.http.part import HttpSettings
from talaria.channels.http.routing import HttpApp
from talaria.channels.http.server import HttpServer, bind
from talaria.channels.telegram.bot_api import BotApi
from talaria.channels.telegram.channel import WEBHOOK_PATH, TelegramWebhook
from talaria.channels.telegram.parse import CHANNEL
from talaria.channels.telegram.part import webhook_secret
from talaria.core.clock import SystemClock
from talaria.core.ledger import Accept
from talaria.core.limits import Limits, LimitSettings
from talaria.observe.loop_watch import Load
from talaria.observe.metrics import Metrics
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.telegram_server import FaultKind, TelegramFault, TelegramServer, WebhookState


async def test_a_refused_token_stops_the_channel_and_says_so(
    tmp_path: Path, server: TelegramServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with telegram(tmp_path, server, clock=FakeClock(), token="123:wrong") as line:
        await line.pass_time(lambda: line.channel.phase is ChannelPhase.STOPPED)
        assert line.channel.status == "stopped: Telegram does not accept the token"
    assert "123:wrong" not in caplog.text


async def test_another_poller_is_named_and_waited_for(tmp_path: Path, server: TelegramServer) -> None:
    body = {"ok": False, "error_code": 409, "description": "Conflict: terminated by other getUpdates request"}
    server.fail("getUpdates", TelegramFault(FaultKind.STATUS, times=3, status=409, body=body))
    clock = FakeClock()
    async with telegram(tmp_path, server, clock=clock) as line:
        await server.until(lambda: server.count("getUpdates") == 1)
        await line.pass_time(lambda: line.channel.phase is ChannelPhase.WAITING)
        assert "another process polls with this bot's token" in line.channel.status
        line.ada.says("hello")
        await line.pass_time(lambda: bool(line.chat.replies))
        clock.advance(90)
        line.ada.says("once more")
        await line.pass_time(lambda: line.channel.status == "ready")


class ChannelClock(FakeClock):
    """Notes the pauses of the channel."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if (task := asyncio.current_task()) and task.get_name() == CHANNEL:
            self.pauses.append(seconds)
        await super().sleep(seconds)


async def long_poll(server: TelegramServer, count: int) -> None:
    """Wait until the poll with this number is held."""
    await server.until(lambda: server.polls == 1 and server.count("getUpdates") == count)


async def test_two_pollers_try_ever_more_slowly_and_say_so_once(
    tmp_path: Path, server: TelegramServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "talaria.channels")
    clock, expected = ChannelClock(), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    async with telegram(tmp_path, server, clock=clock) as line, BotApi(server.url, server.token) as other:
        for n, _ in enumerate(expected):
            await long_poll(server, 2 + 3 * n)
            await other.call("getUpdates", list[msgspec.Raw])  # ends the channel's
            while len(clock.pauses) == n:
                await clock.settle()
            clock.advance(clock.pauses[-1])
        assert clock.pauses == expected
        assert line.channel.phase is ChannelPhase.WAITING
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert told == ["Telegram is ready", "Telegram waits"]


async def test_a_webhook_that_is_left_over_is_taken_away(tmp_path: Path, server: TelegramServer) -> None:
    server.webhook = WebhookState("http://127.0.0.1:1/elsewhere")
    async with telegram(tmp_path, server) as line:
        line.ada.says("hello")
        await line.answers()
        assert server.webhook.url == ""


@pytest.mark.parametrize(
    "kind", [FaultKind.STATUS, FaultKind.HTML, FaultKind.CUT_BEFORE, FaultKind.CUT_AFTER]
)
async def test_a_platform_that_fails_is_asked_again_ever_more_slowly(
    tmp_path: Path, server: TelegramServer, kind: FaultKind
) -> None:
    clock = FakeClock()
    server.fail("getUpdates", TelegramFault(kind, times=6))
    async with telegram(tmp_path, server, clock=clock) as line:
        line.ada.says("hello")
        await line.pass_time(lambda: bool(line.chat.replies))
        assert clock.elapsed() >= 1 + 2 + 4 + 8 + 16 + 32
        assert await line.answers() == ["You said: hello"]


async def test_a_platform_that_cannot_be_reached_stops_nothing(
    tmp_path: Path, server: TelegramServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with telegram(tmp_path, server, clock=FakeClock(), api_url="http://127.0.0.1:1") as line:
        await line.pass_time(lambda: line.channel.phase is ChannelPhase.WAITING)
        assert "http://127.0.0.1:1 cannot be reached" in line.channel.status
    assert server.token not in caplog.text


async def test_a_draining_gateway_confirms_nothing(tmp_path: Path, server: TelegramServer) -> None:
    store = MemoryStore(SystemClock())
    async with telegram(tmp_path, server, store=store) as line:
        await server.until(lambda: server.polls == 1)
        await line.rig.turns.drain(0)
        line.ada.says("too late")
        await until(lambda: line.channel.phase is ChannelPhase.STOPPED, pause=0)
    assert len(server.platform.queue) == 1
    async with telegram(tmp_path, server, store=store) as line:
        assert await line.answers() == ["You said: too late"]


async def test_what_the_store_did_not_take_comes_again(tmp_path: Path, server: TelegramServer) -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    store.fails = lambda order: isinstance(order, Accept)
    async with telegram(tmp_path, server, store=store, clock=clock) as line:
        line.ada.says("hold on to this")
        await until(lambda: line.channel.phase is ChannelPhase.WAITING, pause=0)
        assert len(server.platform.queue) == 1
        store.fails = lambda order: False
        await line.pass_time(lambda: bool(line.chat.replies))
        assert line.chat.replies == ["You said: hold on to this"]


async def test_an_overloaded_gateway_takes_the_message_when_telegram_gives_it_again(
    tmp_path: Path, server: TelegramServer
) -> None:
    clock = FakeClock()
    load = Load(elapsed=clock.elapsed)
    load.note(60)
    async with telegram(tmp_path, server, clock=clock, load=load) as line:
        line.ada.says("hold on to this")
        await until(lambda: line.channel.phase is ChannelPhase.WAITING, pause=0)
        assert "was held up" in line.channel.status
        assert len(server.platform.queue) == 1, "the update was confirmed"
        await line.pass_time(lambda: bool(line.chat.replies))
        assert line.chat.replies == ["You said: hold on to this"]


async def test_a_chat_whose_queue_is_full_is_told_once(tmp_path: Path, server: TelegramServer) -> None:
    load = Load(Limits(LimitSettings(chat_queue=2)))
    async with telegram(tmp_path, server, load=load) as line:
        line.ada.says("[[hang]]")
        await server.until(lambda: line.rig.model.busy == 1)
        for number in range(5):
            line.ada.says(f"number {number}")
        await line.answers()
        await line.confirmed()
        [told] = line.chat.replies
        assert told.startswith("2 messages of this chat wait already, so this one was not taken.")
        assert "limits.chat_queue = 2" in told
        line.ada.says("/stop")
        replies = await line.answers(4)
        assert [text for text in replies if text.startswith("You said")] == [
            "You said: number 0",
            "You said: number 1",
        ]
        line.ada.says("again")
        assert "You said: again" in await line.answers(5)


# -- webhook ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def hooked(folder: Path, server: TelegramServer, **more: object) -> AsyncIterator[tuple[Line, str]]:
    """The channel with its webhook on a socket of its own, set at the fake Bot API."""
    bound = bind(HttpSettings(port=0))
    url = f"{bound.address}{WEBHOOK_PATH}"
    async with telegram(folder, server, mode="webhook", webhook_url=url, **more) as line:  # type: ignore[arg-type]
        webhook = TelegramWebhook(line.channel, webhook_secret(server.token))
        clock = SystemClock()
        guard = Guard([], [], Logins("a token", clock), TokenChecker(MemoryStore(clock).tokens, clock))
        metrics = Metrics()
        http = HttpServer(HttpApp({}, guard, AuditLog(clock), metrics, {WEBHOOK_PATH: webhook}), bound)
        await http.start()
        try:
            yield line, url
        finally:
            await http.stop(0)
        assert f'route="{WEBHOOK_PATH}"' in metrics.render().decode()


async def test_updates_come_by_webhook_and_are_taken_once_they_are_durable(
    tmp_path: Path, server: TelegramServer
) -> None:
    store, failures = FaultyStore(), iter([True, True])
    store.fails = lambda order: isinstance(order, Accept) and next(failures, False)
    async with hooked(tmp_path, server, store=store) as (line, url):
        await server.until(lambda: server.webhook.url == url)
        line.ada.says("hello")
        assert await line.answers() == ["You said: hello"]
        await line.confirmed()
        refused = [status for status in server.pushed if status != 200]
        assert set(refused) == {503}
        assert len(refused) >= 2
        assert server.count("getUpdates") == 0


@pytest.mark.parametrize(
    "headers", [{}, {"X-Telegram-Bot-Api-Secret-Token": "wrong"}, {"Authorization": "Bearer a token"}]
)
async def test_a_forged_call_is_refused_before_its_body_is_read(
    tmp_path: Path, server: TelegramServer, headers: dict[str, str]
) -> None:
    async with hooked(tmp_path, server) as (line, url), aiohttp.ClientSession() as client:
        await server.until(lambda: server.webhook.url == url)
        update = {"update_id": 5, "message": line.ada.says("hello")}
        async with client.post(url, json=update, headers=headers) as answer:
            assert answer.status == 403
        async with client.get(url, headers=headers) as answer:
            assert answer.status == 405
        await line.confirmed()
        assert len(line.inbounds) == 1  # the real one


async def test_a_body_that_is_too_large_or_broken_is_no_turn(tmp_path: Path, server: TelegramServer) -> None:
    headers = {"X-Telegram-Bot-Api-Secret-Token": webhook_secret(server.token)}
    async with hooked(tmp_path, server) as (line, url), aiohttp.ClientSession() as client:
        await server.until(lambda: server.webhook.url == url)
        for body, status in (
            (bytes(TelegramWebhook.max_body + 1), 413),
            (b"{", 200),
            (b"", 200),
            (b"\xff", 200),
            (b"[" * 100_000, 200),
            (b'{"update_id": 1, "message": []}', 200),
        ):
            async with client.post(url, data=BytesIO(body), headers=headers) as answer:
                assert answer.status == status, body[:10]
        assert line.inbounds == []


async def test_a_webhook_of_an_overloaded_gateway_asks_for_another_try(
    tmp_path: Path, server: TelegramServer
) -> None:
    load = Load()
    headers = {"X-Telegram-Bot-Api-Secret-Token": webhook_secret(server.token)}
    async with hooked(tmp_path, server, load=load) as (line, url), aiohttp.ClientSession() as client:
        await server.until(lambda: server.webhook.url == url)
        load.note(60)
        update = {
            "update_id": 1,
            "message": {
                "message_id": 1,
                "date": 0,
                "chat": {"id": ADA, "type": "private"},
                "from": {"id": ADA, "is_bot": False, "first_name": "Ada"},
                "text": "hello",
            },
        }
        async with client.post(url, json=update, headers=headers) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        assert [inbound.text for inbound in line.inbounds] == ["hello"]


async def test_the_webhook_is_not_ready_before_the_channel_knows_its_bot(
    tmp_path: Path, server: TelegramServer
) -> None:
    headers = {"X-Telegram-Bot-Api-Secret-Token": webhook_secret(server.token)}
    server.fail("getMe", TelegramFault(FaultKind.HANG))
    async with (
        hooked(tmp_path, server) as (_, url),
        aiohttp.ClientSession() as client,
        client.post(url, data=b"{}", headers=headers) as answer,
    ):
        assert answer.status == 503
