"""The Events API: signed requests to /hooks/slack."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from channels.slack.line import Line, slack
from support.waiting import until
from talaria.access.approvals import NotEntitled
from talaria.channels.channel_loop import ChannelNotReady
from talaria.channels.slack.channel import WEBHOOK_PATH, SlackWebhook
from talaria.channels.slack.part import UNCONFIRMED
from talaria.core.errors import StoreError
from talaria.gateway import Unproven
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.contracts.channel_suite import FailingStore
from talaria.testing.slack_server import SIGNING_SECRET, SlackServer, encoded, signed


@asynccontextmanager
async def listening(
    folder: Path, server: SlackServer, **more: Any
) -> AsyncIterator[tuple[Line, SlackWebhook]]:
    server.is_socket_mode = False
    async with slack(folder, server, app_token="", signing_secret=SIGNING_SECRET, **more) as line:
        await until(lambda: line.channel.status == f"starting: {UNCONFIRMED}")
        yield line, line.gateway.webhooks[WEBHOOK_PATH]


async def post(hook: SlackWebhook, body: bytes, **more: Any) -> tuple[int, bytes]:
    headers = {name.lower().encode(): value.encode() for name, value in signed(body, **more).items()}
    assert not hook.admit(headers, "").is_proved
    return await hook.receive(headers, body, "")


async def take_all(hook: SlackWebhook, server: SlackServer) -> None:
    while server.queue:
        _, body = encoded(server.queue[0])
        assert await post(hook, body) == (200, b"")
        server.queue.popleft()


async def test_messages_buttons_and_commands_come_by_one_address(tmp_path: Path, server: SlackServer) -> None:
    store = MemoryStore(FakeClock())
    async with listening(tmp_path, server, store=store) as (line, hook):
        line.ada.says("hello <b> & ü")
        await take_all(hook, server)
        assert line.channel.status == "ready"
        assert await line.answers(1) == ["You said: hello <b> & ü"]
        line.ada.commands("title Lunch & more")
        await take_all(hook, server)
        await line.answers(2)
        session = await store.current_session(line.inbounds[0].chat_key)
        assert session is not None and session.title == "Lunch & more"


async def test_slack_tries_the_address_with_a_challenge(tmp_path: Path, server: SlackServer) -> None:
    async with listening(tmp_path, server) as (line, hook):
        body = msgspec.json.encode({"type": "url_verification", "challenge": "abc"})
        assert await post(hook, body) == (200, b"abc")
        assert line.channel.status == f"starting: {UNCONFIRMED}", "that is not an event"


@pytest.mark.parametrize(("secret", "age"), [("another", 0), (SIGNING_SECRET, 400), (SIGNING_SECRET, -400)])
async def test_a_request_without_slacks_signature_is_refused(
    tmp_path: Path, server: SlackServer, secret: str, age: float
) -> None:
    async with listening(tmp_path, server) as (line, hook):
        line.ada.says("hello")
        _, body = encoded(server.queue.popleft())
        with pytest.raises(Unproven):
            await post(hook, body, secret=secret, at=line.clock.now() - age)
        with pytest.raises(Unproven):
            headers = {key.lower().encode(): value.encode() for key, value in signed(body).items()}
            await hook.receive(headers, body + b" ", "")
        with pytest.raises(NotEntitled):
            hook.admit({}, "")
        assert line.inbounds == []


async def test_a_request_is_answered_only_when_its_message_is_stored(
    tmp_path: Path, server: SlackServer
) -> None:
    clock = FakeClock()
    store = FailingStore(clock)
    async with listening(tmp_path, server, store=store, clock=clock) as (line, hook):
        store.is_sick = True
        line.ada.says("hello")
        _, body = encoded(server.queue.popleft())
        with pytest.raises(StoreError):
            await post(hook, body, at=clock.now())
        store.is_sick = False
        for _ in range(2):  # Slack sends it again, and once more
            assert await post(hook, body, at=clock.now()) == (200, b"")
        await line.pass_time(lambda: bool(line.ada.dm.replies))
    assert sum((await store.stats()).turns.values()) == 1


async def test_a_channel_that_is_not_ready_lets_slack_try_again(tmp_path: Path, server: SlackServer) -> None:
    server.is_socket_mode = False
    async with slack(tmp_path, server, app_token="", bot_token="xoxb-wrong", signing_secret="s") as line:
        await until(lambda: line.channel.status.startswith("stopped"))
        line.ada.says("hello")
        _, body = encoded(server.queue.popleft())
        with pytest.raises(ChannelNotReady):
            await post(line.gateway.webhooks[WEBHOOK_PATH], body, secret="s")


async def test_the_fake_posts_until_a_request_is_accepted(tmp_path: Path, server: SlackServer) -> None:
    from aiohttp import web

    async with listening(tmp_path, server) as (line, hook):
        refusals = [503]

        async def serve(request: web.Request) -> web.Response:
            if refusals:
                return web.Response(status=refusals.pop())
            headers = {key.lower().encode(): value.encode() for key, value in request.headers.items()}
            status, body = await hook.receive(headers, await request.read(), "")
            return web.Response(status=status, body=body)

        app = web.Application()
        app.router.add_post(WEBHOOK_PATH, serve)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.request_url = f"http://127.0.0.1:{runner.addresses[0][1]}{WEBHOOK_PATH}"
        line.ada.says("hello")
        assert await line.answers(1) == ["You said: hello"]
        await line.handled()
        assert server.posted == [503, 200, 200], "the last one is the event of the agent's own message"
        server.request_url = ""
        await runner.cleanup()
