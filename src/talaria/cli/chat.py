"""`talaria chat`: the terminal chat."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from talaria.cli.ask import check_session_name, files_option
from talaria.cli.home_gateway import connect
from talaria.cli.options import Invocation, run_loop, verb
from talaria.config.home import Home
from talaria.console.chat import Screen, TerminalChat
from talaria.console.gateway_client import GatewayClient
from talaria.core.errors import TalariaError
from talaria.core.program import spoken, this_version
from talaria.models.settings import LOCAL
from talaria.operations.sessions import ProjectBody, SessionKey, show_session, use_project

HISTORY = "chat.history"


@verb("chat", "talaria chat", "talaria chat --session work", "talaria chat --session site --dir ~/site")
@click.option(
    "--session", metavar="NAME", default="terminal", show_default=True, help="The chat to continue."
)
@click.option(
    "--dir",
    "folder",
    metavar="PATH",
    type=click.Path(file_okay=False, exists=True, resolve_path=True),
    help="Work on this project's folder, from now on and in this chat.",
)
@click.option(
    "--own-folder", "is_own", is_flag=True, help="Leave the project: work on the chat's own folder."
)
@files_option("Send a file along with the first message.")
def command(
    invocation: Invocation, session: str, folder: str | None, is_own: bool, files: tuple[Path, ...]
) -> None:
    """Chat in the terminal.

    Uses the running gateway, or runs one inside if there is none. Enter sends; Alt-Enter or a backslash
    before Enter begins another line; Ctrl-C cancels a running turn; Ctrl-D leaves.
    """
    check_session_name(session)
    if is_own and folder is not None:
        raise click.UsageError("--dir and --own-folder exclude each other.")
    run_loop(_chat(invocation, session, "" if is_own else folder, files))


async def _chat(invocation: Invocation, session: str, folder: str | None, files: tuple[Path, ...]) -> None:
    task = asyncio.current_task()
    assert task is not None
    _cancel_on_signals(task)
    is_dumb = os.environ.get("TERM") in (None, "", "dumb")
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb
    home = invocation.home()
    if is_terminal:  # imported before a gateway runs inside: the slow imports would hold its event loop
        import talaria.console.message_input
        import talaria.console.terminal  # noqa: F401
    try:
        async with connect(home, os.environ, session) as client:
            if folder is not None:
                folder = (await client.carry_out(use_project, ProjectBody(x=session, folder=folder))).folder
            screen = await _terminal(client, home, session) if is_terminal else _pipe()
            if folder is not None:
                screen.say(f"This chat works on {folder}.")
            with _printing_above() if is_terminal else nullcontext():
                await TerminalChat(client, session, screen, invocation.command_line, files).run()
    except asyncio.CancelledError:
        if task.uncancel():  # also cancelled for another reason than a signal
            raise


def _printing_above() -> AbstractContextManager[None]:
    """Print above the prompt while it is open."""
    from prompt_toolkit.patch_stdout import patch_stdout

    return patch_stdout(raw=True)


def _cancel_on_signals(task: asyncio.Task[None]) -> None:
    """Cancel the task at the first SIGTERM or SIGHUP. A second SIGTERM ends the process at once.

    A terminal that is closed sends SIGHUP more than once, which must not disturb the way out.
    """
    loop = asyncio.get_running_loop()

    def leave() -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if not task.cancelling():  # two signals may have come before the handler was removed
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave)


async def _terminal(client: GatewayClient, home: Home, session: str) -> Screen:
    from rich.console import Console
    from rich.text import Text

    from talaria.console.message_input import TerminalPrompt
    from talaria.console.terminal import FoldedCalls, TerminalRenderer
    from talaria.core.text import clean
    from talaria.models.local.weights import describe_model, is_built_in

    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(Text(clean(text), style="dim"))

    def announce(text: str) -> None:
        say("Sent to this chat:")
        console.print(Text(clean(text)))

    try:
        models = await client.models()
        usual = next((name for name in models if "/" in name), "no model is configured yet")
    except TalariaError:  # the chat works without the list
        models, usual = [], f"gateway at {client.url}"
    model = await _model_of(client, session) or usual
    say(f"Talaria {this_version()} · {model} · chat “{session}”")
    if models and model != usual:
        say(f"This session keeps its model; /new begins one with {usual}.")
    if is_built_in(model.rpartition("/")[2]):
        about = describe_model(model.rpartition("/")[2])
        say(spoken(f"A built-in model answers; it is {about}. `talaria setup` sets a real one."))
        if offer := await _offer_larger(client, model, usual):
            say(offer)
    if client.is_inside:
        say(spoken("No gateway runs, so this chat runs one itself until you leave; `talaria serve` stays."))
    say("Enter sends, /help lists commands, Ctrl-D leaves.")
    folded = FoldedCalls()
    prompt = TerminalPrompt(console, home.path / HISTORY, models, lambda: say(folded.unfold()))

    def renderer(is_markdown: bool) -> TerminalRenderer:
        prompt.live = TerminalRenderer(console, is_markdown=is_markdown, folded=folded, redraw=prompt.redraw)
        return prompt.live

    return Screen(messages=prompt, renderer=renderer, say=say, announce=announce)


async def _offer_larger(client: GatewayClient, model: str, usual: str) -> str:
    """Return how a chat with the tiny built-in model gets the larger one, or "" if that is not on offer."""
    from talaria.models.local.downloads import LargerState, offer_sentence
    from talaria.operations.operation import Nothing
    from talaria.operations.status import show_status

    try:
        larger = (await client.carry_out(show_status, Nothing())).built_in_model.larger
    except TalariaError:  # the chat works without the offer
        return ""
    is_tiny = model != f"{LOCAL}/{larger.name}" and usual.startswith(f"{LOCAL}/")
    is_offered = is_tiny and larger.state in (LargerState.ABSENT, LargerState.FETCHING)
    return offer_sentence(larger) if is_offered else ""


async def _model_of(client: GatewayClient, session: str) -> str | None:
    """Return the session's model; None if the session has not begun."""
    try:
        return (await client.carry_out(show_session, SessionKey(session))).model
    except TalariaError:
        return None


def _pipe() -> Screen:
    from talaria.console.message_input import PipedLines
    from talaria.console.plain import PlainRenderer

    return Screen(
        messages=PipedLines(sys.stdin.fileno()),
        renderer=lambda _: PlainRenderer(sys.stdout, sys.stdout),
        say=lambda text: click.echo(text, err=True),
    )
