"""`talaria pair`: who may speak to the agents, through the running gateway or on the store itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from talaria.access.pairing import PairingAdmin
from talaria.channels.console.clean import clean_line
from talaria.channels.console.client import GatewayClient
from talaria.cli.columns import columns, when
from talaria.cli.connect import Found, ask_home
from talaria.cli.options import Invocation, group
from talaria.core.access import Paired, PairingList, Person
from talaria.core.clock import SystemClock
from talaria.core.errors import BadRequest, NotFound
from talaria.store.memory import MemoryStore

T = TypeVar("T")
Desk = PairingAdmin | GatewayClient


@group("pair", "talaria pair list", "talaria pair approve K7QD-93MX-4TZA")
def command() -> None:
    """Let people in who write to the agents from a chat platform, and out again."""


@command.verb("list", "talaria pair list")
def _list(invocation: Invocation) -> None:
    """Who is paired, and who waits for it."""
    found = _at_desk(invocation, lambda desk: desk.listing())
    if not found.paired and not found.requests:
        click.echo("Nobody is paired, and nobody waits. Those in `allowed` in config.toml need no pairing.")
        return
    rows = [
        *(_row("paired", each.person, f"since {when(each.paired_at)}") for each in found.paired),
        *(_row("waits", each.person, f"until {when(each.expires_at)}") for each in found.requests),
    ]
    click.echo(columns([("", "ID", "NAME", ""), *rows]))


@command.verb("approve", "talaria pair approve K7QD-93MX-4TZA")
@click.argument("code", nargs=-1, required=True, metavar="CODE")
def _approve(invocation: Invocation, code: tuple[str, ...]) -> None:
    """Let in whoever was given this code."""
    paired = _at_desk(invocation, lambda desk: desk.approve(" ".join(code)))
    click.echo(f"Paired {_named(paired.person)}: they are answered from now on.")


@command.verb("revoke", "talaria pair revoke telegram:123456789")
@click.argument("user", metavar="ID")
def _revoke(invocation: Invocation, user: str) -> None:
    """Answer someone no longer. ID is as `pair list` shows it; the number alone is enough."""

    async def revoke(desk: Desk) -> Paired:
        person = _find(await desk.listing(), user)
        return await desk.revoke(person.channel, person.user_id)

    paired = _at_desk(invocation, revoke)
    click.echo(f"{_named(paired.person)} is not paired any more. A turn that runs already goes on.")


@command.verb("invite", "talaria pair invite telegram")
@click.argument("channel")
def _invite(invocation: Invocation, channel: str) -> None:
    """Make a code that lets its first bearer in, without approval."""
    invitation = _at_desk(invocation, lambda desk: desk.invite(channel), make=True)
    click.echo(f"/start {invitation.code}")
    click.echo(
        f"Whoever first sends this to the bot on {channel} is paired. It is good once, "
        f"until {when(invitation.expires_at)}.",
        err=True,
    )


def _at_desk(invocation: Invocation, use: Callable[[Desk], Awaitable[T]], *, make: bool = False) -> T:
    def at(found: Found) -> Awaitable[T]:
        if isinstance(found, GatewayClient):
            return use(found)
        # In a home without a database nobody is paired, and nobody waits.
        store = MemoryStore(SystemClock()) if isinstance(found, Path) else found
        return use(PairingAdmin(store.pairings))

    return ask_home(invocation, at, make=make)


def _find(listing: PairingList, user: str) -> Person:
    """Raises `NotFound` and, for a number that two channels know, `BadRequest`."""
    people = [each.person for each in listing.paired]
    found = [person for person in people if user in (person.user_id, _id(person))]
    if not found:
        raise NotFound(
            f"Nobody is paired as {user}.",
            "`talaria pair list` shows who is; those in an `allowed` list are taken out in config.toml.",
        )
    if len(found) > 1:
        raise BadRequest(
            f"{user} is paired on more than one channel.", f"Name one: {', '.join(map(_id, found))}."
        )
    return found[0]


def _id(person: Person) -> str:
    return f"{person.channel}:{person.user_id}"


def _named(person: Person) -> str:
    name = clean_line(person.name, 40)
    return clean_line(_id(person)) + (f" ({name})" if name else "")


def _row(state: str, person: Person, since: str) -> tuple[str, str, str, str]:
    return state, clean_line(_id(person), 80), clean_line(person.name, 40), since
