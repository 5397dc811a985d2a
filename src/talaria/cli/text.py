"""Texts for people: errors, tables, times and counts."""

from __future__ import annotations

from collections.abc import Sequence


def describe_error(what: str, hint: str = "") -> str:
    """Return `talaria: what and why.` with the hint on lines of its own. Control characters are escaped."""
    from talaria.observe.lines import escape

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
