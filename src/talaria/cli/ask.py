"""`talaria ask`: one message from the command line or stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from talaria.channels.console.ask import AskRequest, ask
from talaria.channels.console.plain import WAITING, PlainRenderer, StatusLine
from talaria.cli.home_gateway import connect
from talaria.cli.options import F, Invocation, run_loop, verb
from talaria.core.ids import is_session_name


def files_option(text: str) -> Callable[[F], F]:
    kind = click.Path(path_type=Path)
    return click.option("--file", "files", metavar="PATH", multiple=True, type=kind, help=text)


@verb(
    "ask",
    'talaria ask "What is the capital of France?"',
    'talaria ask --session work "And what did I ask you before?"',
    'talaria ask --file report.pdf --file photo.jpg "What do these say?"',
    "git diff | talaria ask -",
)
@click.argument("text", required=False)
@click.option("--session", metavar="NAME", help="Continue this session (default: a new one each time).")
@click.option("--model", metavar="NAME", help="A model, an alias or an agent, for a new session.")
@files_option("Send a file along; a model that sees gets pictures.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole turn as JSON.")
def command(  # noqa: PLR0917 - click passes them by name
    invocation: Invocation,
    text: str | None,
    session: str | None,
    model: str | None,
    files: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Send one message and print the reply.

    TEXT is read from stdin if it is missing or `-`. If the turn fails, stderr says why and the status is 1.
    """
    check_session_name(session)
    message = _read_stdin() if text is None or text == "-" else text
    if not message.strip() and not files:
        raise click.UsageError("There is nothing to send: the message is empty.")
    request = AskRequest(message, session or "", model or "", files)

    async def run() -> None:
        async with StatusLine(sys.stderr, "" if as_json else WAITING) as line:
            notes = sys.stderr if sys.stderr.isatty() and not as_json else None
            renderer = PlainRenderer(sys.stdout, notes, is_live=sys.stdout.isatty(), line=line)
            async with connect(invocation.home(), os.environ, session) as client:
                json_out = sys.stdout if as_json else None
                await ask(client, request, renderer, invocation.command_line, json_out)

    run_loop(run())


def check_session_name(name: str | None) -> None:
    if name is not None and not is_session_name(name) and not name.startswith("ses_"):
        raise click.UsageError(
            f"{name!r} is no session name: use 1 to 128 letters, digits, dots, dashes and underscores."
        )


def _read_stdin() -> str:
    if sys.stdin.isatty():
        click.echo("Write the message, then press Ctrl-D.", err=True)
    return sys.stdin.buffer.read().decode("utf-8", "replace")
