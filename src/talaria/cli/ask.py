"""`talaria ask`: one message from the command line or stdin."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import click

from talaria.cli.home_gateway import connect
from talaria.cli.options import F, Invocation, run_loop, verb
from talaria.console.plain import WAITING, AskRequest, PlainRenderer, StatusLine, ask
from talaria.core.ids import is_session_name
from talaria.core.units import format_size

STDIN_SECONDS = 10.0  # for the first byte of a pipe, if TEXT is given too
MAX_STDIN = 16 << 20  # the gateway has its own limit, http.max_body


def files_option(text: str) -> Callable[[F], F]:
    kind = click.Path(path_type=Path)
    return click.option("--file", "files", metavar="PATH", multiple=True, type=kind, help=text)


@verb(
    "ask",
    'talaria ask "What is the capital of France?"',
    'talaria ask --session work "And what did I ask you before?"',
    'talaria ask --file report.pdf --file photo.jpg "What do these say?"',
    'git diff | talaria ask "Is this a good change?"',
    "talaria ask < question.txt",
)
@click.argument("text", required=False)
@click.option("--session", metavar="NAME", help="Continue this session (default: a new one each time).")
@click.option("--model", metavar="NAME", help="A model, an alias or an agent, for a new session.")
@files_option("Send a file along; a model that sees gets pictures.")
@click.option(
    "--stdin/--no-stdin", "stdin", default=None, help="Send stdin along, or never (default: if it has text)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole turn as JSON.")
def command(  # noqa: PLR0917 - click passes them by name
    invocation: Invocation,
    text: str | None,
    session: str | None,
    model: str | None,
    files: tuple[Path, ...],
    stdin: bool | None,
    as_json: bool,
) -> None:
    """Send one message and print the reply.

    With TEXT, what comes through a pipe or from a file on stdin follows it in a block <stdin>. Without TEXT,
    or with `-`, stdin is the message. If the turn fails, stderr says why and the status is 1.
    """
    check_session_name(session)
    message = compose(text, stdin)
    if not message.strip() and not files:
        raise click.UsageError("There is nothing to send: the message is empty.")
    request = AskRequest(message, session or "", model or "", files)
    home = invocation.home()

    def tell(text: str) -> None:
        click.echo(text, err=True)

    async def run() -> None:
        async with StatusLine(sys.stderr, "" if as_json else WAITING) as line:
            notes = sys.stderr if sys.stderr.isatty() and not as_json else None
            renderer = PlainRenderer(sys.stdout, notes, is_live=sys.stdout.isatty(), line=line)
            async with connect(home, os.environ, session) as client:
                json_out = sys.stdout if as_json else None
                await ask(client, request, renderer, invocation.command_line, json_out, tell=tell)

    run_loop(run())


def check_session_name(name: str | None) -> None:
    if name is not None and not is_session_name(name) and not name.startswith("ses_"):
        raise click.UsageError(
            f"{name!r} is not a session name: use 1 to 128 letters, digits, dots, dashes and underscores."
        )


# -- stdin


def compose(text: str | None, stdin: bool | None) -> str:
    """Return the message of TEXT and stdin. `stdin` None sends along what comes; False reads nothing."""
    if text is None or text == "-":
        return "" if stdin is False else _read_message()
    piped = "" if stdin is False else read_piped(sys.stdin, None if stdin else STDIN_SECONDS)
    return f"{text}\n\n<stdin>\n{piped.rstrip()}\n</stdin>" if piped.strip() else text


def read_piped(stream: IO[str], seconds: float | None) -> str:
    """Return the text of a pipe or file; nothing for a terminal, or a device such as /dev/null.

    An inherited pipe may stay open and silent for ever, so the first byte is awaited for `seconds` only. From
    then on the whole text is read. None waits without end.
    """
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except OSError:  # no stream of the system
        return ""
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)):
        return ""
    if not select.select([stream.fileno()], [], [], seconds)[0]:
        click.echo(
            f"Nothing came through stdin within {seconds:g} seconds, so TEXT is sent alone. "
            "(--stdin waits longer, --no-stdin not at all.)",
            err=True,
        )
        return ""
    return _read(stream)


def _read_message() -> str:
    if sys.stdin.isatty():
        click.echo("Write the message, then press Ctrl-D.", err=True)
    return _read(sys.stdin)


def _read(stream: IO[str]) -> str:
    data = stream.buffer.read(MAX_STDIN + 1)  # type: ignore[attr-defined]  # of every text stream of a process
    if len(data) > MAX_STDIN:
        raise click.UsageError(
            f"stdin is larger than {format_size(MAX_STDIN)}. Write it to a file and send that with --file."
        )
    return bytes(data).decode("utf-8", "replace")
