"""`talaria logs`: what the gateway wrote, and with -f what it writes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import IO

import click

from talaria.cli.log_file import CONSOLE, GATEWAY, older
from talaria.cli.options import Invocation, verb
from talaria.core.errors import NotFound
from talaria.observe.lines import Line, as_text, escape

_GLANCE = 0.25


@verb(
    "logs",
    "talaria logs               the last 50 lines",
    "talaria logs -n 500",
    "talaria logs -f            and whatever comes, until Ctrl-C",
    "talaria logs --json | jq .message",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(0), help="How many.")
@click.option("--json", "as_json", is_flag=True, help="As they are written, one JSON object a line.")
def command(invocation: Invocation, follow: bool, lines: int, as_json: bool) -> None:
    """Show the log of a gateway that runs as a service, or in any way without a terminal.

    One that was started in a terminal writes its log to that terminal. The files are in logs/ in the home:
    at most four of 5 MiB.
    """
    path = _find(invocation)
    shown: Callable[[str], str] = str if as_json else readable
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in _last(path, file, lines):
            click.echo(shown(line))
        sys.stdout.flush()
        if follow:
            for line in following(path, file):
                click.echo(shown(line))
                sys.stdout.flush()


def _find(invocation: Invocation) -> Path:
    home = invocation.home()
    for name in (GATEWAY, CONSOLE):
        if (home.logs / name).is_file():
            return home.logs / name
    raise NotFound(
        f"There is no log in {home.logs}.",
        "A gateway that was started in a terminal writes its log to that terminal. Only one without a "
        "terminal, as a service is, writes files.",
    )


def _last(path: Path, file: IO[str], count: int) -> Iterator[str]:
    """The last lines, reaching back into the file before this one if it has not enough."""
    kept: deque[str] = deque(maxlen=count)
    before = older(path, 1)
    if before.is_file():
        kept.extend(before.read_text(encoding="utf-8", errors="replace").splitlines())
    for line in file:
        kept.append(line.rstrip("\n"))
    return iter(kept)


def following(path: Path, file: IO[str], wait: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Whole lines as they come. A file that was turned over is read to its end, then the new one."""
    with ExitStack() as opened:
        rest = ""
        while True:
            was_current = _is_current(path, file)  # looked at before reading: what is read then is all of it
            data = file.read()
            *whole, rest = (rest + data).split("\n")
            yield from whole
            if was_current:
                wait(_GLANCE)
                continue
            opened.close()
            try:
                file = opened.enter_context(path.open(encoding="utf-8", errors="replace"))
            except OSError:
                wait(_GLANCE)


def _is_current(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False


def readable(line: str) -> str:
    """A JSON line as it would look in a terminal; anything else as it is, without control characters."""
    try:
        written = json.loads(line)
        created = datetime.fromisoformat(written.pop("ts"))
        level, logger, message = written.pop("level"), written.pop("logger"), written.pop("message")
        exception = written.pop("exception", "")
    except (ValueError, KeyError, AttributeError, TypeError):
        return escape(line)
    text = as_text(Line(created.timestamp(), level, logger, message, written, exception), str)
    return f"{created.astimezone():%Y-%m-%d} {text}"
