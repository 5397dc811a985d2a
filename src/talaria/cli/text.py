"""Texts for people: errors, tables, times and counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click


def describe_error(what: str, hint: str = "") -> str:
    """Return `talaria: what and why.` with the hint on lines of its own. Control characters are escaped."""
    from talaria.observe.logs import escape

    first, *more = (escape(line) for line in what.splitlines() or [""])
    lines = [f"talaria: {first}", *(f"  {line}" for line in more)]
    lines += [f"  {escape(line)}" for line in hint.splitlines()]
    return "\n".join(lines)


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Return the rows as a table. Each column is as wide as its widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def when(at: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


# -- secrets that are typed: the terminal shows none of them, also if they come before the question -------


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
