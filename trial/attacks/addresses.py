"""Addresses that are not public, in every form that a URL, a redirect or an answer of DNS can give them.

Each form goes through the proxy of commands or through a client that fetches pages, both over the real
dialer. The names are resolved by a resolver whose answers change, and nothing is really connected to: every
attempt that the check lets through is counted instead.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from random import Random

import aiohttp
from aiohttp import web

from talaria.core.errors import TalariaError
from talaria.net.addresses import Address
from talaria.net.checked_connector import checked_connector
from talaria.net.dialer import Dialer
from talaria.net.host_rules import NetworkGate, NetworkSettings
from trial.attacks.proxy_world import ProxyWorld, open_world
from trial.report import Figure, Progress, none_of

PUBLIC = "93.184.215.14"
_INSIDE = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
    "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
    "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "::/127", "::/96", "64:ff9b::/96",
    "64:ff9b:1::/48", "100::/64", "2001::/32", "2001:2::/48", "2001:10::/28", "2001:20::/28",
    "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
    "::ffff:127.0.0.0/104", "::ffff:169.254.0.0/112", "::ffff:0:10.0.0.0/104",
)  # fmt: skip
_TARGETS = ("127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.1.1", "100.100.100.200", "172.17.0.1",
            "168.63.129.16", "192.0.0.192")  # fmt: skip
_CIRCLED = "⓪①②③④⑤⑥⑦⑧⑨"


def numbers(seed: int) -> Iterator[str]:
    """Yield addresses of every range: the first, the last, and some between."""
    random = Random(seed)
    for text in _INSIDE:
        network = ip_network(text)
        size = network.num_addresses
        for offset in dict.fromkeys((0, size - 1, *(random.randrange(size) for _ in range(4)))):
            yield str(network[offset])


def forms(text: str) -> Iterator[str]:
    """Yield hosts that some program takes for this IPv4 address."""
    address = IPv4Address(text)
    number, (a, b, c, d) = int(address), address.packed
    yield from (str(number), hex(number), oct(number).replace("0o", "0"), hex(number).upper())
    yield from (f"{a}.{number & 0xFFFFFF}", f"{a}.{b}.{c << 8 | d}", f"0{a:o}.0{b:o}.0{c:o}.0{d:o}")
    yield from (f"0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}", f"{text}.", f"{a:03}.{b:03}.{c:03}.{d:03}")
    yield "".join(chr(ord(each) + 0xFEE0) if each.isdigit() else each for each in text)
    yield "".join(_CIRCLED[int(each)] if each.isdigit() else each for each in text)
    yield from (text.replace(".", "。"), text.replace(".", "．"), f"[::ffff:{text}]")
    yield from (f"[::{text}]", f"[64:ff9b::{text}]", f"[2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1]")
    teredo = IPv6Address((0x20010000 << 96) | (number ^ 0xFFFFFFFF))
    yield from (f"[{teredo}]", f"[2600::5efe:{text}]", f"[fe80::1%25{text}]", f"user:pass@{text}")
    yield from (f"{text}%00.example", f"{text}\\@public.example", f"public.example@{text}")


class FlippingNames:
    """A resolver with names such as `ANSWER-ANSWER.flip`, one answer for each time it is asked; colons and
    dots of an address are written as `c` and `d`. Every other name has a public address."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}

    async def __call__(self, owner: Hashable, name: str) -> Sequence[str]:
        if not name.endswith(".flip"):
            return (PUBLIC,)
        answers = name.removesuffix(".flip").split("-")
        at = self._asked[name] = self._asked.get(name, -1) + 1
        return [ip.replace("c", ":").replace("z", ".") for ip in answers[at % len(answers)].split("_")]


def flip_name(*answers: str) -> str:
    return "-".join(each.replace(":", "c").replace(".", "z") for each in answers) + ".flip"


