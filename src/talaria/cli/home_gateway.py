"""Access to the gateway of a home: a running one, one inside this process, or its store alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from talaria.channels.console.gateway_client import GatewayAddress, GatewayClient
from talaria.channels.http.part import HTTP
from talaria.channels.http.settings import HttpSettings
from talaria.channels.http.token import ensure_http_token, find_http_token
from talaria.cli.gateway_parts import parts_with_plugins
from talaria.cli.options import Invocation, run_loop
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.errors import ConfigError
from talaria.core.ids import ChatAddress
from talaria.parts import PARTS
from talaria.store.part import StoreScope, find_engine

if TYPE_CHECKING:
    from talaria.core.turns import Turn
    from talaria.store.store import Store

T = TypeVar("T")
GatewayOrStore: TypeAlias = "GatewayClient | Store | Path"  # the path of a database that does not exist
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


def ask_home(
    invocation: Invocation, use: Callable[[GatewayOrStore], Awaitable[T]], *, make: bool = False
) -> T:
    """Call `use` with the running gateway or the store of the home, and return its result."""

    async def run() -> T:
        home = invocation.home() if make else invocation.read_home()
        async with gateway_or_store(home, make=make) as found:
            return await use(found)

    return run_loop(run())


@asynccontextmanager
async def gateway_or_store(home: Home, *, make: bool = False) -> AsyncIterator[GatewayOrStore]:
    """Give a client of the running gateway, or else the store, under the lock of the home.

    With the store alone no turn is resumed and no model is called. For a home without a database, gives its
    path, or creates it with `make`. Raises `StoreError` if the database cannot be opened.
    """
    async with running_gateway(home, os.environ) as client:
        if client is not None:
            yield client
            return
    from talaria.core.clock import SystemClock
    from talaria.store.home_lock import HomeLock
    from talaria.store.settings import is_file

    settings = load(home.path, os.environ, PARTS).settings
    engine, database = find_engine(PARTS, settings.store.url), home.find_database(settings.store.url)
    if (loss := home.find_loss(settings.store.url)) is not None:
        raise loss
    if make:
        home.prepare()
    elif is_file(settings.store.url) and not database.exists():
        yield database
        return
    with HomeLock(home.path):
        async with engine.open(StoreScope(home.database, SystemClock()), settings.of(engine)) as store:
            yield store


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
