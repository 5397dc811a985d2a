"""`talaria why`: recent messages, and the history of one with its turn and its reply."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import click
import msgspec

from talaria.cli.operations import ask
from talaria.cli.options import Invocation, verb
from talaria.cli.text import columns, when
from talaria.core.ids import EPHEMERAL, ChatAddress
from talaria.core.text import clean_line, cut_to_fit, visible_json
from talaria.operations.turns import ExplainedTurn, TurnKey, TurnLine, TurnQuery, list_turns, show_turn

_CHAT_WIDTH, _TEXT_WIDTH = 32, 40


@verb(
    "why",
    "talaria why                      the last messages, with their ids",
    "talaria why turn_01m7gjkmr77btvvjyj8f29m8h7",
    "talaria why 4711                 the platform's id of a message or of a reply",
    "talaria why reply:12             a reply by its number in the outbox",
)
@click.argument("id", required=False)
@click.option(
    "-n",
    "--limit",
    default=20,
    show_default=True,
    type=click.IntRange(1, 200),
    help="Maximum number of messages.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(invocation: Invocation, id: str | None, limit: int, as_json: bool) -> None:
    """Show the history of a turn: received, queued, started, each step, finished, delivered.

    ID is a turn id, the platform's id of a message or reply, or reply:N. Without ID, list recent messages
    with their ids, newest first. In a chat, /why shows the messages of that chat.
    """
    if id is None:
        _list(invocation, limit, as_json)
    else:
        _tell(invocation, id, as_json)


def _list(invocation: Invocation, limit: int, as_json: bool) -> None:
    listed = ask(invocation, list_turns, TurnQuery(limit))
    if as_json:
        click.echo(visible_json(msgspec.json.format(msgspec.json.encode(listed))))
    elif not listed.items:
        click.echo("There are no messages yet.")
    else:
        click.echo(columns([("TIME", "CHAT", "STATE", "MESSAGE", "ID"), *map(_row, listed.items)]))
        click.echo(invocation.spoken("`talaria why ID` shows the history of one."), err=True)


def _row(turn: TurnLine) -> tuple[str, ...]:
    address = ChatAddress.parse(turn.chat_key)
    if address.kind == EPHEMERAL:  # its last part is the session, which no person has named
        owner = address.chat if address.thread is not None else ""
        chat = f"{address.agent}:http /v1 {owner}".rstrip()
    else:
        chat = turn.chat_key.removeprefix("agent:")
    text = cut_to_fit(turn.text, _TEXT_WIDTH) or "(no text)"
    return when(turn.accepted_at), cut_to_fit(chat, _CHAT_WIDTH), turn.state, text, turn.id


def _tell(invocation: Invocation, id: str, as_json: bool) -> None:
    explained = ask(invocation, show_turn, TurnKey(id))
    if as_json:
        click.echo(visible_json(msgspec.json.format(msgspec.json.encode(explained))))
        return
    for line in _lines(explained):
        click.echo(invocation.spoken(line))


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
