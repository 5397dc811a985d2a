"""`talaria pair`: lets people in and out, through the running gateway or directly in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from talaria.access.pairing import PairingAdmin
from talaria.channels.console.gateway_client import GatewayClient
from talaria.channels.descriptor import pairing_channels
from talaria.cli.home_gateway import GatewayOrStore, ask_home
from talaria.cli.options import Invocation, group
from talaria.cli.text import columns, when
from talaria.core.access import Paired, PairingList, Person
from talaria.core.clock import SystemClock
from talaria.core.display import clean_line
from talaria.core.errors import BadRequest, NotFound, TalariaError
from talaria.parts import PARTS
from talaria.store.memory import MemoryStore

T = TypeVar("T")
Admin = PairingAdmin | GatewayClient
_CHANNELS = pairing_channels(PARTS)


@group("pair", "talaria pair list", "talaria pair approve K7QD-93MX-4TZA")
def command() -> None:
    """Let people in who write to the agents from a chat platform, and out again."""


@command.verb("list", "talaria pair list")
def _list(invocation: Invocation) -> None:
    """List who is paired, and who waits for it."""
    found = _with_admin(invocation, lambda admin: admin.listing())
    if not found.paired and not found.requests:
        click.echo("Nobody is paired, and nobody waits. Ids in `allowed` in config.toml need no pairing.")
        return
    rows = [
        *(_row("paired", each.person, f"since {when(each.paired_at)}") for each in found.paired),
        *(_row("waits", each.person, f"until {when(each.expires_at)}") for each in found.requests),
    ]
    click.echo(columns([("", "ID", "NAME", ""), *rows]))


@command.verb("approve", "talaria pair approve K7QD-93MX-4TZA")
@click.argument("code", nargs=-1, required=True, metavar="CODE")
def _approve(invocation: Invocation, code: tuple[str, ...]) -> None:
    """Let in the person who was given this code."""
    home = invocation.find_home().path

    async def approve(admin: Admin) -> Paired:
        try:
            return await admin.approve(" ".join(code))
        except TalariaError as error:
            if error.type != NotFound.type:
                raise
            raise NotFound(error.user_text, f"{error.hint} This is about the home {home}.") from error

    paired = _with_admin(invocation, approve)
    click.echo(f"Paired {_named(paired.person)}: the gateway answers them from now on.")


@command.verb("revoke", f"talaria pair revoke {_CHANNELS[0]}:123456789")
@click.argument("user", metavar="ID")
def _revoke(invocation: Invocation, user: str) -> None:
    """Stop answering a person. ID is as `pair list` shows it; the number alone is enough."""

    async def revoke(admin: Admin) -> Paired:
        person = _find(await admin.listing(), user)
        return await admin.revoke(person.channel, person.user_id)

    paired = _with_admin(invocation, revoke)
    click.echo(f"{_named(paired.person)} is not paired any more. A turn that is already running goes on.")


@command.verb("invite", f"talaria pair invite {_CHANNELS[0]}")
@click.argument("channel")
def _invite(invocation: Invocation, channel: str) -> None:
    """Make a code that lets the first person who presents it in, without approval."""
    invitation = _with_admin(invocation, lambda admin: admin.invite(channel), make=True)
    click.echo(f"/start {invitation.code}")
    click.echo(
        f"The first person who sends this to the bot on {channel} is paired. It works once, "
        f"until {when(invitation.expires_at)}.",
        err=True,
    )


class _NoPairings(PairingAdmin):
    """The pairings of a home without a database: there are none, and no requests."""

    def __init__(self, database: Path) -> None:
        super().__init__(MemoryStore(SystemClock()).pairings, _CHANNELS)
        self._database = database

    async def approve(self, text: str) -> Paired:
        try:
            return await super().approve(text)
        except NotFound as error:
            folder = self._database.parent
            missing = f"database {self._database}" if folder.exists() else f"folder {folder}"
            raise NotFound(
                f"No request has this code: there is no {missing}.",
                "No gateway has run there. Name the home of yours with --home or TALARIA_HOME.",
            ) from error


def _with_admin(invocation: Invocation, use: Callable[[Admin], Awaitable[T]], *, make: bool = False) -> T:
    """Return what `use` returns, given the running gateway or the pairings in the store."""

    def at(found: GatewayOrStore) -> Awaitable[T]:
        if isinstance(found, GatewayClient):
            return use(found)
        if isinstance(found, Path):
            return use(_NoPairings(found))
        return use(PairingAdmin(found.pairings, _CHANNELS))

    return ask_home(invocation, at, make=make)


def _find(listing: PairingList, user: str) -> Person:
    """Return the paired person with this id. Raises `NotFound`; `BadRequest` if several channels have it."""
    people = [each.person for each in listing.paired]
    found = [person for person in people if user in (person.user_id, _id(person))]
    if not found:
        raise NotFound(
            f"Nobody is paired as {user}.",
            "`talaria pair list` shows who is; ids in an `allowed` list are removed in config.toml.",
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
