"""Finding the home's running gateway; when there is none, running one inside, or its store alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from talaria.channels.console.client import GatewayAddress, GatewayClient
from talaria.channels.http.part import HTTP
from talaria.channels.http.settings import HttpSettings
from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.errors import ConfigError
from talaria.core.ids import ChatAddress
from talaria.parts import PARTS

if TYPE_CHECKING:
    from talaria.core.ports import StoreEngine
    from talaria.core.turns import Turn

T = TypeVar("T")
Found: TypeAlias = "GatewayClient | StoreEngine | Path"  # the path is where a database would be
START_SECONDS = 5.0
_GLANCE = 0.1


def find_running(home: Home, environ: Mapping[str, str]) -> GatewayAddress | None:
    """Where the home's gateway says it is. A file left behind by a dead one is no gateway: without the lock
    held, another program might have its port by now, and would be given the token."""
    info = home.read_gateway()
    if info is None or not home.is_locked():
        return None
    return GatewayAddress(info.url, home.find_token(environ, _token_env(home, environ)).value)


@asynccontextmanager
async def running_gateway(home: Home, environ: Mapping[str, str]) -> AsyncIterator[GatewayClient | None]:
    """A client of the running gateway, or None. One that is just starting is waited for."""
    address = await _await_running(home, environ)
    if address is None:
        yield None
        return
    async with GatewayClient(address, lambda: find_running(home, environ)) as client:
        yield client


@asynccontextmanager
async def connect(
    home: Home, environ: Mapping[str, str], session: str | None = None
) -> AsyncIterator[GatewayClient]:
    """A client of the running gateway, or of one that runs inside until the end, when it drains. That one
    takes up what `session` is still owed and leaves the rest to a real one: this shell may lack a key that
    others' messages need, and would end with the command anyway.

    Raises `ConfigError` and `StoreError` when neither can be had.
    """
    async with running_gateway(home, environ) as client:
        if client is not None:
            yield client
            return
    async with _inside(home, environ, session) as inner:
        yield inner


@asynccontextmanager
async def _inside(
    home: Home, environ: Mapping[str, str], session: str | None
) -> AsyncIterator[GatewayClient]:
    from talaria.app import open_gateway
    from talaria.channels.http.channel import open_http
    from talaria.cli.log_file import follow, open_log
    from talaria.core.redaction import Redactor
    from talaria.observe.logs import configure

    # Any free port of this machine: the configured one is for `serve`.
    environ = {**environ, "TALARIA_HTTP__HOST": "127.0.0.1", "TALARIA_HTTP__PORT": "0"}
    loaded = load(home.path, environ, PARTS)
    home.prepare()
    token = home.http_token(environ, loaded.settings.of(HTTP).token_env).value
    redactor = Redactor([*loaded.secrets, token])
    with open_log(home) as stream, configure(loaded.settings.log, redactor, stream) as log:
        async with (
            open_gateway(home, loaded, environ, takes_up=partial(_is_of, session)) as gateway,
            open_http(gateway, gateway.settings.of(HTTP)) as http,
            GatewayClient(GatewayAddress(http.server.address, token)) as client,
        ):
            follow(gateway, log)
            yield client


def _is_of(session: str | None, turn: Turn) -> bool:
    chat = ChatAddress.parse(turn.chat_key)
    return session is not None and (
        turn.session_id == session or (chat.channel, chat.kind, chat.chat) == ("http", "api", session)
    )


def ask_home(invocation: Invocation, use: Callable[[Found], Awaitable[T]], *, make: bool = False) -> T:
    """What `use` answers, given the home's running gateway or its store, as `gateway_or_store` finds them."""

    async def run() -> T:
        async with gateway_or_store(invocation.home(), make=make) as found:
            return await use(found)

    return run_loop(run())


@asynccontextmanager
async def gateway_or_store(home: Home, *, make: bool = False) -> AsyncIterator[Found]:
    """A client of the running gateway; else the store, under the home's lock: nothing is resumed, no model is
    called. For a home without a database where it would be, unless it is to be made.

    Raises `StoreError` for a database that cannot be opened.
    """
    async with running_gateway(home, os.environ) as client:
        if client is not None:
            yield client
            return
    from talaria.core.clock import SystemClock
    from talaria.store.engines import open_store
    from talaria.store.home_lock import HomeLock

    database = home.find_database(load(home.path, os.environ, PARTS).settings.store.url)
    if make:
        home.prepare()
    elif not database.exists():
        yield database
        return
    with HomeLock(home.path):
        async with open_store(database, SystemClock()) as store:
            yield store


async def _await_running(home: Home, environ: Mapping[str, str]) -> GatewayAddress | None:
    """A locked home without an address is a gateway that starts or stops: wait for what it becomes."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS
    while True:
        address = find_running(home, environ)
        if address is not None or not home.is_locked() or loop.time() >= deadline:
            return address
        await asyncio.sleep(_GLANCE)


def _token_env(home: Home, environ: Mapping[str, str]) -> str:
    """A config that was broken after the gateway started does not keep anyone from talking to it."""
    try:
        return load(home.path, environ, PARTS).settings.of(HTTP).token_env
    except ConfigError:
        return HttpSettings().token_env
