"""`talaria why ID`: the whole story of a message, its turn and its reply, from the ledger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, common

if TYPE_CHECKING:
    from talaria.channels.http.views import ToldTurn

EXAMPLES = """\b
Examples:
  talaria why turn_01m7gjkmr77btvvjyj8f29m8h7
  talaria why 4711                 the platform's id of a message or of a reply
  talaria why reply:12             a reply by its number in the outbox
"""


@click.command("why", epilog=EXAMPLES)
@common
@click.argument("id")
@click.option("--json", "as_json", is_flag=True, help="Print the turn with its story as JSON.")
@click.pass_obj
def command(invocation: Invocation, id: str, as_json: bool) -> None:
    """Tell the whole story of a turn: received, queued, begun, each step, settled, delivered.

    ID is a turn's id, the platform's id of a message or of a reply to it, or reply:N.
    """
    import msgspec

    told = run_loop(_find(invocation, id))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(told)).decode())
        return
    for line in lines(told):
        click.echo(line)


async def _find(invocation: Invocation, name: str) -> ToldTurn:
    """From the running gateway, or from the store under the home's lock when none runs."""
    import msgspec

    from talaria.app import database_path
    from talaria.channels.http.story import StoryDesk
    from talaria.channels.http.views import ToldTurn
    from talaria.cli.connect import running_gateway
    from talaria.config.load import load
    from talaria.core.clock import SystemClock
    from talaria.core.errors import NotFound
    from talaria.store.home_lock import HomeLock
    from talaria.store.sqlite.store import SqliteStore

    home = invocation.home()
    async with running_gateway(home, os.environ) as client:
        if client is not None:
            return msgspec.json.decode(await client.turn(name), type=ToldTurn)
    database = database_path(home, load(home.path, os.environ).settings)
    if _size(database) == 0:
        raise NotFound(f"There is no turn {name}: {database} is empty.", "Name the home with --home.")
    with HomeLock(home.path):
        async with await SqliteStore.open(database, SystemClock()) as store:
            return await StoryDesk(store.histories).tell(name)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def lines(told: ToldTurn) -> Iterator[str]:
    from talaria.channels.console.clean import clean_line

    yield f"{told.id}  {told.state}, session {told.session_id}"
    for chapter in told.story:
        yield f"  {_when(chapter.at)}  {clean_line(chapter.text, 500)}"
    if told.also:
        yield f"Also called so: {', '.join(told.also)}"


def _when(at: float | None) -> str:
    if at is None:
        return "-".ljust(23)
    moment = datetime.fromtimestamp(at).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03}"
