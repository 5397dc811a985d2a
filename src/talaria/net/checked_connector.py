"""An aiohttp connector over the dialer: a client with it connects to no address that the dialer refuses."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from talaria.net.dialer import Dialer

if TYPE_CHECKING:
    from collections.abc import Hashable

    from aiohappyeyeballs import AddrInfoType


def checked_connector(dialer: Dialer, owner: Hashable = None, limit: int = 8) -> aiohttp.TCPConnector:
    """Return a connector whose every connection is checked, those of redirects too.

    A name is looked up by the dialer. Whatever address results, also that of a host that is written as a
    number, is checked once more for the socket that connects to it. `AddressRefused` and `HostUnreachable`
    come out of the client's call as they are. The client must not trust the environment, which may name a
    proxy.
    """

    def new_socket(info: AddrInfoType) -> socket.socket:
        host, port = info[4][:2]
        return dialer.new_socket(info[0], str(host), int(port))

    return aiohttp.TCPConnector(
        resolver=_DialersResolver(dialer, owner), socket_factory=new_socket, use_dns_cache=False, limit=limit
    )


class _DialersResolver(AbstractResolver):
    def __init__(self, dialer: Dialer, owner: Hashable) -> None:
        self._dialer = dialer
        self._owner = owner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._dialer.find(host, port, self._owner)
        ]

    async def close(self) -> None:
        return None
