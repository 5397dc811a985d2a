"""Which addresses in a model's text may become links. Pure; every channel follows this rule.

A click sends a request from the reader's own machine, which can reach more than the model can: the gateway
itself, routers, other services of the network. So an address is a link only if it plainly leads to a host of
the public internet. All others are shown as text: they are not removed, and they cannot be clicked.

A name says nothing about where it leads, except for the names below. A public name may still resolve to an
inner address.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Iterable, Iterator
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple

_START = re.compile(r"(?i:https?)://([^/?#]*)")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::([0-9]{0,5}))?")
_CONTROLS = re.compile(r"[\x00-\x20\x7f\\]")
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_LONGEST_HOST = 253
# Browsers drop these characters from a host name; the categories of Unicode count them as marks.
_IGNORED = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")

INNER_NAMES = frozenset(
    ("localhost", "local", "internal", "intranet", "private", "corp", "home", "lan", "localdomain", "arpa")
) | frozenset(("test", "invalid"))
# Their names resolve to the address that is written in them, or to this machine.
MIRRORS = frozenset(("nip.io", "sslip.io", "xip.io", "localtest.me", "lvh.me"))

_INNER_V4 = tuple(
    (int(block.network_address), int(block.netmask))
    for block in map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",
        ),
    )
)
# Only 2000::/3 is global. Within it: Teredo, documentation, and 6to4, which contains an IPv4 address.
_GLOBAL_V6 = IPv6Network("2000::/3")
_INNER_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))

# The last character of an address is no punctuation. A match begins only where a run of its characters
# begins, so that searching takes linear time.
_REST = r"[^\s<>`]*[^\s<>`.,;:!?'\"*_~()\[\]{}]"
# The text before the colon need not be a scheme: a platform may begin its link within it.
WITH_SCHEME = rf"(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]+://{_REST}"
_NAME = r"(?<![\w.-])[\w-]*[^\W_](?:\.[\w-]*[^\W_]){1,127}"
_ADDRESS = re.compile(rf"{WITH_SCHEME}|{_NAME}(?::[0-9]+(?!\w|\.\w))?(?:[/?#]{_REST})?")
_NAMES = re.compile(_NAME)
_BARE = re.compile(r"([^:/?#]*)(.*)", re.DOTALL)


def is_outer(url: str, own: Container[str] = ()) -> bool:
    """Return whether `url` plainly leads to a host of the public internet. `own` are the gateway's own hosts,
    as `own_hosts` writes them."""
    start = _START.match(url)
    if start is None or _CONTROLS.search(url):
        return False
    found = _AUTHORITY.fullmatch(start[1])
    if found is None or int(found[2] or 0) > 65_535:
        return False
    host = _canonical(found[1])
    return host is not None and host not in own and not _is_inner(host)


def own_hosts(names: Iterable[str]) -> frozenset[str]:
    """Return host names and addresses as `is_outer` compares them."""
    return frozenset(
        host for name in names if (host := _canonical(f"[{name}]" if ":" in name else name)) is not None
    )


class Address(NamedTuple):
    """An address in a text, from `start` to `end`."""

    start: int
    end: int
    is_outer: bool


def find_addresses(text: str, own: Container[str] = ()) -> Iterator[Address]:
    """Yield what a chat platform may turn into links by itself: addresses with a scheme, and bare hosts.

    A platform may end a link earlier and find another one in its path, so an address whose path names an
    inner host is none of the public internet.
    """
    for found in _ADDRESS.finditer(text):
        if "://" in found[0]:
            host, path = found[0], found[0].partition("://")[2].partition("/")[2]
        else:
            name, path = _BARE.fullmatch(found[0]).groups()  # type: ignore[union-attr]  # any text matches
            if not _is_bare_host(name):
                continue
            host = f"http://{name}"
        yield Address(*found.span(), is_outer(host, own) and not _names_inner_host(path, own))


def _names_inner_host(path: str, own: Container[str]) -> bool:
    return any(_is_bare_host(name) and not is_outer(f"http://{name}", own) for name in _NAMES.findall(path))


def _is_bare_host(host: str) -> bool:
    """Return whether platforms see a host in a name with dots. A number such as 10.4 is none to them."""
    labels = host.split(".")
    return not all(_NUMBER.fullmatch(label) for label in labels) or len(labels) == 4


def _canonical(host: str) -> str | None:
    """Return the host as a browser would write it; None if that is not certain."""
    if len(host) > _LONGEST_HOST:
        return None
    try:
        if host.startswith("["):
            return f"[{IPv6Address(host[1:-1]).compressed}]"
        host = host if host.isascii() else _to_ascii(host)
    except ValueError:
        return None
    labels = host.lower().removesuffix(".").split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        return None
    return _read_v4(labels) if _NUMBER.fullmatch(labels[-1]) else ".".join(labels)


def _to_ascii(host: str) -> str:
    """Return an international name in its ASCII form. Raises `ValueError`."""
    host = unicodedata.normalize("NFKC", host)
    if _IGNORED.search(host) or any(unicodedata.category(char)[0] not in "LMNP" for char in host):
        raise ValueError(host)
    return host.encode("idna").decode()


def _read_v4(labels: list[str]) -> str | None:
    """Return the IPv4 address that browsers read: one to four numbers, each decimal, octal or hexadecimal."""
    if len(labels) > 4:
        return None
    numbers = []
    for label in labels:
        if not _NUMBER.fullmatch(label):
            return None
        try:
            numbers.append(_read_number(label))
        except ValueError:
            return None
    *heads, last = numbers
    if any(number > 255 for number in heads) or last >= 256 ** (5 - len(numbers)):
        return None
    value = last + sum(number << (8 * (3 - at)) for at, number in enumerate(heads))
    return ".".join(map(str, value.to_bytes(4)))


def _read_number(label: str) -> int:
    """Raises `ValueError` for a digit that the base does not have."""
    if label.startswith("0x"):
        return int(label[2:] or "0", 16)
    return int(label, 8 if label.startswith("0") else 10)


def _is_inner(host: str) -> bool:
    if host.startswith("["):
        v6 = IPv6Address(host[1:-1])
        return v6 not in _GLOBAL_V6 or any(v6 in block for block in _INNER_V6)
    labels = host.split(".")
    if labels[-1].isdecimal():
        v4 = int.from_bytes(map(int, labels))
        return any(v4 & mask == block for block, mask in _INNER_V4)
    return len(labels) == 1 or labels[-1] in INNER_NAMES or ".".join(labels[-2:]) in MIRRORS
