"""`[network]`: what commands and fetching tools may reach."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from talaria.core.setting_marks import Check, Mark
from talaria.net.addresses import AddressRefused, parse_endpoint
from talaria.net.host_rules import SHIPPED_HOSTS, parse_rule


def _host_rules(entries: tuple[str, ...]) -> str | None:
    for entry in entries:
        try:
            parse_rule(entry)
        except AddressRefused:
            return f'exact names of hosts, such as "pypi.org" or "example.org:8443", not {entry!r}'
    return None


def _endpoints(entries: tuple[str, ...]) -> str | None:
    for entry in entries:
        if parse_endpoint(entry) is None:
            return f'exact addresses with a port, such as "192.168.1.20:8123", not {entry!r}'
    return None


class NetworkSettings(msgspec.Struct, frozen=True):
    """`commands` is what commands reach: nothing, the hosts of `allow` and those that a person admits, or
    every public host. `fetch` is the same for tools that fetch pages. `allow_private` are exact addresses
    that are not public and may be connected to all the same."""

    commands: Annotated[Literal["off", "ask", "open"], Mark.LIVE] = "ask"
    fetch: Annotated[Literal["off", "public"], Mark.LIVE] = "public"
    allow: Annotated[tuple[str, ...], Mark.LIVE, Check(_host_rules)] = SHIPPED_HOSTS
    allow_private: Annotated[tuple[str, ...], Mark.LIVE, Check(_endpoints)] = ()

    def private_endpoints(self) -> frozenset[str]:
        """Return `allow_private` as `net.addresses.write_address` writes addresses."""
        return frozenset(filter(None, map(parse_endpoint, self.allow_private)))
