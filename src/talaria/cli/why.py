"""`talaria why ID`: what happened to a message, its turn and its reply, from the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click
import msgspec

from talaria.channels.console.gateway_client import GatewayClient
from talaria.channels.http.views import ExplainedTurn, explain_turn
from talaria.cli.home_gateway import GatewayOrStore, ask_home
from talaria.cli.options import Invocation, verb
from talaria.core.display import clean_line
from talaria.core.errors import NotFound


@verb(
    "why",
    "talaria why turn_01m7gjkmr77btvvjyj8f29m8h7",
    "talaria why 4711                 the platform's id of a message or of a reply",
    "talaria why reply:12             a reply by its number in the outbox",
)
@click.argument("id")
@click.option("--json", "as_json", is_flag=True, help="Print the turn with its story as JSON.")
def command(invocation: Invocation, id: str, as_json: bool) -> None:
    """Tell the whole story of a turn: received, queued, begun, each step, settled, delivered.

    ID is a turn's id, the platform's id of a message or of a reply to it, or reply:N.
    """

    async def tell(found: GatewayOrStore) -> ExplainedTurn:
        if isinstance(found, Path):
            raise NotFound(f"There is no turn {id}: {found} is empty.", "Name the home with --home.")
        if isinstance(found, GatewayClient):
            return await found.explain(id)
        return await explain_turn(found.histories, id)

    explained = ask_home(invocation, tell)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(explained)).decode())
        return
    for line in _lines(explained):
        click.echo(line)


def _lines(explained: ExplainedTurn) -> Iterator[str]:
    yield f"{explained.id}  {explained.state}, session {explained.session_id}"
    for event in explained.story:
        yield f"  {_when(event.at)}  {clean_line(event.text, 500)}"
    if explained.also:
        yield f"Also called so: {', '.join(explained.also)}"


def _when(at: float | None) -> str:
    if at is None:
        return "-".ljust(23)
    moment = datetime.fromtimestamp(at).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03}"