class CountingDialer(Dialer):
    """The real dialer, but what it would connect to is written down instead, apart from `server`."""

    def __init__(self, server: str) -> None:
        self.reached: list[Address] = []
        super().__init__(lambda: (server,), FlippingNames(), self._note)
        self._server = server

    async def _note(self, address: Address, port: int) -> socket.socket:
        self.reached.append(address)
        raise ConnectionRefusedError(111, "written down")

    def new_socket(self, family: int, address: str, port: int) -> socket.socket:
        sock = super().new_socket(family, address, port)
        if f"{address}:{port}" != self._server:
            sock.close()
            self.reached.append(ip_address(address))
            raise ConnectionRefusedError(111, "written down")
        return sock


class AddressRun:
    """Tries about `count` forms, evenly over the families."""

    def __init__(self, count: int, progress: Progress, seed: int = 1) -> None:
        self._count = count
        self._progress = progress
        self._seed = seed
        self.reached: list[str] = []
        self.tried = 0
        self.public = 0

    def cases(self) -> list[tuple[str, str]]:
        """Return pairs of a way and a host, or for redirects of a way and a URL."""
        hosts = [f"[{text}]" if ":" in text else text for text in numbers(self._seed)]
        written = [host for text in _TARGETS for host in forms(text)]
        names = [flip_name(text) for text in numbers(self._seed + 1)]
        names += [
            flip_name(PUBLIC, text) for text in (*_TARGETS, "::1", "64:ff9b::a9fe:a9fe", "fd00:ec2::254")
        ]
        names += [flip_name(f"{text}_{text}") for text in _TARGETS]
        ways = ("connect", "get", "fetch", "redirect")
        found = [(ways[at % 4], host) for at, host in enumerate(hosts + written + names)]
        return found[:: max(1, len(found) // self._count)]

    async def run(self) -> list[Figure]:
        cases = self.cases()
        with tempfile.TemporaryDirectory(prefix="talaria-addresses-") as folder:
            async with _redirecting() as port:
                dialer = CountingDialer(f"127.0.0.1:{port}")
                gate = NetworkGate(lambda: NetworkSettings(commands="open"))
                async with open_world(Path(folder), gate=gate, dialer=dialer) as world:
                    for done, (way, host) in enumerate(cases, 1):
                        before = len(dialer.reached)
                        for _ in range(3):  # names answer in another way each time
                            await _try(way, host, world, dialer, port)
                        self.tried += 1
                        wrong = [each for each in dialer.reached[before:] if str(each) != PUBLIC]
                        self.reached += [f"{way} {host}: {each}" for each in wrong]
                        self.public += len(dialer.reached) - before - len(wrong)
                        self._progress.tell("addresses", done, len(cases))
        return [
            none_of(f"{self.tried} forms of addresses inside: connections", self.reached),
            Figure("… connections to the public addresses that names had in between", self.public),
        ]


async def _try(way: str, host: str, world: ProxyWorld, dialer: Dialer, port: int) -> None:
    if way in ("connect", "get"):
        line = f"CONNECT {host}:443" if way == "connect" else f"GET http://{host}:80/"
        await world.ask(f"{line} HTTP/1.1\r\n\r\n".encode(), ends=True)
        return
    url = f"http://{host}/"
    async with aiohttp.ClientSession(connector=checked_connector(dialer)) as client:
        with suppress(TalariaError, aiohttp.ClientError, ValueError, UnicodeError):
            if way == "fetch":
                await client.get(url)
            else:
                await client.get(f"http://127.0.0.1:{port}/", params={"to": url})


class _redirecting:  # noqa: N801 - used as a context manager only
    """A server on loopback that sends its visitors wherever they ask for."""

    async def __aenter__(self) -> int:
        async def answer(request: web.BaseRequest) -> web.Response:
            return web.Response(status=302, headers={"Location": request.query.get("to", "/")})

        self._runner = web.ServerRunner(web.Server(answer))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()
        await asyncio.sleep(0)
