"""Credentials inside addresses are used for the calls and reach nothing that people or programs read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.gateway import running_gateway
from talaria.cli.main import main
from talaria.testing.gateway_process import GatewayProcess

CANARIES = (
    "canary-user-7f3a",
    "canary-pass-9b1c",
    "canary-query-5d2e",
    "canary-part-1a9f",
    "canarybottoken_8c4d",
)


def with_credentials(url: str) -> str:
    scheme, _, rest = url.partition("://")
    user, password, query, part, _ = CANARIES
    return f"{scheme}://{user}:{password}@{rest}?api_key={query}#{part}"


@asynccontextmanager
async def listener(answer: bytes) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve `answer` to every request; gives the address and the heads that came."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(answer)
        except asyncio.IncompleteReadError:
            pass  # such as the connection by which `doctor` finds out whether the address can be reached
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


REFUSAL = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


def config(model: str, telegram: str) -> str:
    return (
        f'[model]\nprovider = "mine"\nname = "m"\n[log]\nlevel = "debug"\n'
        f'[providers.mine]\nmax_retries = 0\nbase_url = "{with_credentials(model)}"\n'
        f'[channels.telegram]\ntoken = "42:{CANARIES[4]}"\n'
        f'api_url = "{with_credentials(telegram + f"/bot42:{CANARIES[4]}")}"\n'
    )


async def sinks(gateway: GatewayProcess, turn_id: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Everything that is kept of the turn or shown of the gateway."""
    home = gateway.home
    shown = {}
    for command in ("config get", "config get providers.mine.base_url", "doctor"):
        await asyncio.to_thread(main, [*command.split(), "--home", str(home)])
        said = capsys.readouterr()
        shown[command] = said.out + said.err
    for path in ("/api/status", "/api/sessions", f"/api/turns/{turn_id}"):
        shown[path] = str(await gateway.call("GET", path))
    kept = [path for path in home.rglob("*") if path.is_file() and path.name != "config.toml"]
    for file in (*kept, Path(home.parent / "log")):
        shown[file.name] = file.read_bytes().decode("utf-8", "replace")
    return shown


@pytest.mark.parametrize("is_up", [True, False])
async def test_credentials_in_addresses_are_used_and_never_shown(
    is_up: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async with listener(REFUSAL) as (model, heads), listener(REFUSAL) as (telegram, asked):
        nowhere = "http://127.0.0.1:1"
        text = config(*((model, telegram) if is_up else (nowhere, nowhere)))
        async with running_gateway({"MODEL__PROVIDER": "mine", "LOG__LEVEL": "debug"}, text) as (gateway, _):
            body = {"text": "hello"}
            turn = await gateway.call("POST", "/api/sessions/one/messages", json=body)
            ended = await gateway.ended_turn(turn["turn_id"])
            assert ended["state"] == "failed"
            found = await sinks(gateway, turn["turn_id"], capsys)
            await gateway.kill()
            found["log"] = (gateway.home.parent / "log").read_text()
        assert [(name, word) for name, shown in found.items() for word in CANARIES if word in shown] == []
        assert "api_key=…" in found["config get"]
        if is_up:
            assert "api_key=canary-query-5d2e" in heads[0].splitlines()[0]
            assert "Authorization: Basic" in heads[0]
            assert f"/bot42:{CANARIES[4]}/getMe?api_key=" in asked[0].splitlines()[0]
            assert asked[0].count("/bot42:") == 1
