"""Finding the home's running gateway, or running one inside when there is none."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from talaria.channels.console.client import Address, GatewayClient
from talaria.channels.http.settings import HttpSettings
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.errors import ConfigError

START_SECONDS = 5.0
_GLANCE = 0.1


def is_locked(home: Home) -> bool:
    """Whether a live process owns the home. The lock is only looked at, by sharing it for an instant."""
    try:
        handle = os.open(home.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def find_running(home: Home, environ: Mapping[str, str]) -> Address | None:
    """Where the home's gateway says it is. A file left behind by a dead one is no gateway: without the lock
    held, another program might have its port by now, and would be given the token."""
    info = home.read_gateway()
    if info is None or not is_locked(home):
        return None
    return Address(info.url, home.find_token(environ, _token_env(home, environ)).value)


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
async def connect(home: Home, environ: Mapping[str, str]) -> AsyncIterator[GatewayClient]:
    """A client of the running gateway, or of one that runs inside until the end, when it drains.

    Raises `ConfigError` and `StoreError` when neither can be had.
    """
    async with running_gateway(home, environ) as client:
        if client is not None:
            yield client
            return
    async with _inside(home, environ) as inner:
        yield inner


@asynccontextmanager
async def _inside(home: Home, environ: Mapping[str, str]) -> AsyncIterator[GatewayClient]:
    from talaria.app import open_gateway, serve_http
    from talaria.cli.log_file import follow, open_log
    from talaria.core.redaction import Redactor
    from talaria.observe.logs import configure

    # Any free port of this machine: the configured one is for `serve`.
    environ = {**environ, "TALARIA_HTTP__HOST": "127.0.0.1", "TALARIA_HTTP__PORT": "0"}
    loaded = load(home.path, environ)
    home.prepare()
    token = home.http_token(environ, loaded.settings.http.token_env).value
    redactor = Redactor([*loaded.secrets, token])
    with open_log(home) as stream, configure(loaded.settings.log, redactor, stream) as log:
        async with (
            open_gateway(home, loaded, environ) as gateway,
            serve_http(gateway, token) as server,
            GatewayClient(Address(server.address, token)) as client,
        ):
            follow(gateway, log)
            yield client


async def _await_running(home: Home, environ: Mapping[str, str]) -> Address | None:
    """A locked home without an address is a gateway that starts or stops: wait for what it becomes."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS
    while True:
        address = find_running(home, environ)
        if address is not None or not is_locked(home) or loop.time() >= deadline:
            return address
        await asyncio.sleep(_GLANCE)


def _token_env(home: Home, environ: Mapping[str, str]) -> str:
    """A config that was broken after the gateway started does not keep anyone from talking to it."""
    try:
        return load(home.path, environ).settings.http.token_env
    except ConfigError:
        return HttpSettings().token_env
