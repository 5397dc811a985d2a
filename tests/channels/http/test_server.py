"""Where the API listens, and how it stops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

import aiohttp
import pytest

from talaria.channels.http.part import DEFAULT_PORT, HttpSettings
from talaria.channels.http.request import Receive, Scope, Send
from talaria.channels.http.server import HttpServer, allowed_hosts, bind
from talaria.core.errors import ConfigError

# -- binding ----------------------------------------------------------------------------------------------


def test_a_free_port_is_picked_for_zero() -> None:
    with closing(bind(HttpSettings(port=0)).socket) as taken:
        assert taken.getsockname()[1] > 0


def test_the_two_writes_of_a_response_do_not_wait_for_each_other() -> None:
    bound = bind(HttpSettings(port=0))
    with (
        closing(bound.socket),
        closing(socket.create_connection(("127.0.0.1", bound.port))),
        closing(bound.socket.accept()[0]) as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_busy_configured_port_is_an_error_that_says_what_to_do() -> None:
    first = bind(HttpSettings(port=0))
    with closing(first.socket), pytest.raises(ConfigError) as caught:
        bind(HttpSettings(port=first.port))
    assert str(first.port) in caught.value.user_text
    assert "http.port" in caught.value.hint


def test_a_busy_default_port_moves_on_aloud_past_the_model_server() -> None:
    try:
        first = bind(HttpSettings(port=DEFAULT_PORT)).socket
    except ConfigError:
        first = socket.socket()  # somebody on this machine has it: as good
    with closing(first), closing((moved := bind(HttpSettings())).socket):
        assert moved.port not in (DEFAULT_PORT, DEFAULT_PORT + 1)
        assert str(DEFAULT_PORT) in moved.notice
        assert str(moved.port) in moved.notice


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_public_address_needs_names(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind(HttpSettings(host=host, port=0))
    assert "http.hosts" in caught.value.user_text


def test_a_public_address_with_names_answers_to_them() -> None:
    settings = HttpSettings(host="0.0.0.0", port=0, hosts=("Gate.lan:80",))
    bound = bind(settings)
    with closing(bound.socket):
        hosts = allowed_hosts(settings, bound)
    assert "gate.lan:80" in hosts
    assert f"127.0.0.1:{bound.port}" in hosts
    assert not any(host.startswith("0.0.0.0") for host in hosts)
    assert bound.address == f"http://127.0.0.1:{bound.port}"
    assert bound.address.removeprefix("http://") in hosts


@pytest.mark.parametrize("host", ["no such host", "a" * 70, "192.0.2.1"])
def test_a_host_that_is_not_ours_is_an_error(host: str) -> None:
    with pytest.raises(ConfigError):
        bind(HttpSettings(host=host, port=0, hosts=("x:1",)))


# -- serving ----------------------------------------------------------------------------------------------


@dataclass
class Slow:
    """An app that answers `/slow` when it is let, and everything else at once."""

    entered: asyncio.Event
    let: asyncio.Event
    body: bytes = b"ok"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            self.entered.set()
            await self.let.wait()
        headers = [(b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


@pytest.fixture
async def app() -> Slow:
    return Slow(asyncio.Event(), asyncio.Event())


@asynccontextmanager
async def serving(app: Slow) -> AsyncIterator[tuple[HttpServer, aiohttp.ClientSession]]:
    server = HttpServer(app, bind(HttpSettings(port=0)))
    await server.start()
    async with aiohttp.ClientSession(server.address) as client:
        yield server, client
    await server.stop(0)


async def test_answers_have_a_date_and_no_server_name(app: Slow) -> None:
    async with serving(app) as (_, client), client.get("/") as response:
        assert "Date" in response.headers
        assert "Server" not in response.headers


async def test_stopping_closes_idle_connections_at_once(app: Slow) -> None:
    async with serving(app) as (server, client):
        async with client.get("/") as response:
            await response.read()
        await asyncio.wait_for(server.stop(3600), 5)
        with pytest.raises(aiohttp.ClientError):
            await client.get("/")


async def test_stopping_lets_an_answer_end(app: Slow) -> None:
    async with serving(app) as (server, client):
        asked = asyncio.create_task(_text(client))
        await app.entered.wait()
        stopping = asyncio.create_task(server.stop(3600))
        await asyncio.sleep(0)
        app.let.set()
        assert await asked == "ok"
        await stopping


async def test_stopping_waits_until_a_slow_reader_has_it_all(app: Slow) -> None:
    app.body = bytes(8 << 20)
    async with serving(app) as (server, client):
        async with client.get("/") as response:
            stopping = asyncio.create_task(server.stop(3600))
            await asyncio.sleep(0)
            assert len(await response.read()) == len(app.body)
        await stopping


async def test_what_does_not_end_in_time_is_cut(app: Slow) -> None:
    async with serving(app) as (server, client):
        asked = asyncio.create_task(_text(client))
        await app.entered.wait()
        await server.stop(0)
        with pytest.raises(aiohttp.ClientError):
            await asked


async def test_a_server_that_never_started_gives_its_port_back(app: Slow) -> None:
    bound = bind(HttpSettings(port=0))
    await HttpServer(app, bound).stop(0)
    with closing(bind(HttpSettings(port=bound.port)).socket):
        pass


async def _text(client: aiohttp.ClientSession) -> str:
    async with client.get("/slow") as response:
        return await response.text()
