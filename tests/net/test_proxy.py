"""The proxy of commands, with real sockets on both sides."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Literal

import pytest

from support.waiting import until
from talaria.net.addresses import Address
from talaria.net.dialer import Dialer
from talaria.net.host_rules import HostAnswer, HostRequest, NetworkGate, NetworkSettings
from talaria.net.proxy import ProxyBounds
from talaria.net.proxy_requests import HelloReader
from trial.attacks.proxy_world import SESSION, ProxyWorld, open_world


def hello(name: str | None) -> bytes:
    """Return the first message of a real TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def test_request_goes_on_rewritten_and_its_response_comes_back(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        answer = await world.ask(
            f"GET http://{world.target}/a?b=c HTTP/1.1\r\nHost: other.example\r\n"
            "Proxy-Authorization: secret\r\nProxy-Connection: keep-alive\r\nConnection: X-Hop\r\n"
            "X-Hop: 1\r\nAccept: */*\r\n\r\n".encode()
        )
        assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
        host = f"Host: {world.target}"
        lines = ("GET /a?b=c HTTP/1.1", host, "Accept: */*", "Connection: close", "", "")
        assert world.host.heard == "\r\n".join(lines).encode()
        assert await world.settle(1) == ["done"]
        assert world.ended[0].session_id == SESSION
        assert (world.ended[0].target, world.ended[0].received) == (world.target, len(answer))


@pytest.mark.parametrize(
    ("framing", "sent", "expected"),
    [
        ("Content-Length: 6", b"abcdefEVIL", b"abcdef"),
        (
            "Transfer-Encoding: chunked",
            b"3\r\nabc\r\n3;x=y\r\ndef\r\n0\r\n\r\nEVIL",
            b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n",
        ),
    ],
)
async def test_body_goes_on_and_nothing_behind_it(
    tmp_path: Path, framing: str, sent: bytes, expected: bytes
) -> None:
    async with open_world(tmp_path) as world:
        whole = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            world.host.heard += await reader.readexactly(len(expected))
            writer.write(world.host.answer)
            writer.write_eof()
            world.host.heard += await reader.read()
            whole.set()

        world.host.talk = talk
        head = f"POST http://{world.target}/ HTTP/1.1\r\n{framing}\r\n\r\n".encode()
        assert (await world.ask(head + sent)).endswith(b"hello")
        await whole.wait()
        assert bytes(world.host.heard) == expected


async def test_tunnel_passes_bytes_both_ways_and_half_a_close(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        sent = bytes(range(256)) * 8192  # 2 MiB: more than all buffers

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write(b"end")

        world.host.talk = echo
        reader, writer = await world.connect()
        writer.write(f"CONNECT {world.target} HTTP/1.1\r\nHost: {world.target}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        answer = asyncio.create_task(reader.read(-1))
        writer.write(sent)
        await writer.drain()
        writer.write_eof()
        assert await answer == sent + b"end"
        writer.close()
        assert await world.settle(1) == ["done"]
        assert (world.ended[0].sent, world.ended[0].received) == (len(sent), len(sent) + 3)


async def test_reader_that_does_not_read_holds_the_host_up_and_not_the_memory(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        sent = 0

        async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            for _ in range(1024):
                writer.write(b"x" * 65536)
                sent += 65536
                await writer.drain()

        world.host.talk = flood
        _, writer = await world.connect()
        writer.write(f"CONNECT {world.target} HTTP/1.1\r\n\r\n".encode())
        before, still = 0, 0
        while not sent or still < 200:  # all three sides run in this loop: it is idle once nothing moves
            await asyncio.sleep(0)
            before, still = sent, still + 1 if sent == before else 0
        writer.close()
        await world.settle(1)
        assert world.ended[0].received < 1 << 20


_GET = b"GET http://pypi.org/ HTTP/1.1\r\n"
_LENGTH, _CHUNKED = b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (b"CONNECT unlisted.example:443 HTTP/1.1\r\n\r\n", b"403", b"not in network.allow"),
        (b"GET http://unlisted.example/ HTTP/1.1\r\n\r\n", b"403", b"unlisted.example:80 was not reached"),
        (b"CONNECT 10.0.0.1:443 HTTP/1.1\r\n\r\n", b"403", b"not in network.allow"),
        (b"CONNECT 0x7f000001:443 HTTP/1.1\r\n\r\n", b"403", b"four decimal numbers"),
        (b"CONNECT unix:/run/docker.sock HTTP/1.1\r\n\r\n", b"400", b"no host and port"),
        (b"CONNECT /run/docker.sock HTTP/1.1\r\n\r\n", b"400", b"no host and port"),
        (b"CONNECT pypi.org HTTP/1.1\r\n\r\n", b"400", b"no host and port"),
        (b"CONNECT pypi.org:0 HTTP/1.1\r\n\r\n", b"400", b"1 to 65535"),
        (b"CONNECT user@pypi.org:443 HTTP/1.1\r\n\r\n", b"403", b"no name of a host"),
        (b"CONNECT pypi.org:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"400", b"no body"),
        (b"GET /path HTTP/1.1\r\nHost: pypi.org\r\n\r\n", b"400", b"whole http:// URL"),
        (b"GET https://pypi.org/ HTTP/1.1\r\n\r\n", b"400", b"CONNECT"),
        (b"GET http://pypi.org@evil.example/ HTTP/1.1\r\n\r\n", b"400", b"whole http:// URL"),
        (b"GET http://pypi.org\\@evil.example/ HTTP/1.1\r\n\r\n", b"400", b"whole http:// URL"),
        (b"GET ftp://pypi.org/ HTTP/1.1\r\n\r\n", b"400", b"http://"),
        (b"GET http:///etc/passwd HTTP/1.1\r\n\r\n", b"400", b"http://"),
        (b"GET http://pypi.org/ HTTP/2.0\r\n\r\n", b"400", b"first line"),
        (b"GET http://pypi.org/ x HTTP/1.1\r\n\r\n", b"400", b"first line"),
        (b"GET http://pypi.org/ HTTP/1.1\r\nA b: c\r\n\r\n", b"400", b"malformed"),
        (b"GET http://pypi.org/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", b"400", b"malformed"),
        (b"GET http://pypi.org/ HTTP/1.1\r\nA: b\nC: d\r\n\r\n", b"400", b"malformed"),
        (b"GET http://pypi.org/ HTTP/1.1\r\nA: b\rC: d\r\n\r\n", b"400", b"malformed"),
        (b"GET http://pypi.org/ HTTP/1.1\r\nA : b\r\n\r\n", b"400", b"malformed"),
        (_GET + _LENGTH + _CHUNKED + b"\r\n", b"400", b"once"),
        (_GET + _LENGTH + _LENGTH + b"\r\n", b"400", b"once"),
        (b"GET http://pypi.org/ HTTP/1.1\r\nContent-Length: +3\r\n\r\n", b"400", b"not a number"),
        (_GET + b"Transfer-Encoding: gzip, chunked\r\n\r\n", b"501", b"in no other way"),
        (b"GET http://pypi.org/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", b"501", b"in no other way"),
        (b"GET http://pypi.org/ HTTP/1.1\r\n" + b"A: b\r\n" * 201 + b"\r\n", b"431", b"200 headers"),
        (b"GET http://pypi.org/" + b"x" * 40000 + b" HTTP/1.1\r\n\r\n", b"431", b"too long"),
    ],
)  # fmt: skip
async def test_refusal_says_what_happened(
    tmp_path: Path, request_: bytes, status: bytes, text: bytes
) -> None:
    async with open_world(tmp_path) as world:
        answer = await world.ask(request_)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split()[1] == status
        assert text in body
        assert text in head.splitlines()[0]
        assert world.host.connections == 0
        assert (await world.settle(1))[0] in ("bad", "refused", "address")


async def test_address_is_refused_even_if_every_host_is_open(tmp_path: Path) -> None:
    async with open_world(tmp_path, settings=lambda: NetworkSettings(commands="open")) as world:
        for host in ("127.0.0.1:1", "localhost:22", "169.254.169.254:80", "[::1]:80", "10.0.0.1:443"):
            answer = await world.ask(f"CONNECT {host} HTTP/1.1\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 403 Refused by Talaria: ")
        assert await world.settle(5) == ["address"] * 5
        assert "a loopback address" in world.listener.take_refusals()[0]
        assert world.listener.take_refusals() == ()


async def test_person_decides_while_the_connection_is_held(tmp_path: Path) -> None:
    asked: list[HostRequest] = []

    class Person:
        async def ask(self, request: HostRequest) -> HostAnswer:
            asked.append(request)
            return HostAnswer(not request.is_background, "Not in the background.")

    def settings() -> NetworkSettings:
        return NetworkSettings(allow=())

    async with open_world(tmp_path, gate=NetworkGate(settings, Person().ask)) as world:
        request = f"GET http://{world.target}/ HTTP/1.1\r\n\r\n".encode()
        assert (await world.ask(request)).endswith(b"hello")
        assert b"Not in the background." in await world.ask(request, is_background=True)
    assert [each.is_background for each in asked] == [False, True]


@pytest.mark.parametrize(
    ("opening", "is_cut"),
    [
        (hello("pypi.org"), False),
        (hello("PyPI.org"), False),
        (hello("evil.example"), True),
        (hello(None), True),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", True),
        (b"\x16\x03\x01", True),
        (b"\x16\x03\x01\xff\xff" + b"\x01" * 100, True),
        (b"", True),
    ],
    ids=["same", "other case", "another", "none", "no TLS", "a piece", "nonsense", "nothing"],
)
async def test_opening_is_read_in_pieces(opening: bytes, is_cut: bool) -> None:
    reader = HelloReader()
    for at in range(0, len(opening), 7):
        reader.feed(opening[at : at + 7])
    assert reader.names("pypi.org") is not is_cut
    assert reader.data == opening


@pytest.mark.parametrize(("size", "is_read"), [(64, True), (1, False)])
def test_an_opening_in_very_many_records_is_refused(size: int, is_read: bool) -> None:
    whole = hello("pypi.org")[5:]
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    reader = HelloReader()
    reader.feed(b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2) + piece for piece in pieces))
    assert reader.names("pypi.org") is is_read and reader.is_complete


@pytest.mark.parametrize(
    ("name", "commands", "arrives"),
    [("pypi.org", "ask", True), ("evil.example", "ask", False), ("evil.example", "open", True)],
)
async def test_tunnel_must_name_the_host_that_was_admitted(
    tmp_path: Path, name: str, commands: Literal["ask", "open"], arrives: bool
) -> None:
    world: ProxyWorld
    dialer = host_behind(443, lambda: world)
    settings = NetworkSettings(commands=commands)
    async with open_world(tmp_path, settings=lambda: settings, dialer=dialer) as world:
        world.host.answer = b"server hello"
        opening = hello(name)
        reader, writer = await world.connect()
        writer.write(b"CONNECT pypi.org:443 HTTP/1.1\r\n\r\n" + opening)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        assert answer.endswith(b"server hello") is arrives
        assert bytes(world.host.heard) == (opening if arrives else b"")
        if not arrives:
            assert await world.settle(1) == ["cut"]
            assert "named evil.example instead" in world.listener.take_refusals()[0]


def host_behind(port: int, world: Callable[[], ProxyWorld]) -> Dialer:
    """A dialer that reaches the host of the world for every name, on this port."""

    async def resolve(owner: Hashable, host: str) -> Sequence[str]:
        return ("8.8.8.8",)

    async def connect(address: Address, its_port: int) -> socket.socket:
        assert (str(address), its_port) == ("8.8.8.8", port)
        return socket.create_connection(("127.0.0.1", world().host.port))

    return Dialer(resolve=resolve, connect=connect)


_OTHER_HOST = b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"


@pytest.mark.parametrize("port", [80, 443])
@pytest.mark.parametrize(
    "opening",
    [
        _OTHER_HOST,
        b"\r\n" + _OTHER_HOST,
        b"GET / HTTP/1.1\r\nHost: pypi.org\r\n\r\n" + _OTHER_HOST,
        b"GET http://evil.example/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"SSH-2.0-x\r\n",
        hello("evil.example"),
    ],
    ids=["other host", "empty line", "second request", "whole URL", "upgrade", "HTTP/2", "SSH", "other TLS"],
)
async def test_tunnel_to_a_web_port_without_tls_for_its_host_is_cut(
    tmp_path: Path, port: int, opening: bytes
) -> None:
    world: ProxyWorld
    async with open_world(tmp_path, dialer=host_behind(port, lambda: world)) as world:
        answer = await world.ask(f"CONNECT pypi.org:{port} HTTP/1.1\r\n\r\n".encode() + opening, ends=True)
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert bytes(world.host.heard) == b""
        assert await world.settle(1) == ["cut"]
        assert f"pypi.org:{port}" in world.listener.take_refusals()[0]


async def test_tunnel_to_port_80_passes_tls_for_its_host(tmp_path: Path) -> None:
    world: ProxyWorld
    async with open_world(tmp_path, dialer=host_behind(80, lambda: world)) as world:
        world.host.answer = b"server hello"
        opening = hello("pypi.org")
        answer = await world.ask(b"CONNECT pypi.org:80 HTTP/1.1\r\n\r\n" + opening, ends=True)
        assert answer.endswith(b"server hello")
        assert bytes(world.host.heard) == opening


async def test_tunnel_to_a_port_that_was_listed_exactly_carries_any_protocol(tmp_path: Path) -> None:
    """The operator named this service; a server may also speak first."""
    world: ProxyWorld
    settings = NetworkSettings(allow=("pypi.org:2222",))
    async with open_world(
        tmp_path, settings=lambda: settings, dialer=host_behind(2222, lambda: world)
    ) as world:

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-server\r\n")
            world.host.heard += await reader.read()

        world.host.talk = greet
        reader, writer = await world.connect()
        writer.write(b"CONNECT pypi.org:2222 HTTP/1.1\r\n\r\n")
        assert (await reader.readuntil(b"server\r\n")).endswith(b"SSH-2.0-server\r\n")
        writer.write(b"SSH-2.0-client\r\n")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert bytes(world.host.heard) == b"SSH-2.0-client\r\n"


async def test_tls_to_a_port_that_was_listed_exactly_must_name_its_host(tmp_path: Path) -> None:
    world: ProxyWorld
    settings = NetworkSettings(allow=("pypi.org:8443",))
    dialer = host_behind(8443, lambda: world)
    async with open_world(tmp_path, settings=lambda: settings, dialer=dialer) as world:
        connect = b"CONNECT pypi.org:8443 HTTP/1.1\r\n\r\n"
        await world.ask(connect + hello("evil.example"), ends=True)
        assert bytes(world.host.heard) == b""
        world.host.answer = b"server hello"
        assert (await world.ask(connect + hello("pypi.org"), ends=True)).endswith(b"server hello")
        assert await world.settle(2) == ["cut", "done"]


@pytest.mark.parametrize(
    "more",
    [b"Connection: keep-alive\r\n\r\n", b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"],
    ids=["kept alive", "upgrade"],
)
@pytest.mark.parametrize("status", [b"200 OK", b"101 Switching Protocols"])
async def test_second_request_on_a_connection_never_reaches_the_host(
    tmp_path: Path, more: bytes, status: bytes
) -> None:
    world: ProxyWorld
    async with open_world(tmp_path, dialer=host_behind(80, lambda: world)) as world:
        world.host.answer = b"HTTP/1.1 " + status + b"\r\nConnection: keep-alive\r\n\r\n"
        first = b"GET http://pypi.org/ HTTP/1.1\r\nHost: evil.example\r\n" + more
        second = b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"
        await world.ask(first + second + _OTHER_HOST)
        await world.settle(1)
        assert bytes(world.host.heard) == b"GET / HTTP/1.1\r\nHost: pypi.org\r\nConnection: close\r\n\r\n"


async def test_bound_of_connections_refuses_one_more(tmp_path: Path) -> None:
    async with open_world(tmp_path, ProxyBounds(connections=4, session_connections=2)) as world:
        held = [await world.connect() for _ in range(2)]
        await until(lambda: world.proxy.open_connections.total() >= 2)
        assert (await world.ask(b"")).startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()
        assert (await world.settle(3))[0] == "busy"


async def test_a_head_that_never_ends_is_cut(tmp_path: Path) -> None:
    async with open_world(tmp_path, ProxyBounds(head_seconds=0.05)) as world:
        reader, writer = await world.connect()
        assert await reader.read() == b""
        writer.close()
        assert (await world.settle(1)) == ["bad"]


async def test_bounds_of_silence_and_bytes_cut_a_connection(tmp_path: Path) -> None:
    async with open_world(tmp_path, ProxyBounds(idle_seconds=0.05, bytes=100_000)) as world:

        async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()

        world.host.talk = flood
        answer = await world.ask(f"CONNECT {world.target} HTTP/1.1\r\n\r\n".encode())
        assert len(answer) < 400_000

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        world.host.talk = silent
        assert (await world.ask(f"CONNECT {world.target} HTTP/1.1\r\n\r\n".encode())).endswith(b"\r\n\r\n")
        assert (await world.settle(2)) == ["cut", "cut"]


async def test_new_listener_takes_the_place_of_the_old(tmp_path: Path) -> None:
    """As after a restart: the folder is the same, and the sockets in it are new."""
    async with open_world(tmp_path) as world:
        request = f"GET http://{world.target}/ HTTP/1.1\r\n\r\n".encode()
        assert (await world.ask(request)).endswith(b"hello")
        second = await world.proxy.listen(SESSION, tmp_path)
        world.host.heard.clear()
        assert (await world.ask(request)).endswith(b"hello")
        await second.close()


async def test_closing_ends_connections(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        world.host.talk = silent
        reader, writer = await _tunnel(world)
        await world.listener.close()
        assert await reader.read() == b""
        writer.close()


async def _tunnel(world: ProxyWorld) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await world.connect()
    writer.write(f"CONNECT {world.target} HTTP/1.1\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    return reader, writer


def _messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "talaria.net.proxy"]


async def test_many_connections_are_a_few_log_lines_and_one_with_their_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_world(tmp_path, ProxyBounds(log_lines=3)) as world:
        for number in range(100):
            await world.ask(f"CONNECT h{number}.example:443 HTTP/1.1\r\n\r\n".encode())
        answer = await world.ask(f"GET http://{world.target}/ HTTP/1.1\r\n\r\n".encode())
        await world.settle(101)
        assert len(_messages(caplog)) == 3
    *single, summary = _messages(caplog)
    assert single == [
        f"a command of {SESSION}: h{number}.example:443 refused, 0 bytes sent, 0 received"
        for number in range(3)
    ]
    sent = len(world.host.heard)
    assert sent
    assert summary == (
        f"commands of {SESSION}: 98 more connections within 60 s: 97 refused, 1 done; "
        f"0 bytes sent, {len(answer)} received. Reached: {world.target}"
    )


async def test_lines_are_single_again_after_the_summary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_world(tmp_path, ProxyBounds(log_lines=1, log_seconds=0.05)) as world:
        for _ in range(2):
            await world.ask(b"nonsense\r\n\r\n")
        await until(lambda: len(_messages(caplog)) >= 2)
        await world.ask(b"nonsense\r\n\r\n")
        await world.settle(3)
        assert ["more connections" in each for each in _messages(caplog)] == [False, True, False]
