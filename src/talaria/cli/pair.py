"""`talaria pair`: who may speak to the agents, through the running gateway or on the store itself."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from talaria.cli.columns import columns, when
from talaria.cli.connect import running_gateway
from talaria.cli.lazy import PlainGroup
from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, common

if TYPE_CHECKING:
    from talaria.access.desk import Invitation
    from talaria.core.access import Paired, PairingList, Person

T = TypeVar("T")


class Desk(Protocol):
    """What a `PairingDesk` and a client of the gateway both do."""

    async def listing(self) -> PairingList: ...

    async def approve(self, code: str, /) -> Paired: ...

    async def revoke(self, channel: str, user: str, /) -> Paired: ...

    async def invite(self, channel: str) -> Invitation: ...


@click.group(
    "pair",
    cls=PlainGroup,
    no_args_is_help=True,
    epilog="\b\nExamples:\n  talaria pair list\n  talaria pair approve K7QD-93MX-4TZA",
)
@common
def command() -> None:
    """Let people in who write to the agents from a chat platform, and out again."""


@command.command("list", epilog="\b\nExample:\n  talaria pair list")
@common
@click.pass_obj
def list_people(invocation: Invocation) -> None:
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


@command.command("approve", epilog="\b\nExample:\n  talaria pair approve K7QD-93MX-4TZA")
@common
@click.argument("code", nargs=-1, required=True, metavar="CODE")
@click.pass_obj
def approve_code(invocation: Invocation, code: tuple[str, ...]) -> None:
    """Let in whoever was given this code."""
    paired = _at_desk(invocation, lambda desk: desk.approve(" ".join(code)))
    click.echo(f"Paired {_named(paired.person)}: they are answered from now on.")


@command.command("revoke", epilog="\b\nExample:\n  talaria pair revoke telegram:123456789")
@common
@click.argument("user", metavar="ID")
@click.pass_obj
def revoke_person(invocation: Invocation, user: str) -> None:
    """Answer someone no longer. ID is as `pair list` shows it; the number alone is enough."""

    async def revoke(desk: Desk) -> Paired:
        person = _find(await desk.listing(), user)
        return await desk.revoke(person.channel, person.user_id)

    paired = _at_desk(invocation, revoke)
    click.echo(f"{_named(paired.person)} is not paired any more. A turn that runs already goes on.")


@command.command("invite", epilog="\b\nExample:\n  talaria pair invite telegram")
@common
@click.argument("channel")
@click.pass_obj
def invite_person(invocation: Invocation, channel: str) -> None:
    """Make a code that lets its first bearer in, without approval."""
    invitation = _at_desk(invocation, lambda desk: desk.invite(channel), make=True)
    click.echo(f"/start {invitation.code}")
    click.echo(
        f"Whoever first sends this to the bot on {channel} is paired. It is good once, "
        f"until {when(invitation.expires_at)}.",
        err=True,
    )


def _at_desk(invocation: Invocation, use: Callable[[Desk], Awaitable[T]], *, make: bool = False) -> T:
    async def run() -> T:
        async with _open(invocation, make=make) as desk:
            return await use(desk)

    return run_loop(run())


@asynccontextmanager
async def _open(invocation: Invocation, *, make: bool) -> AsyncIterator[Desk]:
    home = invocation.home()
    async with running_gateway(home, os.environ) as client:
        if client is not None:
            yield client
            return
    from talaria.access.desk import PairingDesk
    from talaria.cli.offline import offline_store
    from talaria.config.load import load
    from talaria.core.clock import SystemClock
    from talaria.store.memory_pairing import MemoryPairings

    async with offline_store(home, load(home.path, os.environ).settings, make=make) as store:
        # A home without a database: nobody is paired, and nobody waits.
        yield PairingDesk(MemoryPairings(SystemClock()) if store is None else store.pairings)


def _find(listing: PairingList, user: str) -> Person:
    """Raises `NotFound` and, for a number that two channels know, `BadRequest`."""
    from talaria.core.errors import BadRequest, NotFound

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
    from talaria.channels.console.clean import clean_line

    name = clean_line(person.name, 40)
    return clean_line(_id(person)) + (f" ({name})" if name else "")


def _row(state: str, person: Person, when: str) -> tuple[str, str, str, str]:
    from talaria.channels.console.clean import clean_line

    return state, clean_line(_id(person), 80), clean_line(person.name, 40), when
