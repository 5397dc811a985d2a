"""Telegram inside a whole gateway: its place in the status, and what its failures do not touch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from support.gateway import without_http
from talaria.channels.http.http_channel import HttpChannel
from talaria.channels.http.server import HttpServer
from talaria.config.load import load
from talaria.gateway import Gateway
from talaria.parts import PARTS
from talaria.testing.model_server import ModelServer
from talaria.testing.telegram_server import TelegramServer

TOKEN = "a-token-for-tests"


@asynccontextmanager
async def gateway(
    home: Path, model: ModelServer, telegram: str, environ: dict[str, str]
) -> AsyncIterator[tuple[Gateway, HttpServer]]:
    environ = {"TALARIA_HTTP_TOKEN": TOKEN, **environ}
    (home / "config.toml").write_text(
        f'[model]\nprovider = "scripted"\n[providers.scripted]\nbase_url = "{model.base_url}"\n'
        f'[http]\nport = 0\n[shutdown]\ndeadline = "1s"\n[channels.telegram]\n{telegram}\n'
    )
    async with without_http(home, environ=environ, channels=PARTS) as opened:
        http = opened.channels["http"]
        assert isinstance(http, HttpChannel)
        yield opened, http.server


async def call(server: HttpServer, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, server.address + path, json=body, headers=headers) as answer,
    ):
        return answer.status, msgspec.json.decode(await answer.read())


async def test_a_channel_without_its_token_says_so_and_the_rest_runs(tmp_path: Path) -> None:
    async with ModelServer() as model, gateway(tmp_path, model, 'token_env = "NOT_SET"', {}) as (_, server):
        status, body = await call(server, "GET", "/api/status")
        assert status == 200
        stopped = "stopped: The variable NOT_SET for Telegram's token is not set."
        assert body["channels"] == {"http": "ready", "telegram": stopped}
        status, turn = await call(server, "POST", "/api/sessions/x/messages?wait=30", {"text": "hello"})
        assert (status, turn["reply"]) == (200, "You said: hello")


async def test_updates_come_to_the_gateways_own_address(tmp_path: Path, server: TelegramServer) -> None:
    """The webhook is set to an address that is known only once the gateway listens."""
    telegram = (
        f'token_env = "BOT"\nallowed = [7]\napi_url = "{server.url}"\n'
        'mode = "webhook"\nwebhook_url = "http://127.0.0.1:1/hooks/telegram"'
    )
    async with ModelServer() as model, gateway(tmp_path, model, telegram, {"BOT": server.token}) as (_, http):
        await server.until(lambda: bool(server.webhook.url))
        server.webhook.url = f"{http.address}/hooks/telegram"
        ada = server.person(7)
        ada.says("hello")
        chat = server.platform.private(ada)
        await server.until(lambda: chat.replies == ["You said: hello"])
        assert (await call(http, "GET", "/api/status"))[1]["channels"]["telegram"] == "ready"
        status, _ = await call(http, "POST", "/hooks/telegram", {"update_id": 1})
        assert status == 403


async def test_a_deleted_session_answers_no_message_that_comes_again(
    tmp_path: Path, server: TelegramServer
) -> None:
    """Telegram sends an update again if the answer to it was lost. A file that was sent stays as it was."""
    telegram = (
        f'token_env = "BOT"\nallowed = [7]\napi_url = "{server.url}"\n'
        'mode = "webhook"\nwebhook_url = "http://127.0.0.1:1/hooks/telegram"'
    )
    write = '[[call write_file {"path": "plan.txt", "content": "%s"}]]'
    send = '[[call send_file {"path": "plan.txt"}]]'
    async with ModelServer() as model, gateway(tmp_path, model, telegram, {"BOT": server.token}) as (_, http):
        await server.until(lambda: bool(server.webhook.url))
        server.webhook.url = f"{http.address}/hooks/telegram"
        ada = server.person(7)
        chat = server.platform.private(ada)
        message = ada.says(f"{write % 'one'}{send}{write % 'two'}[[reply here]]")
        await server.until(lambda: any(shown.file for shown in chat.messages.values()))
        (found,) = [shown for shown in chat.messages.values() if shown.file]
        assert (found.file_name, found.file) == ("plan.txt", b"one")
        (session,) = (await call(http, "GET", "/api/sessions"))[1]["items"]
        while (await call(http, "DELETE", f"/api/sessions/{session['id']}"))[0] == 409:
            pass  # the last reply is being marked as sent
        calls = len(model.bodies)
        server.platform.push("message", message)
        ada.says("hello")
        await server.until(lambda: chat.replies[-1] == "You said: hello")
        assert len(model.bodies) == calls + 1
        (fresh,) = (await call(http, "GET", "/api/sessions"))[1]["items"]
        assert fresh["id"] != session["id"]


async def test_a_channel_is_opened_and_closed_with_its_table_while_the_gateway_runs(
    tmp_path: Path, server: TelegramServer
) -> None:
    ada = server.person(7)
    chat = server.platform.private(ada)
    async with ModelServer() as model, gateway(tmp_path, model, "", {}) as (opened, http):
        file = tmp_path / "config.toml"
        before = file.read_text()

        def reload(telegram: str) -> None:
            file.write_text(before + telegram)
            opened.reloader.reload()
            assert opened.reloader.status() == {"pending": [], "trouble": ""}

        async def state() -> str | None:
            status: str | None = (await call(http, "GET", "/api/status"))[1]["channels"].get("telegram")
            return status

        table = f'token_file = "telegram.token"\nallowed = [7]\napi_url = "{server.url}"\n'
        assert await state() is None
        reload(table)
        while "cannot be read from" not in (await state() or ""):
            pass
        (tmp_path / "telegram.token").write_text(server.token)
        reload(table)
        ada.says("hello")
        await server.until(lambda: chat.replies == ["You said: hello"])
        assert await state() == "ready"
        same = opened.channels["telegram"]
        reload(table.replace("[7]", "[7, 8]"))
        assert opened.channels["telegram"] is same  # `allowed` is told to the open channel
        reload(table + 'progress = "off"\n')
        while opened.channels.get("telegram") in (None, same):
            await call(http, "GET", "/api/status")
        ada.says("again")
        await server.until(lambda: chat.replies[1:] == ["You said: again"])
        reload("")
        while await state() is not None:
            pass


async def test_the_token_is_among_the_secrets_that_logs_blot_out(tmp_path: Path) -> None:
    (tmp_path / "telegram.token").write_text("123456:file-token\n")
    (tmp_path / "config.toml").write_text('[channels.telegram]\ntoken_file = "telegram.token"\n')
    assert ("channels.telegram.token_file", "123456:file-token") in load(tmp_path, {}, PARTS).secrets
    (tmp_path / "config.toml").write_text('[channels.telegram]\ntoken = "123456:plain-token"\n')
    loaded = load(tmp_path, {}, PARTS)
    assert ("channels.telegram.token", "123456:plain-token") in loaded.secrets
    assert "holds a secret and is open to other users" in loaded.warnings[0]
    assert "plain-token" not in repr(loaded)
