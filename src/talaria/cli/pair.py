"""`talaria pair`: approves people and revokes their access, by the running gateway or in the store."""

from __future__ import annotations

import click

from talaria.access.authorizer import Invitation
from talaria.channels.descriptor import pairing_channels
from talaria.cli.operations import Carrier, Verb, add_verbs, ask_each
from talaria.cli.options import Invocation, group
from talaria.cli.text import columns, when
from talaria.core.access import Paired, PairingList, Person
from talaria.core.errors import BadRequest, NotFound
from talaria.core.text import clean_line
from talaria.operations.access import (
    ApproveBody,
    InviteBody,
    RevokeBody,
    list_pairings,
    revoke_pairing,
)
from talaria.operations.operation import Nothing
from talaria.parts import PARTS


@group("pair", "talaria pair list", "talaria pair approve K7QD-93MX-4TZA")
def command() -> None:
    """Approve people who message your agents from a chat platform, and revoke their access."""


def _show_list(invocation: Invocation, wanted: Nothing, found: PairingList) -> None:
    if not found.paired and not found.requests:
        click.echo("Nobody is paired, and nobody waits. Ids in `allowed` in config.toml need no pairing.")
        return
    rows = [
        *(_row("paired", each.person, f"since {when(each.paired_at)}") for each in found.paired),
        *(_row("waits", each.person, f"until {when(each.expires_at)}") for each in found.requests),
    ]
    click.echo(columns([("", "ID", "NAME", ""), *rows]))


def _show_paired(invocation: Invocation, wanted: ApproveBody, paired: Paired) -> None:
    click.echo(f"Paired {_named(paired.person)}: the gateway answers them from now on.")


def _show_invitation(invocation: Invocation, wanted: InviteBody, invitation: Invitation) -> None:
    click.echo(f"/start {invitation.code}")
    click.echo(
        f"The first person who sends this to the bot on {wanted.channel} is paired. It works once, "
        f"until {when(invitation.expires_at)}.",
        err=True,
    )


add_verbs(
    command,
    {
        "list": Verb(show=_show_list),
        "approve": Verb(show=_show_paired),
        "invite": Verb(show=_show_invitation, makes_home=True),
    },
)


@command.verb("revoke", f"talaria pair revoke {pairing_channels(PARTS)[0]}:123456789")
@click.argument("user", metavar="ID")
def _revoke(invocation: Invocation, user: str) -> None:
    """Revoke a person's access. ID is as shown by `pair list`; the number alone is enough."""

    async def revoke(carry_out: Carrier) -> Paired:
        person = _find(await carry_out(list_pairings, Nothing()), user)
        return await carry_out(revoke_pairing, RevokeBody(person.channel, person.user_id))

    paired = ask_each(invocation, revoke)
    click.echo(f"{_named(paired.person)} is not paired any more. A turn that is already running continues.")


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
