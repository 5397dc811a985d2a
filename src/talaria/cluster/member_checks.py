"""Checks of gateways that serve one database together: token, addresses, versions, files."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from talaria.core.cluster import Member
from talaria.core.errors import ConfigError
from talaria.core.problems import Problem, ok, problem, warn

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_NAME = "cluster"
_MIN_TOKEN = 16


def read_boot() -> str:
    """Return an id of this boot of the machine and of the network that this process sees: processes with the
    same id reach each other at a loopback address. Two containers on one machine have two."""
    boot = network = ""
    with suppress(OSError):
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    with suppress(OSError):
        network = str(_NETWORK.stat().st_ino)
    return f"{boot or os.uname().nodename}/{network}"


def is_loopback(url: str) -> bool:
    """Return whether only processes of the same machine reach this address."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


class ClusterToken(msgspec.Struct, frozen=True):
    """The variable that holds the token of the cluster, and whether it is set here."""

    variable: str
    is_set: bool

    @classmethod
    def of(cls, variable: str, secret: str) -> ClusterToken:
        """Raises `ConfigError` for a token that can be guessed, or cannot be sent in a header."""
        hint = "Put one of `openssl rand -hex 32` into it, the same for all gateways of the database."
        if 0 < len(secret) < _MIN_TOKEN:
            found = f"has {len(secret)} characters: expected at least {_MIN_TOKEN}, hard to guess"
            raise ConfigError(f"The cluster token in {variable} {found}.", hint)
        if not all("!" <= character <= "~" for character in secret):
            text = f"The cluster token in {variable} has spaces or characters other than plain ASCII."
            raise ConfigError(text, hint)
        return cls(variable, bool(secret))

    def check(self, me: Member, others: Sequence[Member]) -> None:
        """Raise `ConfigError` if this gateway cannot serve the database beside the others."""
        for trouble in find_trouble(me, others, self):
            raise trouble


def find_trouble(me: Member, others: Sequence[Member], token: ClusterToken) -> list[ConfigError]:
    """Return why this gateway cannot serve the database beside these living members. A start raises the
    first; a gateway that others join tells all in its status."""
    troubles = []
    if others and not token.is_set:
        troubles.append(
            ConfigError(
                f"{describe(others[0])} serves the same database, and this gateway has no cluster token to "
                "prove itself with.",
                f"Give all gateways of the database the same long random text in {token.variable}, such as "
                "one of `openssl rand -hex 32`; or stop the other one.",
            )
        )
    if (far := find_far_trouble(me.url, me.boot, others)) is not None:
        troubles.append(far)
    unlike = next((each for each in others if each.has_shared_files != me.has_shared_files), None)
    if unlike is not None:
        has = "that one" if unlike.has_shared_files else "this one"
        troubles.append(
            ConfigError(
                f"{describe(unlike)} serves the same database, and only {has} has store.files, so files "
                "of chats would be in two places.",
                "Set store.files to the same shared folder on all gateways, or on none.",
            )
        )
    files = me.figures.files
    apart = next((each for each in others if files and each.figures.files not in ("", files)), None)
    if apart is not None:
        troubles.append(
            ConfigError(
                f"{describe(apart)} serves the same database, and its store.files is another folder, so each "
                "would miss files of the other.",
                "Mount the same folder on both machines: its file .talaria-files must be the same on both.",
            )
        )
    return troubles


def find_far_trouble(url: str, boot: str, others: Sequence[Member]) -> ConfigError | None:
    """Return why others cannot reach a gateway of this boot at this address; None if they may."""
    far = next((other for other in others if other.boot != boot), None)
    if far is None or not is_loopback(url):
        return None
    return ConfigError(
        f"{describe(far)} serves the same database from another machine or container, and cannot reach this "
        f"gateway at {url}.",
        "Set cluster.advertise_url to an address that the others reach, such as "
        f'"http://10.0.0.5:{urlsplit(url).port or 8765}", and http.host to listen there.',
    )


def describe(member: Member) -> str:
    """Name a member in a sentence."""
    return f"The gateway on {member.host} ({member.url or 'without an address yet'})"


def check_members(members: Sequence[Member], token: ClusterToken) -> Iterator[Problem]:
    """Yield what `talaria doctor` says of the members that are alive."""
    if not members:
        return
    hosts = sorted({member.host for member in members})
    noun = "gateway serves" if len(members) == 1 else "gateways serve"
    yield ok(_NAME, f"{len(members)} {noun} the database, on {', '.join(hosts)}.")
    if not token.is_set:
        text = f"The variable {token.variable} is not set, so no second gateway can serve the database."
        if len(members) > 1:
            yield problem(_NAME, text, "Give all gateways of the database the same token in it.")
        else:
            yield ok(_NAME, text)
    for member in members:
        if is_loopback(member.url) and any(other.boot != member.boot for other in members):
            text = f"{describe(member)} cannot be reached from the other machines."
            yield problem(_NAME, text, "Set its cluster.advertise_url to an address that they reach.")
    yield from _check_versions(members)
    yield from _check_files(members)


def _check_versions(members: Sequence[Member]) -> Iterator[Problem]:
    versions = sorted({member.version for member in members})
    if len(versions) > 1:
        text = f"The gateways run different versions: {', '.join(versions)}."
        yield warn(_NAME, text, "Two versions may serve together during an upgrade. Then restart the older.")
    schemas = sorted({member.schema for member in members})
    if len(schemas) > 1:
        text = f"The gateways know different schemas of the database: {', '.join(map(str, schemas))}."
        yield warn(_NAME, text, "One step apart is fine during an upgrade. Then restart the older.")


def _check_files(members: Sequence[Member]) -> Iterator[Problem]:
    places = {member.place for member in members}
    shared = [member for member in members if member.has_shared_files]
    if len({member.figures.files for member in shared} - {""}) > 1:
        text = "The gateways name different folders in store.files, so each misses files of the others."
        yield problem(_NAME, text, "Mount the same folder on all machines.")
    if len(places) < 2 or len(shared) == len(members):
        return
    if shared:
        text = "Only some gateways have store.files, so they look for the files of chats in different places."
        yield problem(_NAME, text, "Set store.files to the same shared folder on all of them, or on none.")
    else:
        text = (
            "The gateways share no files: a chat with files stays with the gateway that has them, and loses "
            "them if it is gone for longer than cluster.takeover_after."
        )
        yield warn(_NAME, text, "Set store.files to a folder that all of them see, to let chats move.")
