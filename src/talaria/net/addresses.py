"""Hosts and addresses: how a host is written, and which addresses may be connected to. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

from talaria.core.errors import ToolError
from talaria.core.text import cut

Address: TypeAlias = IPv4Address | IPv6Address

_MAX_NAME = 253
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# The registries of special addresses (IANA), and not `is_global`: Python's table changes between versions,
# and takes NAT64 addresses, which lead to any IPv4 address, for global ones.
_REFUSED_IPV4 = {
    "0.0.0.0/8": "an unspecified address",
    "10.0.0.0/8": "a private address",
    "100.64.0.0/10": "an address of a carrier's own network",
    "127.0.0.0/8": "a loopback address",
    "168.63.129.16/32": "a metadata address",  # of Azure: global, and answered by the machine's host
    "169.254.0.0/16": "a link-local or metadata address",
    "172.16.0.0/12": "a private address",
    "192.0.0.0/24": "a reserved address",
    "192.0.2.0/24": "a documentation address",
    "192.88.99.0/24": "a 6to4 relay",
    "192.168.0.0/16": "a private address",
    "198.18.0.0/15": "a benchmarking address",
    "198.51.100.0/24": "a documentation address",
    "203.0.113.0/24": "a documentation address",
    "224.0.0.0/4": "a multicast address",
    "240.0.0.0/4": "a reserved address",
}
_REFUSED_IPV6 = {
    "::/128": "an unspecified address",
    "::1/128": "a loopback address",
    "64:ff9b::/96": "a NAT64 address",
    "64:ff9b:1::/48": "a NAT64 address",
    "2001::/32": "a Teredo address",
    "2001::/23": "a reserved address",
    "2001:db8::/32": "a documentation address",
    "2002::/16": "a 6to4 address",
    "3ffe::/16": "a reserved address",
    "3fff::/20": "a documentation address",
    "fc00::/7": "a private address",
    "fe80::/10": "a link-local address",
    "fec0::/10": "a site-local address",
    "ff00::/8": "a multicast address",
}
_IPV4 = tuple((IPv4Network(network), what) for network, what in _REFUSED_IPV4.items())
_IPV6 = tuple((IPv6Network(network), what) for network, what in _REFUSED_IPV6.items())
_GLOBAL_IPV6 = IPv6Network("2000::/3")  # the part of IPv6 that is given out
_ISATAP = (0x00005EFE, 0x02005EFE)  # bits 64 to 96 of an address whose last bits are an IPv4 address


class AddressRefused(ToolError):
    """A host was not connected to, because of how it is written or because of its address."""


def parse_host(text: str) -> Address | str:
    """Return the address that a host stands for, or the name in lower case and ASCII, without a final dot.

    Square brackets around an IPv6 address are taken off. Raises `AddressRefused` for any other form: numbers
    that only some programs take for an address (`127.1`, `0x7f000001`), zones, user names, escapes.
    """
    if text.startswith("[") and text.endswith("]"):
        return _parse_ipv6(text[1:-1])
    if ":" in text:
        return _parse_ipv6(text)
    if len(text) > _MAX_NAME:
        raise _odd(text, "it is too long")
    name = text
    if not text.isascii():
        try:
            name = text.encode("idna").decode()
        except UnicodeError:
            raise _odd(text, "it is no name of a host") from None
    name = name.lower()
    labels = name.removesuffix(".").split(".")
    if len(name) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise _odd(text, "it is no name of a host")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return IPv4Address(".".join(labels))
        except ValueError:
            raise _odd(text, "an address is written as four decimal numbers, such as 192.0.2.7") from None
    return ".".join(labels)


def _parse_ipv6(text: str) -> Address:
    try:
        address = IPv6Address(text)
    except ValueError:
        raise _odd(text, "it is not an IPv6 address") from None
    if address.scope_id is not None:
        raise _odd(text, "it names a zone, which only this machine knows")
    return address


def _odd(text: str, why: str) -> AddressRefused:
    shown = cut(text, 80)
    return AddressRefused(f"The host {shown!r} is refused: {why}.", "Write the plain name of the host.")


def find_refusal(address: Address) -> str | None:
    """Return what kind of address this is if it is not one of the public internet, else None.

    An address that contains another one, to which it leads, is judged by that one.
    """
    if isinstance(address, IPv4Address):
        return next((what for network, what in _IPV4 if address in network), None)
    if address.ipv4_mapped is not None:
        return find_refusal(address.ipv4_mapped)
    for network, what in _IPV6:
        if address in network:
            return what
    if address not in _GLOBAL_IPV6:
        return "a reserved address"
    if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        return find_refusal(IPv4Address(int(address) & 0xFFFFFFFF))
    return None


def check_address(address: Address, port: int, allow_private: Collection[str]) -> None:
    """Raise `AddressRefused` unless the address is public, or `network.allow_private` names it and the port.

    To be called with the address that is connected to, not with one that a name had earlier.
    """
    if (what := find_refusal(address)) is None or write_address(address, port) in allow_private:
        return
    text = f"{write_address(address, port)} is {what}, and only public addresses are connected to."
    raise AddressRefused(text, "The operator can name the exact address and port in network.allow_private.")


def write_address(address: Address, port: int) -> str:
    """Return `ip:port` in the one form that `network.allow_private` is compared in."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return f"[{address}]:{port}" if isinstance(address, IPv6Address) else f"{address}:{port}"


def parse_endpoint(text: str) -> str | None:
    """Return an entry of `network.allow_private` in the form of `write_address`, or None if it is none."""
    host, _, port = text.strip().rpartition(":")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
        return None
    try:
        return write_address(ip_address(host.removeprefix("[").removesuffix("]")), int(port))
    except ValueError:
        return None
