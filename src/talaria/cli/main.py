"""The `talaria` program: finds the command, and turns every way a command can fail into words and a status.

Status: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the reader of the output left.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from talaria.cli.options import Invocation, LazyGroup, common, program, spoken

FAILED, WRONG_USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

COMMANDS = {
    "serve": "Run the gateway: the HTTP API and every configured channel.",
    "chat": "Chat in the terminal.",
    "open": "Open the web page of the running gateway, logged in.",
    "ask": "Send one message and print the reply.",
    "setup": "Choose a model, try it, and write the configuration.",
    "model": "List, fetch and remove the weights of built-in models.",
    "sessions": "List, show and end sessions.",
    "connect": "Connect a chat platform and let the first person in.",
    "pair": "Let people in who write from a chat platform, and out again.",
    "why": "Tell the whole story of one message or turn.",
    "backup": "Save the home in one file, also while the gateway runs.",
    "restore": "Bring a backup back.",
    "demo": "See it for yourself, without a key: `demo crash` kills a gateway five times.",
    "top": "Watch the running gateway: pool, turns, endpoints, memory.",
    "doctor": "Check everything and say how to fix what is wrong.",
    "logs": "Show the log of a gateway that runs without a terminal.",
    "service": "Let the system start the gateway and keep it running.",
    "config": "Show and change the configuration.",
}
EXAMPLES = """\b
Examples:
  talaria serve                          start the gateway
  talaria chat                           talk to it from another terminal
  talaria ask "What is in notes.txt?"    one question, one answer
  talaria doctor                         when something does not work
"""


@click.group(
    cls=LazyGroup,
    package="talaria.cli",
    commands=COMMANDS,
    epilog=EXAMPLES,
    no_args_is_help=True,
)
@common
def cli() -> None:
    """Talaria: a self-hosted gateway that keeps AI agents alive for weeks."""


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run a command and leave the process with its status."""
    sys.exit(main(sys.argv[1:] if arguments is None else arguments))


def main(arguments: list[str]) -> int:
    """The status of a command. Whatever it raises has been told to the user."""
    invocation = Invocation()
    try:
        status = _invoke(arguments, invocation)
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        status = INTERRUPTED
    except BrokenPipeError:
        _close_output()
        status = PIPE_CLOSED
    except click.ClickException as error:
        _say(_usage(error))
        status = error.exit_code
    except Exception as error:  # the outermost boundary
        _say(_describe_failure(error, invocation))
        status = FAILED
    return status


def _invoke(arguments: list[str], invocation: Invocation) -> int:
    """Not `cli.main`, which has its own ideas about interrupts and closed pipes."""
    try:
        with cli.make_context("talaria", arguments, obj=invocation) as context:
            status = cli.invoke(context)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    return status if isinstance(status, int) else 0


def _usage(error: click.ClickException) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    text = f"talaria: {_sentence(spoken(error.format_message()))}"
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        text += f"\n  Try: {program()}{context.command_path.removeprefix('talaria')} --help"
    return text


def _describe_failure(error: Exception, invocation: Invocation) -> str:
    from talaria.core.errors import TalariaError

    if isinstance(error, TalariaError):
        return describe(spoken(error.user_text), spoken(error.hint))
    from talaria.cli.crash import describe_crash

    return describe_crash(error, invocation, os.environ)


def describe(what: str, hint: str = "") -> str:
    """`talaria: what and why.`, and what to do on a line of its own; no control character gets through."""
    from talaria.observe.lines import escape

    first, *more = (escape(line) for line in what.splitlines() or [""])
    lines = [f"talaria: {first}", *(f"  {line}" for line in more)]
    lines += [f"  {escape(line)}" for line in hint.splitlines()]
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _say(text: str) -> None:
    try:
        click.echo(text, err=True)
    except BrokenPipeError:
        _close_output()


def _close_output() -> None:
    """Python flushes stdout once more at its end; let that go nowhere instead of complaining."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
