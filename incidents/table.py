"""docs/incidents.md as rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from incidents.nodes import ROOT, node_ids

DOCUMENT = ROOT / "docs" / "incidents.md"
ROWS = 52
HERE = ("same", "by type", "other")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: what went wrong, how it is here, why it cannot happen, and what shows it."""

    section: str
    number: int
    symptom: str
    here: str
    reason: str
    tests: tuple[str, ...]


def read_rows(text: str) -> Iterator[Row]:
    """Lines of tables that begin with a number, under the heading they stand under."""
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            if cells[0].isdecimal():
                symptom, here, reason, tests = (*cells[1:], "", "", "", "")[:4]
                yield Row(section, int(cells[0]), symptom, here, reason, node_ids(tests))
