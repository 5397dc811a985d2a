"""docs/incidents.md, read as rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from incidents.nodes import ROOT, node_ids

DOCUMENT = ROOT / "docs" / "incidents.md"
ROWS = 52
REPORTED = ("Chat platforms", "Delegates")
HERE = ("same", "by type", "other")


@dataclass(frozen=True, slots=True)
class Row:
    """One incident: what went wrong, how Talaria relates to it, why it cannot happen, and its tests."""

    section: str
    number: int
    symptom: str
    here: str
    reason: str
    tests: tuple[str, ...]


def read_rows(text: str) -> Iterator[Row]:
    """Yield the incidents in order, each with the heading of its section."""
    for chapter in text.split("\n## ")[1:]:
        section, _, body = chapter.partition("\n")
        for incident in body.split("\n### ")[1:]:
            title, _, rest = incident.partition("\n\n")
            number, _, symptom = title.partition(". ")
            found = re.match(r"\*(.+?)\.\*(.*?)(?:\n\n|\Z)", rest, re.DOTALL)
            here, reason = (found[1].lower(), " ".join(found[2].split())) if found else ("", "")
            yield Row(section, int(number), symptom, here, reason, node_ids(rest))


def read_reported(text: str) -> Iterator[Row]:
    """Yield the failures that users of other gateways report, numbered after the rows."""
    number = ROWS
    for section in REPORTED:
        lines = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
        cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
        for symptom, *tests in cells[1:]:
            number += 1
            yield Row(section, number, symptom, "reported", "", node_ids(" ".join(tests)))
