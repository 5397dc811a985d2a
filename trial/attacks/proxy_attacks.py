"""Attacks on the proxy of commands by the commands themselves, and by the hosts behind it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from talaria.net.proxy import ProxyBounds
from talaria.observe.health import count_descriptors, read_rss
from trial.attacks.proxy_world import ProxyWorld, open_world
from trial.report import Check, Figure, Progress, none_of

BOUNDS = ProxyBounds(
    connections=256, session_connections=64, head_seconds=0.3, idle_seconds=0.5, seconds=5.0, bytes=16 << 20
)
_GROWTH = 24 << 20  # bytes of memory that all attacks together may leave, with those of the run itself


@dataclass(frozen=True, slots=True)
class ProxyAttack:
    name: str
    run: Callable[[ProxyWorld], Awaitable[object]]


def _raw(*requests: bytes) -> Callable[[ProxyWorld], Awaitable[object]]:
    async def run(world: ProxyWorld) -> None:
        for request in requests:
            await world.ask(request.replace(b"TARGET", world.target.encode()), ends=True)

    return run


async def _slow_head(world: ProxyWorld) -> None:
    reader, writer = await world.connect()
    with suppress(ConnectionError):
        for byte in b"GET http://pypi.org/ HTTP/1.1\r\n" * 1000:
            writer.write(bytes((byte,)))
            await writer.drain()
            if reader.at_eof():
                break
            await asyncio.sleep(0.002)
        await reader.read()
    writer.close()


async def _half_open(world: ProxyWorld) -> None:
    """More connections than there may be, which say nothing."""
    made = [await world.connect() for _ in range(200)]
    for reader, writer in made:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()


async def _many(world: ProxyWorld) -> None:
    request = b"CONNECT 10.0.0.1:443 HTTP/1.1\r\n\r\n"
    for _ in range(20):
        await asyncio.gather(*(world.ask(request) for _ in range(50)))


async def _leave(world: ProxyWorld) -> None:
    """Clients that go in the middle of everything."""
    for cut in range(0, 120, 7):
        _, writer = await world.connect()
        writer.write(f"CONNECT {world.target} HTTP/1.1\r\nA: b\r\n\r\n".encode()[:cut] or b"G")
        await writer.drain()
        writer.transport.abort()


async def _silent_tunnels(world: ProxyWorld) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    world.host.talk = silent
    request = f"CONNECT {world.target} HTTP/1.1\r\n\r\n".encode()
    await asyncio.gather(*(world.ask(request) for _ in range(40)))


def _host_says(answer: bytes, times: int = 1) -> Callable[[ProxyWorld], Awaitable[object]]:
    async def run(world: ProxyWorld) -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65536)
            for _ in range(times):
                writer.write(answer)
                await writer.drain()

        world.host.talk = talk
        await world.ask(f"GET http://{world.target}/ HTTP/1.1\r\n\r\n".encode())

    return run


def _noise(seed: int) -> Callable[[ProxyWorld], Awaitable[object]]:
    """Requests with bytes changed at random."""

    async def run(world: ProxyWorld) -> None:
        random = Random(seed)
        plain = (
            f"POST http://{world.target}/p?q HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX: y\r\n\r\nhello"
        )
        chunked = (
            plain.replace("Content-Length: 5", "Transfer-Encoding: chunked")[:-5] + "5\r\nhello\r\n0\r\n\r\n"
        )
        tunnel = f"CONNECT {world.target} HTTP/1.1\r\nHost: a\r\n\r\nhello"
        for text in (plain, chunked, tunnel):
            request = bytearray(text.encode())
            for _ in range(random.randrange(1, 6)):
                at = random.randrange(len(request))
                request[at : at + random.randrange(3)] = random.randbytes(random.randrange(3))
            await world.ask(bytes(request), ends=True)

    return run


def all_proxy_attacks(noise: int = 300) -> list[ProxyAttack]:
    post = b"POST http://TARGET/ HTTP/1.1\r\n"
    get = b"GET http://TARGET/ HTTP/1.1\r\n"
    smuggled = b"GET http://evil.example/ HTTP/1.1\r\n\r\n"
    listed = {
        "a head of 1 MB": _raw(get + b"A: " + b"x" * (1 << 20) + b"\r\n\r\n"),
        "10,000 headers": _raw(get + b"A: b\r\n" * 10_000 + b"\r\n"),
        "a target of 1 MB": _raw(b"GET http://TARGET/" + b"x" * (1 << 20) + b" HTTP/1.1\r\n\r\n"),
        "a head byte by byte": _slow_head,
        "200 silent connections": _half_open,
        "1,000 connections": _many,
        "clients that leave": _leave,
        "40 silent tunnels": _silent_tunnels,
        "two lengths": _raw(post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello" + smuggled),
        "length and chunks": _raw(
            post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
            post + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + smuggled,
        ),
        "odd codings": _raw(
            *(
                post + b"Transfer-Encoding:" + coding + b"\r\n\r\n0\r\n\r\n" + smuggled
                for coding in (
                    b" xchunked",
                    b"\x0bchunked",
                    b" chunked, identity",
                    b" identity",
                    b"\tchunked",
                )
            )
        ),
        "odd lengths": _raw(
            *(
                post + b"Content-Length: " + length + b"\r\n\r\n" + smuggled
                for length in (b"-1", b"0x5", b"5 5", b"5,5", b"1e3", b"9" * 400, b"", b"\xd9\xa3")
            )
        ),
        "odd lines": _raw(
            get.replace(b"\r\n", b"\n") + b"\n",
            get + b" folded\r\n\r\n",
            get + b"\0: b\r\n\r\n",
            get + b"A: b\rC: d\r\n\r\n",
            b"\r\n\r\n" + get + b"\r\n",
            get[:-2] + b"\t\r\n\r\n",
            get + b"Content-Length : 5\r\n\r\nhello" + smuggled,
        ),
        "a chunk without end": _raw(post + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100_000),
        "a huge chunk": _raw(
            post + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + b"x" * 100_000
        ),
        "chunks of one byte": _raw(post + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000),
        "1,000 requests in one": _raw((get + b"\r\n") * 1000),
        "absolute targets": _raw(
            *(
                b"GET " + target + b" HTTP/1.1\r\n\r\n"
                for target in (
                    b"http://",
                    b"http:///x",
                    b"http:TARGET",
                    b"//TARGET/",
                    b"http://a@TARGET/",
                    b"*",
                    b"http://[::1/",
                    b"http://TARGET:99999/",
                    b"file:///etc/passwd",
                    b"http://a\\b/",
                    b"gopher://TARGET/",
                    b"http://TARGET#@evil.example/",
                    b"unix:///run/docker.sock",
                )
            )
        ),
        "tunnels to paths": _raw(
            *(
                b"CONNECT " + target + b" HTTP/1.1\r\n\r\n"
                for target in (
                    b"/run/docker.sock",
                    b"unix:/run/docker.sock:80",
                    b"@abstract:80",
                    b":80",
                    b"a:b",
                    b"[::1]",
                    b"127.0.0.1:0",
                    b"127.0.0.1:65536",
                    b"\\\\host\\pipe:1",
                    b"a:80:443",
                )
            )
        ),
        "a host with an endless head": _host_says(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 65536, 40),
        "a host with endless beginnings": _host_says(b"HTTP/1.1 100 Continue\r\n\r\n", 50_000),
        "a host that sends 64 MB": _host_says(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (1 << 20), 64),
        "a host that speaks no HTTP": _host_says(b"\0\xff" * 1000 + b"\r\n\r\n"),
        "a host that splits its head": _host_says(b"HTTP/1.1 200 OK\r\nA: b\n\r\nSet: c\r\n\r\n"),
    }
    listed |= {f"noise {seed}": _noise(seed) for seed in range(noise)}
    return [ProxyAttack(name, run) for name, run in listed.items()]


class ProxyAttackRun:
    """Runs attacks one after the other. After each a good request must be answered."""

    def __init__(self, attacks: list[ProxyAttack], progress: Progress) -> None:
        self._attacks = attacks
        self._progress = progress
        self.unanswered: list[str] = []

    async def run(self) -> list[Figure]:
        errors = _Errors()
        logging.getLogger("talaria.net.proxy").addHandler(errors)
        logging.getLogger("asyncio").addHandler(errors)
        evil = 0
        try:
            with tempfile.TemporaryDirectory(prefix="talaria-proxy-") as folder:
                async with open_world(Path(folder), BOUNDS) as world:
                    await self._check(world)
                    gc.collect()
                    rss, descriptors = read_rss(), count_descriptors()
                    for done, attack in enumerate(self._attacks, 1):
                        await attack.run(world)
                        evil += bytes(world.host.heard).count(b"evil.example")
                        if not await self._check(world):
                            self.unanswered.append(attack.name)
                        self._progress.tell("attacks on the proxy", done, len(self._attacks))
                    gc.collect()
                    growth, left = read_rss() - rss, count_descriptors() - descriptors
        finally:
            logging.getLogger("talaria.net.proxy").removeHandler(errors)
            logging.getLogger("asyncio").removeHandler(errors)
        return [
            none_of(
                f"{len(self._attacks)} attacks on the proxy: good requests not answered", self.unanswered
            ),
            none_of("… errors in the log", errors.texts),
            Figure("… requests smuggled to the host", evil, "", 0),
            Figure("… descriptors left open", max(0, left), "", 0, Check.LEFTOVERS),
            Figure("… memory beyond 24 MB", max(0, growth - _GROWTH) / 1e6, "MB", 0, Check.MEMORY),
        ]

    async def _check(self, world: ProxyWorld) -> bool:
        """Send a good request, once the connections of the attack are over."""
        async with asyncio.timeout(60):
            while world.proxy.open_connections:
                await asyncio.sleep(0.01)
        world.host.talk = None
        world.host.heard.clear()
        answer = await world.ask(f"GET http://{world.target}/ HTTP/1.1\r\n\r\n".encode())
        world.ended.clear()
        return answer.endswith(b"hello")


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{os.getpid()}: {record.getMessage()} {record.exc_info}")
