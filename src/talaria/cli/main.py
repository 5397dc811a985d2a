"""The `talaria` program: finds the command, runs it, and turns failures into texts and exit statuses.

Status: 0 done, 1 failed, 2 wrong usage, 70 the event loop was held for too long, 130 interrupted, 141 the
output was closed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from talaria.cli.options import Invocation, LazyGroup, common
from talaria.cli.text import describe_error
from talaria.core.program import program

if TYPE_CHECKING:
    from talaria.core.redaction import Redactor

FAILED, WRONG_USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
_KEPT_CRASHES = 20

VERBS = {
    "serve": "Run the gateway: the HTTP API and every configured channel.",
    "chat": "Chat in the terminal.",
    "open": "Open the web page of the running gateway, logged in.",
    "ask": "Send one message and print the reply.",
    "setup": "Choose a model, try it, and write the configuration.",
    "model": "List, download and remove built-in models.",
    "sessions": "List, show, search, end and delete sessions.",
    "jobs": "Create, list, change and run jobs: tasks that run later or repeatedly.",
    "mcp": "Add tools from MCP servers, and serve this gateway to MCP clients.",
    "skills": "Add, list, check, accept and remove skills: instructions for special tasks.",
    "browser": "Log the browser of a session in, with cookies of your own browser.",
    "send": "Send a message to a chat without running an agent.",
    "connect": "Connect a chat platform and pair the first person.",
    "pair": "Approve people on chat platforms, and revoke their access.",
    "token": "Create, list and revoke tokens for programs that call the HTTP API.",
    "plugins": "List and check plug-ins, which add your own tools, commands, hooks and channels.",
    "why": "List recent messages, or show the history of one.",
    "backup": "Save the home in one file, also while the gateway runs.",
    "restore": "Bring a backup back.",
    "import": "Import conversations, jobs, memory and skills from hermes-agent or openclaw.",
    "store": "Copy the database to another place or engine.",
    "demo": "See it for yourself, without a key: `demo crash` kills a gateway five times.",
    "top": "Watch the running gateway: pool, turns, endpoints, memory.",
    "doctor": "Check everything and say how to fix what is wrong.",
    "logs": "Show the log of a gateway that runs without a terminal.",
    "service": "Let the system start the gateway and keep it running.",
    "config": "Show and change the configuration.",
    "uninstall": "Stop everything, remove the service, and keep or delete the data.",
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
    verbs=VERBS,
    epilog=EXAMPLES,
    no_args_is_help=True,
)
@common
def cli() -> None:
    """Talaria: a self-hosted gateway that keeps AI agents alive for weeks."""


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run a command and exit with its status."""
    _open_closed_streams()
    sys.exit(main(sys.argv[1:] if arguments is None else arguments))


def _open_closed_streams() -> None:
    """Give the process streams that lead nowhere in place of those with which it was started closed.

    A socket or a database would get their descriptors otherwise, and what is printed would be written there.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != fd:
                os.dup2(nowhere, fd)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", encoding="utf-8"))


def main(arguments: list[str]) -> int:
    """Run a command and return its status. Exceptions are reported to the user, not raised."""
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
        _say(_usage(error, invocation))
        status = error.exit_code
    except Exception as error:  # the outermost boundary
        _say(_describe_failure(error, invocation))
        status = _run_again(arguments) if _installs_extra(error) else FAILED
    return status


def _installs_extra(error: Exception) -> bool:
    """Return whether a missing extra was installed: `./dev` does it in a clone, if a person agrees."""
    from talaria.core.installation import MissingExtra, own_script

    script = own_script() if isinstance(error, MissingExtra) else None
    if script is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    assert isinstance(error, MissingExtra)
    if not click.confirm("Install it now?", default=True, err=True):
        return False
    return subprocess.run([script, "extra", error.extra], check=False).returncode == 0  # noqa: S603


def _run_again(arguments: list[str]) -> int:
    again = [
        sys.executable,
        "-m",
        "talaria",
        *arguments,
    ]  # what is installed now is imported by a new process
    return subprocess.run(again, check=False).returncode  # noqa: S603


def _invoke(arguments: list[str], invocation: Invocation) -> int:
    """Run the command. `cli.main` of click would handle interrupts and closed pipes in its own way."""
    try:
        with cli.make_context("talaria", arguments, obj=invocation) as context:
            status = cli.invoke(context)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    return status if isinstance(status, int) else 0


def _usage(error: click.ClickException, invocation: Invocation) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    text = f"talaria: {_sentence(invocation.spoken(error.format_message()))}"
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        text += f"\n  Try: {program()}{context.command_path.removeprefix('talaria')} --help"
    return text


def _describe_failure(error: Exception, invocation: Invocation) -> str:
    from talaria.core.errors import TalariaError

    if isinstance(error, TalariaError):
        return describe_error(invocation.spoken(error.user_text), invocation.spoken(error.hint))
    return _describe_crash(error, invocation)


def _describe_crash(error: Exception, invocation: Invocation) -> str:
    """Describe an unexpected error in one line. The traceback goes to the logs of the home, or is part of the
    text with TALARIA_DEBUG=1."""
    import traceback

    from talaria.observe.logs import escape

    redact = _redactor(invocation)
    trace = redact("".join(traceback.format_exception(error)))
    details = escape(redact(str(error))) or "no details"
    what = f"talaria: unexpected {type(error).__name__}: {details}. This is a bug."
    if os.environ.get("TALARIA_DEBUG") == "1":
        return f"{trace}\n{what}"
    path = _write_crash(trace, invocation)
    if path is None:
        return f"{what}\n  Run it again with TALARIA_DEBUG=1 to see where, and please report it."
    return f"{what}\n  Where it happened is in {path}; please report it."


def _redactor(invocation: Invocation) -> Redactor:
    """Return a redactor for the secrets of the home and for variables whose names look like those of secrets.
    It never fails: a home that cannot be read may be why the program crashed."""
    import re

    from talaria.config.load import load
    from talaria.core.redaction import Redactor, Secret
    from talaria.parts import PARTS

    named = re.compile("key|token|secret|passw|credential", re.IGNORECASE)
    found = {Secret(name, value.strip()) for name, value in os.environ.items() if named.search(name)}
    with suppress(Exception):
        home = invocation.any_home()
        found |= load(home.path, os.environ, PARTS).secrets
        found.add(Secret("http.token", home.token_file.read_text(encoding="utf-8").strip()))
    return Redactor(found)


def _write_crash(trace: str, invocation: Invocation) -> Path | None:
    """Write a traceback to the logs of a home that exists. Returns None if that is not possible."""
    import time

    from talaria.core.errors import TalariaError
    from talaria.core.program import this_version
    from talaria.core.whole_files import write_new

    try:
        home = invocation.any_home()
        if not home.path.is_dir():
            return None
        home.logs.mkdir(mode=0o700, exist_ok=True)
        path = home.logs / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        write_new(path, f"talaria {this_version()}\n{trace}".encode(errors="replace"))
        for old in sorted(home.logs.glob("crash-*.txt"))[:-_KEPT_CRASHES]:  # a service is restarted often
            old.unlink(missing_ok=True)
    except (OSError, TalariaError):
        return None
    return path


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _say(text: str) -> None:
    try:
        click.echo(text, err=True)
    except BrokenPipeError:
        _close_output()


def _close_output() -> None:
    """Redirect closed streams to nowhere: Python flushes them once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
