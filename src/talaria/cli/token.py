"""`talaria token`: creates, lists and revokes tokens, through the running gateway or in the store."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from talaria.access.credentials import FreshToken
from talaria.cli.operations import Verb, add_verbs
from talaria.cli.options import Invocation, group
from talaria.cli.text import columns, when
from talaria.core.access import NamedToken, Role
from talaria.core.clock import SystemClock
from talaria.core.units import parse_duration
from talaria.operations.access import AddTokenBody, RevokeTokenBody, TokenList
from talaria.operations.operation import Nothing


@group("token", "talaria token add phone --role chat", "talaria token list")
def command() -> None:
    """Create, list and revoke tokens for programs that call the HTTP API.

    Each token has a role. `read` can see everything and change nothing. `chat` can use its own chats only.
    `operate` can do everything.
    """


def _read_expiry(invocation: Invocation, wanted: AddTokenBody, options: dict[str, Any]) -> AddTokenBody:
    expires = options["expires"]
    seconds = None if expires is None else _seconds(expires)
    return msgspec.structs.replace(wanted, role=Role(wanted.role), seconds=seconds)


def _show_fresh(invocation: Invocation, wanted: AddTokenBody, fresh: FreshToken) -> None:
    click.echo(fresh.secret)
    until = f"until {when(fresh.token.expires_at)}" if fresh.token.expires_at else "until it is revoked"
    click.echo(
        f"The token {wanted.name} has the role {wanted.role}, {until}. It is not shown again. "
        "Programs send it as `Authorization: Bearer TOKEN`.",
        err=True,
    )


def _show_list(invocation: Invocation, wanted: Nothing, found: TokenList) -> None:
    if not found.tokens:
        text = "There are no tokens except the home's own. `talaria token add NAME --role ROLE` creates one."
        click.echo(invocation.spoken(text))
        return
    click.echo(columns([("NAME", "ROLE", "CREATED", "LAST USED", "EXPIRES"), *map(_row, found.tokens)]))


def _show_revoked(invocation: Invocation, wanted: RevokeTokenBody, token: NamedToken) -> None:
    click.echo(f"The token {token.name} is revoked. A turn that it started continues.")


def _row(token: NamedToken) -> tuple[str, str, str, str, str]:
    used = when(token.used_at) if token.used_at else "never"
    if token.expires_at is None:
        expires = "never"
    else:
        is_over = token.has_expired(SystemClock().now())
        expires = when(token.expires_at) + (" (expired)" if is_over else "")
    return token.name, token.role.value, when(token.created_at), used, expires


def _seconds(expires: str) -> float:
    try:
        return parse_duration(expires).total_seconds()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--expires") from None


add_verbs(
    command,
    {
        "add": Verb(
            _read_expiry,
            _show_fresh,
            (
                click.Option(
                    ["--expires"],
                    metavar="DURATION",
                    help="Lifetime of the token, such as 30d. Default: no expiry.",
                ),
            ),
            frozenset({"seconds"}),
            makes_home=True,
        ),
        "list": Verb(show=_show_list),
        "revoke": Verb(show=_show_revoked),
    },
)
