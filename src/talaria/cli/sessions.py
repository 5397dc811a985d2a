"""`talaria sessions`: list, show and end sessions, through the running gateway or on the store itself."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import click

from talaria.cli.connect import running_gateway
from talaria.cli.lazy import PlainGroup
from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, common
from talaria.cli.session_source import GatewaySource, NoSource, SessionSource, StoreSource
from talaria.cli.session_text import describe_session, entry_lines, table

T = TypeVar("T")


@click.group(
    "sessions",
    cls=PlainGroup,
    later=("search", "export"),
    no_args_is_help=True,
    epilog="\b\nExamples:\n  talaria sessions list\n  talaria sessions show terminal",
)
@common
def command() -> None:
    """List, show and end sessions."""


@command.command("list", epilog="\b\nExample:\n  talaria sessions list --limit 100")
@common
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 500), help="How many at most.")
@click.pass_obj
def list_sessions(invocation: Invocation, limit: int) -> None:
    """The sessions, newest activity first."""
    found, has_more = _with_source(invocation, lambda source: source.sessions(limit))
    if not found:
        click.echo("There are no sessions yet.")
        return
    click.echo(table(found))
    if has_more:
        click.echo(f"… and more; --limit {min(limit * 5, 500)} shows more of them.", err=True)


@command.command("show", epilog="\b\nExample:\n  talaria sessions show terminal")
@common
@click.argument("session", metavar="NAME_OR_ID")
@click.pass_obj
def show_session(invocation: Invocation, session: str) -> None:
    """Print what was said in a session."""

    async def show(source: SessionSource) -> None:
        found = await source.session(session)
        click.echo(describe_session(found))
        async for entry in source.entries(found.id):
            for line in entry_lines(entry):
                click.echo(line)

    _with_source(invocation, show)


@command.command("end", epilog="\b\nExample:\n  talaria sessions end terminal")
@common
@click.argument("session", metavar="NAME_OR_ID")
@click.pass_obj
def end_session(invocation: Invocation, session: str) -> None:
    """End a session. Its history stays."""
    ended = _with_source(invocation, lambda source: source.end(session))
    click.echo(f"Ended {ended.id}.")


def _with_source(invocation: Invocation, use: Callable[[SessionSource], Awaitable[T]]) -> T:
    async def run() -> T:
        async with _open(invocation) as source:
            return await use(source)

    return run_loop(run())


@asynccontextmanager
async def _open(invocation: Invocation) -> AsyncIterator[SessionSource]:
    """Without a gateway the store is opened under the home's lock; nothing is resumed, no model is called."""
    home = invocation.home()
    async with running_gateway(home, os.environ) as client:
        if client is not None:
            yield GatewaySource(client)
            return
    from talaria.cli.offline import offline_store
    from talaria.config.load import load
    from talaria.core.clock import SystemClock
    from talaria.turns.ending import SessionEnds
    from talaria.workspace.workspaces import ChatWorkspaces

    settings = load(home.path, os.environ).settings
    async with offline_store(home, settings) as store:
        if store is None:
            yield NoSource()
            return
        ends = SessionEnds(ChatWorkspaces(home.path), SystemClock(), release=lambda session_id: None)
        yield StoreSource(store, settings.agent.name, ends)
