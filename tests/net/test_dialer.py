"""The dialer connects to checked addresses and to no other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Hashable, Sequence

import aiohttp
import pytest
from aiohttp import web

from talaria.net.addresses import Address, AddressRefused
from talaria.net.checked_connector import checked_connector
from talaria.net.dialer import Dialer, HostUnreachable


class Names:
    """A resolver whose answers for a name change with each question; the last one stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): [*each] for name, each in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, owner: Hashable, name: str) -> Sequence[str]:
        self.asked.append(name)
        left = self._answers.get(name, [()])
        return left.pop(0) if len(left) > 1 else left[0]


class Wire:
    """Connects nowhere, and keeps what it was asked to connect to."""

    def __init__(self) -> None:
        self.tried: list[tuple[str, int]] = []
        self.failing: set[str] = set()

    async def __call__(self, address: Address, port: int) -> socket.socket:
        self.tried.append((str(address), port))
        if str(address) in self.failing:
            raise ConnectionRefusedError(111, "Connection refused")
        return socket.socket()


async def test_connection_goes_to_the_checked_address_and_names_are_resolved_once() -> None:
    names, wire = Names(a_example=[["8.8.8.8"], ["127.0.0.1"]]), Wire()
    (await Dialer(resolve=names, connect=wire).open("A.example.", 443)).close()
    assert wire.tried == [("8.8.8.8", 443)]
    assert names.asked == ["a.example"]


async def test_next_connection_is_checked_again() -> None:
    names, wire = Names(a_example=[["8.8.8.8"], ["127.0.0.1"]]), Wire()
    dialer = Dialer(resolve=names, connect=wire)
    (await dialer.open("a.example", 443)).close()
    with pytest.raises(AddressRefused, match="loopback"):
        await dialer.open("a.example", 443)
    assert len(wire.tried) == 1


async def test_only_the_public_ones_of_several_addresses_are_tried() -> None:
    names, wire = Names(a_example=[["10.0.0.1", "8.8.8.8", "::1", "8.8.4.4"]]), Wire()
    wire.failing = {"8.8.8.8"}
    (await Dialer(resolve=names, connect=wire).open("a.example", 80)).close()
    assert wire.tried == [("8.8.8.8", 80), ("8.8.4.4", 80)]


async def test_refusals_and_failures_name_the_host() -> None:
    names, wire = Names(dead_example=[["8.8.8.8"]]), Wire()
    wire.failing = {"8.8.8.8"}
    dialer = Dialer(resolve=names, connect=wire)
    with pytest.raises(HostUnreachable, match=r"dead\.example:80 cannot be reached: Connection refused"):
        await dialer.open("dead.example", 80)
    with pytest.raises(HostUnreachable, match=r"absent\.example has no address"):
        await dialer.open("absent.example", 80)
    for port in (0, -1, 65536):
        with pytest.raises(AddressRefused):
            await dialer.open("dead.example", port)


async def test_system_resolver_finds_localhost_and_it_is_refused() -> None:
    wire = Wire()
    dialer = Dialer(connect=wire)
    with pytest.raises(AddressRefused, match="localhost is refused"):
        await dialer.open("localhost", 80)
    with pytest.raises(HostUnreachable):
        await dialer.open("nothing.invalid", 80)
    assert wire.tried == []
    dialer.close()


@pytest.fixture
async def server() -> AsyncIterator[int]:
    """A server on loopback that sends its visitors elsewhere."""

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(request.query["to"])

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.add_routes([web.get("/", hello), web.get("/redirect", redirect)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def test_client_reaches_what_allow_private_names_and_no_redirect_leads_elsewhere(server: int) -> None:
    other = socket.create_server(("127.0.0.1", 0))
    dialer = Dialer(lambda: (f"127.0.0.1:{server}",), Names(flip_example=[["127.0.0.1"]]))
    async with aiohttp.ClientSession(connector=checked_connector(dialer)) as client:
        async with client.get(f"http://127.0.0.1:{server}/") as answer:
            assert await answer.text() == "hello"
        async with client.get(f"http://flip.example:{server}/") as answer:
            assert await answer.text() == "hello"
        port = other.getsockname()[1]
        for target in (f"http://127.0.0.1:{port}/", f"http://flip.example:{port}/", f"http://[::1]:{port}/"):
            with pytest.raises(AddressRefused):
                await client.get(f"http://127.0.0.1:{server}/redirect", params={"to": target})
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.accept()
    other.close()


async def test_real_connection_is_made_to_an_exception() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        dialer = Dialer(lambda: (f"127.0.0.1:{port}",))
        with await dialer.open("127.0.0.1", port) as made:
            accepted, address = await asyncio.to_thread(listener.accept)
            assert made.getsockname() == address
            accepted.close()
        with pytest.raises(AddressRefused):
            await dialer.open("127.0.0.2", port)
