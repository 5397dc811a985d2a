"""`talaria chat`: the terminal chat."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import click

from talaria import __version__
from talaria.channels.console.chat import Chat
from talaria.channels.console.client import GatewayClient
from talaria.cli.ask import check_session_name
from talaria.cli.connect import connect
from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, common
from talaria.config.home import Home
from talaria.core.errors import TalariaError

HISTORY = "chat.history"
EXAMPLES = """\b
Examples:
  talaria chat
  talaria chat --session work
"""


@click.command("chat", epilog=EXAMPLES)
@common
@click.option(
    "--session", metavar="NAME", default="terminal", show_default=True, help="Which chat to go on in."
)
@click.option("--dir", "folder", metavar="PATH", help="Work on this folder (not in this version yet).")
@click.pass_obj
def command(invocation: Invocation, session: str, folder: str | None) -> None:
    """Chat in the terminal.

    Goes through the running gateway, or runs one inside when there is none. Enter sends; Alt-Enter or a
    backslash before Enter begins another line; Ctrl-C cancels a running turn; Ctrl-D leaves.
    """
    check_session_name(session)
    if folder is not None:
        raise click.UsageError("`--dir` is not in this version yet.")
    run_loop(_chat(invocation, session))


async def _chat(invocation: Invocation, session: str) -> None:
    home, start_command = invocation.home(), invocation.command_line("serve")
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        async with connect(home, os.environ) as client:
            await (_terminal if _is_terminal() else _piped)(client, home, session, start_command)
    except asyncio.CancelledError:
        if task.uncancel():  # cancelled by someone else than the signals as well
            raise


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


async def _terminal(client: GatewayClient, home: Home, session: str, start_command: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from talaria.channels.console.clean import clean
    from talaria.channels.console.prompt import TerminalPrompt
    from talaria.channels.console.quiet import quiet_keyboard
    from talaria.channels.console.render import LiveView

    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(Text(clean(text), style="dim"))

    models = await _models(client)
    say(f"Talaria {__version__} · {_describe_model(client, models)} · chat “{session}”")
    say("Enter sends, /help lists commands, Ctrl-D leaves.")
    prompt = TerminalPrompt(home.path / HISTORY, models or ())
    chat = Chat(
        client,
        session,
        prompt,
        views=lambda is_command: LiveView(console, is_command=is_command),
        say=say,
        guard=lambda: quiet_keyboard(sys.stdin.fileno()),
        start_command=start_command,
    )
    await chat.run()


async def _piped(client: GatewayClient, home: Home, session: str, start_command: str) -> None:
    from talaria.channels.console.prompt import PipedLines
    from talaria.channels.console.render import PlainView

    def say(text: str) -> None:
        click.echo(text, err=True)

    lines = PipedLines(sys.stdin.fileno())
    chat = Chat(
        client,
        session,
        lines,
        views=lambda _: PlainView(sys.stdout),
        say=say,
        start_command=start_command,
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
