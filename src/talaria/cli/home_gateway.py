"""Access to the gateway of a home: a running one, or one inside this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from talaria.channels.http.part import HTTP, HttpSettings
from talaria.channels.http.token import ensure_http_token, find_http_token
from talaria.cli.gateway_parts import parts_with_plugins
from talaria.config.home import Home
from talaria.config.load import load
from talaria.console.gateway_client import GatewayAddress, GatewayClient
from talaria.core.errors import ConfigError
from talaria.core.ids import ChatAddress
from talaria.parts import PARTS

if TYPE_CHECKING:
    from talaria.core.turns import Turn

START_SECONDS = 5.0
_POLL_SECONDS = 0.1


def find_running(home: Home, environ: Mapping[str, str]) -> GatewayAddress | None:
    """Return the address of the home's running gateway, or None.

    The file of a dead gateway does not count. If nothing holds the lock, another program may have its port by
    now, and would get the token.
    """
    info = home.read_gateway()
    if info is None or not home.is_locked():
        return None
    return GatewayAddress(info.url, find_http_token(home, environ, _token_env(home, environ)).value)


@asynccontextmanager
async def running_gateway(home: Home, environ: Mapping[str, str]) -> AsyncIterator[GatewayClient | None]:
    """Give a client of the running gateway, or None. Waits for a gateway that is starting."""
    address = await _wait_for_running(home, environ)
    if address is None:
        yield None
        return
    async with GatewayClient(address, lambda: find_running(home, environ)) as client:
        yield client


@asynccontextmanager
async def connect(
    home: Home, environ: Mapping[str, str], session: str | None = None
) -> AsyncIterator[GatewayClient]:
    """Give a client of the running gateway, or of one that runs inside this process and drains at the end.

    A gateway inside resumes the turns of `session` only, and runs neither jobs nor webhooks. A real gateway
    does: this shell may lack their keys, and the command ends soon.

    Raises `ConfigError` and `StoreError` if no gateway can be started.
    """
    async with running_gateway(home, environ) as client:
        if client is not None:
            yield client
            return
    async with _start_inside(home, environ, session) as inner:
        yield inner


@asynccontextmanager
async def _start_inside(
    home: Home, environ: Mapping[str, str], session: str | None
) -> AsyncIterator[GatewayClient]:
    from talaria.app import open_gateway
    from talaria.channels.http.http_channel import open_http
    from talaria.cli.logs import follow_settings, open_audit_log, open_log
    from talaria.core.redaction import Secret, SecretRegistry
    from talaria.observe.logs import configure

    # Any free port of this machine: the configured one is for `serve`.
    environ = {**environ, "TALARIA_HTTP__HOST": "127.0.0.1", "TALARIA_HTTP__PORT": "0"}
    loaded = load(home.path, environ, PARTS)
    home.prepare()
    token = ensure_http_token(home, environ, loaded.settings.of(HTTP).token_env).value
    secrets = SecretRegistry([*loaded.secrets, Secret("http.token", token)])
    with (
        open_log(home) as stream,
        open_audit_log(home) as audit,
        configure(loaded.settings.log, secrets, stream, audit=audit) as log,
    ):
        parts = await asyncio.to_thread(parts_with_plugins, home, loaded, environ, secrets)
        async with (
            open_gateway(
                home,
                loaded,
                environ,
                takes_up=partial(_belongs_to, session),
                parts=parts,
                serves=False,
                secrets=secrets,
            ) as gateway,
            open_http(gateway, gateway.settings.of(HTTP)) as http,
            GatewayClient(GatewayAddress(http.server.address, token)) as client,
        ):
            follow_settings(gateway, log)
            yield client


def _belongs_to(session: str | None, turn: Turn) -> bool:
    chat = ChatAddress.parse(turn.chat_key)
    return session is not None and (
        turn.session_id == session or (chat.channel, chat.kind, chat.chat) == ("http", "api", session)
    )


async def _wait_for_running(home: Home, environ: Mapping[str, str]) -> GatewayAddress | None:
    """Wait while a gateway starts or stops: the home is locked then, but has no address."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS
    while True:
        address = find_running(home, environ)
        if address is not None or not home.is_locked() or loop.time() >= deadline:
            return address
        await asyncio.sleep(_POLL_SECONDS)


def _token_env(home: Home, environ: Mapping[str, str]) -> str:
    """Return the name of the token variable. A config file that is broken by now gives the default."""
    try:
        return load(home.path, environ, PARTS).settings.of(HTTP).token_env
    except ConfigError:
        return HttpSettings().token_env
