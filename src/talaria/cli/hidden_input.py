"""Secrets that are typed: the terminal shows none of them, also if they come before the question."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def hidden_input() -> Iterator[None]:
    """Turn the echo of the terminal off meanwhile. Text that is typed ahead is kept for the next question.

    Does nothing if stdin is no terminal.
    """
    if not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    hidden = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(descriptor, termios.TCSANOW, hidden)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def ask_hidden(question: str, *, may_be_empty: bool = False) -> str:
    """Return the line that is typed, without spaces around it; an empty one is asked for again, unless it may
    be empty. Raises `click.Abort` if the input ends."""
    with hidden_input():
        while True:
            click.echo(f"{question}: ", nl=False)
            line = sys.stdin.readline()
            if sys.stdin.isatty():
                click.echo("")
            if not line:
                raise click.Abort
            if line.strip() or may_be_empty:
                return line.strip()
