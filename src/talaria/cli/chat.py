"""`talaria chat`: the terminal chat."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from talaria import __version__
from talaria.channels.console.chat import Chat
from talaria.channels.console.client import GatewayClient
from talaria.cli.ask import check_session_name
from talaria.cli.connect import connect
from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, common, spoken
from talaria.config.home import Home
from talaria.core.errors import TalariaError

HISTORY = "chat.history"
EXAMPLES = """\b
Examples:
  talaria chat
  talaria chat --session work
"""


class Talk(msgspec.Struct, frozen=True):
    """What was asked for: `command_line` is how a person runs a verb here, `files` go with the first
    message."""

    session: str
    command_line: Callable[[str], str]
    files: tuple[Path, ...] = ()


@click.command("chat", epilog=EXAMPLES)
@common
@click.option(
    "--session", metavar="NAME", default="terminal", show_default=True, help="Which chat to go on in."
)
@click.option(
    "--file",
    "files",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Send a file along with the first message.",
)
@click.option("--dir", "folder", metavar="PATH", help="Work on this folder (not in this version yet).")
@click.pass_obj
def command(invocation: Invocation, session: str, files: tuple[Path, ...], folder: str | None) -> None:
    """Chat in the terminal.

    Goes through the running gateway, or runs one inside when there is none. Enter sends; Alt-Enter or a
    backslash before Enter begins another line; Ctrl-C cancels a running turn; Ctrl-D leaves.
    """
    check_session_name(session)
    if folder is not None:
        raise click.UsageError("`--dir` is not in this version yet.")
    talk = Talk(session, invocation.command_line, files)
    run_loop(_chat(invocation.home(), talk))


async def _chat(home: Home, talk: Talk) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        async with connect(home, os.environ) as client:
            await (_terminal if _is_terminal() else _piped)(client, home, talk)
    except asyncio.CancelledError:
        if task.uncancel():  # cancelled by someone else than the signals as well
            raise


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


async def _terminal(client: GatewayClient, home: Home, talk: Talk) -> None:
    from rich.console import Console
    from rich.text import Text

    from talaria.channels.console.clean import clean
    from talaria.channels.console.prompt import TerminalPrompt
    from talaria.channels.console.quiet import quiet_keyboard
    from talaria.channels.console.render import LiveView
    from talaria.models.local.manifest import TINY, is_built_in

    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(Text(clean(text), style="dim"))

    models = await _models(client)
    say(f"Talaria {__version__} · {_describe_model(client, models)} · chat “{talk.session}”")
    if is_built_in(_describe_model(client, models).rpartition("/")[2]):
        say(spoken(TINY))
    say("Enter sends, /help lists commands, Ctrl-D leaves.")
    prompt = TerminalPrompt(home.path / HISTORY, models or ())
    chat = Chat(
        client,
        talk.session,
        prompt,
        views=lambda is_command: LiveView(console, is_command=is_command),
        say=say,
        guard=lambda: quiet_keyboard(sys.stdin.fileno()),
        command_line=talk.command_line,
        files=talk.files,
    )
    await chat.run()


async def _piped(client: GatewayClient, home: Home, talk: Talk) -> None:
    from talaria.channels.console.prompt import PipedLines
    from talaria.channels.console.render import PlainView

    def say(text: str) -> None:
        click.echo(text, err=True)

    lines = PipedLines(sys.stdin.fileno())
    chat = Chat(
        client,
        talk.session,
        lines,
        views=lambda _: PlainView(sys.stdout),
        say=say,
        command_line=talk.command_line,
        files=talk.files,
    )
    await chat.run()


async def _models(client: GatewayClient) -> list[str] | None:
    """What may be asked for by name; None when the gateway does not say."""
    try:
        return await client.models()
    except TalariaError:
        return None


def _describe_model(client: GatewayClient, models: list[str] | None) -> str:
    if models is None:
        return "gateway at " + client.url
    return next((name for name in models if "/" in name), "no model is configured yet")
