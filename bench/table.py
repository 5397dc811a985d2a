"""The figures as a table, and as a chart for the docs."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from enum import Enum


class Wanted(Enum):
    AT_MOST = "≤"
    AT_LEAST = "≥"
    FOR_COMPARISON = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `ratio` compares it with the bare aiohttp call of the same run."""

    name: str
    value: float
    unit: str
    wanted: Wanted = Wanted.FOR_COMPARISON
    limit: float = 0.0
    ratio: float | None = None

    @property
    def verdict(self) -> str:
        match self.wanted:
            case Wanted.AT_MOST:
                return "reached" if self.value <= self.limit else "missed"
            case Wanted.AT_LEAST:
                return "reached" if self.value >= self.limit else "missed"
            case Wanted.FOR_COMPARISON:
                return ""

    def cells(self) -> list[str]:
        wanted = f"{self.wanted.value} {self.limit:g}" if self.wanted is not Wanted.FOR_COMPARISON else ""
        ratio = f"{self.ratio:.1f} ×" if self.ratio is not None else ""
        return [self.name, f"{self.value:.3g} {self.unit}", ratio, wanted, self.verdict]


HEADS = ["figure", "measured", "against a bare call", "wanted", ""]


def render_text(rows: list[Row]) -> str:
    return align([HEADS, *(row.cells() for row in rows)])


def align(table: list[list[str]]) -> str:
    """Return the table as text. The first line is the head."""
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def render_markdown(rows: list[Row]) -> str:
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines)


def render_svg(rows: list[Row], unit: str, title: str) -> str:
    """Return a bar chart of the rows with this unit, on a logarithmic scale."""
    bars = [row for row in rows if row.unit == unit]
    low, high = min(row.value for row in bars) / 2, max(row.value for row in bars)
    width, left, height = 860, 330, 26
    span = math.log10(high / low)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height * len(bars) + 40}" '
        'font-family="sans-serif" font-size="13">',
        '<text x="8" y="18" font-weight="bold">' + html.escape(title) + "</text>",
    ]
    for index, row in enumerate(bars):
        y = 34 + index * height
        length = max(2.0, math.log10(row.value / low) / span * (width - left - 90))
        colour = "#b8bcc4" if row.wanted is Wanted.FOR_COMPARISON else "#2f7d6b"
        parts.append(f'<text x="8" y="{y + 13}">{html.escape(row.name)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.0f}" height="17" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{left + length + 6:.0f}" y="{y + 13}">{row.value:.3g}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
