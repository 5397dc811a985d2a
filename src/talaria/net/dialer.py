"""The one way out to hosts that a model or a command names.

A name is resolved once, each of its addresses is checked, and the connection is made to a checked address,
not to the name. So an answer of DNS that changes between the check and the connection has no effect.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, ip_address
from typing import TypeAlias

from talaria.core.errors import ToolError
from talaria.core.slots import FairThreads
from talaria.net.addresses import Address, AddressRefused, check_address, parse_host, write_address

Resolve: TypeAlias = Callable[[Hashable, str], Awaitable[Sequence[str]]]
Connect: TypeAlias = Callable[[Address, int], Awaitable[socket.socket]]

_THREADS = 16
_MAX_ADDRESSES = 16  # of one name that are tried
_RESOLVE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0  # for each address


class HostUnreachable(ToolError):
    """A host has no address, or none of them takes a connection."""


class SystemResolver:
    """Resolves names as the machine does, in threads of its own. A lookup that takes long occupies its thread
    and no other, and one owner gets half of the threads at most."""

    def __init__(self) -> None:
        self._threads: FairThreads | None = None

    async def __call__(self, owner: Hashable, name: str) -> Sequence[str]:
        """Return the addresses of a name. Raises `HostUnreachable` if it has none."""
        self._threads = self._threads or FairThreads("talaria-resolve", lambda: _THREADS)
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                return await self._threads.run(owner, _look_up, name)
        except (OSError, UnicodeError) as error:  # a time limit is an OSError too
            why = "the lookup took too long" if isinstance(error, TimeoutError) else "there is no such host"
            raise HostUnreachable(f"{name} has no address: {why}.", "Check the name.") from error

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()


def _look_up(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [*dict.fromkeys(str(entry[4][0]) for entry in found)]


async def connect_tcp(address: Address, port: int) -> socket.socket:
    """Return a socket that is connected to this address. Raises `OSError`."""
    sock = _new_socket(address)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


class Dialer:
    """Connects to hosts by their name or address, and to no address that is not public.

    `allow_private` returns the exceptions as `addresses.write_address` writes them; it is read for each
    connection, so a change counts at once. Tests pass a resolver or a way to connect of their own: the check
    stands between the two, and nothing switches it off.
    """

    def __init__(
        self,
        allow_private: Callable[[], Collection[str]] = tuple,
        resolve: Resolve | None = None,
        connect: Connect = connect_tcp,
    ) -> None:
        self._allow_private = allow_private
        self._own_resolver = SystemResolver()
        self._resolve = resolve or self._own_resolver
        self._connect = connect

    async def find(self, host: str, port: int, owner: Hashable = None) -> tuple[Address, ...]:
        """Return the addresses of a host that may be connected to, at least one.

        `owner` shares the lookups fairly with others. Raises `AddressRefused` if there is none, and
        `HostUnreachable` if the name has no address.
        """
        parsed = parse_host(host)
        if not 0 < port < 65536:
            raise AddressRefused(f"The port {port} is refused.", "A port is a number from 1 to 65535.")
        if not isinstance(parsed, str):
            self.check(parsed, port)
            return (parsed,)
        answers = [ip_address(text.partition("%")[0]) for text in await self._resolve(owner, parsed)]
        if not answers:
            raise HostUnreachable(f"{parsed} has no address.", "Check the name.")
        admitted: list[Address] = []
        refusal: AddressRefused | None = None
        for address in answers[:_MAX_ADDRESSES]:
            try:
                self.check(address, port)
                admitted.append(address)
            except AddressRefused as error:
                refusal = error
        if not admitted:
            assert refusal is not None
            raise AddressRefused(f"{parsed} is refused: {refusal.user_text}", refusal.hint)
        return tuple(admitted)

    async def open(self, host: str, port: int, owner: Hashable = None) -> socket.socket:
        """Return a connected socket, which the caller closes. Raises as `find` does, and `HostUnreachable` if
        no address takes the connection."""
        failure: OSError | None = None
        for address in await self.find(host, port, owner):
            try:
                return await self._connect(address, port)
            except OSError as error:
                failure = error
        why = "it took too long" if isinstance(failure, TimeoutError) else str(failure and failure.strerror)
        raise HostUnreachable(f"{host}:{port} cannot be reached: {why}.", "Try again later.") from failure

    def check(self, address: Address, port: int) -> None:
        """Raise `AddressRefused` unless a connection to this address and port may be made now."""
        check_address(address, port, allowed := self._allow_private())
        if write_address(address, port) not in allowed and is_own(address):
            text = f"{write_address(address, port)} is an address of this machine itself."
            raise AddressRefused(text, "The operator can name it in network.allow_private.")

    def new_socket(self, family: int, address: str, port: int) -> socket.socket:
        """Return a socket for a connection to this address, which is checked. For libraries that connect by
        themselves, and ask for the socket right before."""
        if family not in (socket.AF_INET, socket.AF_INET6):
            raise AddressRefused("Only addresses of the internet are connected to.")
        try:
            parsed = ip_address(address)
        except ValueError:
            raise AddressRefused(f"{address!r} is not an address.") from None
        self.check(parsed, port)
        return _new_socket(parsed)

    def close(self) -> None:
        """Take no more lookups. Connections are not touched."""
        self._own_resolver.close()


def is_own(address: Address) -> bool:
    """Whether an address is one of this machine's own: the kernel would connect from it to itself."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((str(address), 9))
        return bool(ip_address(str(probe.getsockname()[0]).partition("%")[0]) == address)
    return False


def _new_socket(address: Address) -> socket.socket:
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    return sock
