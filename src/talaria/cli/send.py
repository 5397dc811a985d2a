"""`talaria send`: sends a message to a chat without running an agent."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import click

from talaria.cli.ask import compose, files_option
from talaria.cli.home_gateway import connect
from talaria.cli.options import Invocation, run_loop, verb
from talaria.operations.turns import SendBody, send_message


@verb(
    "send",
    'talaria send home "The backup is done."',
    'talaria send home --file report.pdf "Here is the report."',
    "df -h | talaria send home -",
)
@click.argument("chat")
@click.argument("text", required=False)
@files_option("Attach a file.")
def command(invocation: Invocation, chat: str, text: str | None, files: tuple[Path, ...]) -> None:
    """Send a message to CHAT, which is a chat key, or a session name or id.

    No agent runs; the chat's agent sees the message in its log. If TEXT is `-`, the message is read from
    stdin. Prints an id; `talaria why ID` shows whether the message was delivered.
    """
    message = "" if text is None and files else compose(text, stdin=None if text in (None, "-") else False)
    if not message.strip() and not files:
        raise click.UsageError("There is nothing to send: the message is empty.")
    home = invocation.home()

    async def run() -> str:
        async with connect(home, os.environ) as client:
            ids = [await client.upload(path) for path in files]
            sent = await client.carry_out(send_message, SendBody(chat, message, ids), uuid.uuid4().hex)
            return sent.id

    click.echo(run_loop(run()))
