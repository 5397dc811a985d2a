"""`talaria token`: makes, lists and revokes tokens, through the running gateway or directly in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from talaria.access.tokens import TokenAdmin
from talaria.channels.console.gateway_client import GatewayClient
from talaria.cli.home_gateway import GatewayOrStore, ask_home
from talaria.cli.options import Invocation, group
from talaria.cli.text import columns, when
from talaria.core.access import Role
from talaria.core.clock import SystemClock
from talaria.core.tokens import NamedToken
from talaria.core.units import parse_duration
from talaria.store.memory import MemoryStore

T = TypeVar("T")
Admin = TokenAdmin | GatewayClient


@group("token", "talaria token add phone --role chat", "talaria token list")
def command() -> None:
    """Make, list and revoke tokens for programs that call the HTTP API.

    A token has a role. `read` sees everything and changes nothing. `chat` has chats of its own and sees no
    others. `operate` may do everything.
    """


@command.verb("add", "talaria token add phone --role chat --expires 30d")
@click.argument("name")
@click.option("--role", required=True, type=click.Choice([role.value for role in Role]), help="Its rights.")
@click.option("--expires", metavar="DURATION", help="Ends it after so long, such as 30d; without it, never.")
def _add(invocation: Invocation, name: str, role: str, expires: str | None) -> None:
    """Make a token and print it, once. Only its hash is kept."""
    seconds = None if expires is None else _seconds(expires)
    fresh = _with_admin(invocation, lambda admin: admin.add_token(name, Role(role), seconds), make=True)
    click.echo(fresh.secret)
    until = f"until {when(fresh.token.expires_at)}" if fresh.token.expires_at else "until it is revoked"
    click.echo(
        f"The token {name} has the role {role}, {until}. It is not shown again. "
        "Programs send it as `Authorization: Bearer TOKEN`.",
        err=True,
    )


@command.verb("list", "talaria token list")
def _list(invocation: Invocation) -> None:
    """List the tokens. Their last use is told to the hour."""
    found = _with_admin(invocation, lambda admin: admin.tokens())
    if not found:
        text = "There are no tokens but the home's own. `talaria token add NAME --role ROLE` makes one."
        click.echo(invocation.spoken(text))
        return
    click.echo(columns([("NAME", "ROLE", "CREATED", "LAST USED", "EXPIRES"), *map(_row, found)]))


@command.verb("revoke", "talaria token revoke phone")
@click.argument("name")
def _revoke(invocation: Invocation, name: str) -> None:
    """End a token, from its next call on."""
    token = _with_admin(invocation, lambda admin: admin.revoke_token(name))
    click.echo(f"The token {token.name} is revoked. A turn that it began goes on.")


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


def _with_admin(invocation: Invocation, use: Callable[[Admin], Awaitable[T]], *, make: bool = False) -> T:
    """Return what `use` returns, given the running gateway or the tokens in the store."""

    def at(found: GatewayOrStore) -> Awaitable[T]:
        if isinstance(found, GatewayClient):
            return use(found)
        # A home without a database has no tokens.
        store = MemoryStore(SystemClock()) if isinstance(found, Path) else found
        return use(TokenAdmin(store.tokens))

    return ask_home(invocation, at, make=make)
