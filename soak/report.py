"""Figures with their limits, a progress line, and charts for the docs."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

_SECONDS_BETWEEN = 0.5


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. Without a `limit` it is not judged."""

    name: str
    value: float
    unit: str = ""
    limit: float | None = None

    @property
    def is_reached(self) -> bool:
        return self.limit is None or self.value <= self.limit

    def cells(self) -> list[str]:
        wanted = "" if self.limit is None else f"≤ {self.limit:g}"
        verdict = "" if self.limit is None else "reached" if self.is_reached else "MISSED"
        return [self.name, f"{_number(self.value)} {self.unit}".rstrip(), wanted, verdict]


HEADS = ["figure", "measured", "wanted", ""]


def render_text(figures: Sequence[Figure]) -> str:
    table = [HEADS, *(figure.cells() for figure in figures)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def render_markdown(figures: Sequence[Figure]) -> str:
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    lines += ["| " + " | ".join(figure.cells()) + " |" for figure in figures]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


class Progress:
    """A progress line: rewritten on a terminal, printed now and then elsewhere."""

    def __init__(self, out: TextIO | None = None, *, is_quiet: bool = False) -> None:
        self._out = out or sys.stderr
        self._is_quiet = is_quiet
        self._is_live = self._out.isatty()
        self._last = 0.0

    def tell(self, what: str, done: int, total: int, more: str = "") -> None:
        now = time.monotonic()
        wait = _SECONDS_BETWEEN if self._is_live else 20 * _SECONDS_BETWEEN
        if self._is_quiet or (now - self._last < wait and done < total):
            return
        self._last = now
        line = f"  {what}: {done:,} of {total:,}{more}"
        ending = "\n" if not self._is_live or done >= total else ""
        self._out.write(f"\r\033[K{line}{ending}" if self._is_live else line + ending)
        self._out.flush()


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    unit: str
    colour: str
    points: Sequence[tuple[float, float]]
    beside: Sequence[tuple[float, float]] = ()  # drawn in grey, for comparison


def render_svg(title: str, curves: Sequence[Curve], over: str = "turns") -> str:
    """Return a chart with a panel for each curve. All have the same x axis; each y axis begins at zero."""
    width, left, right, panel, gap = 860, 70, 20, 120, 44
    height = (panel + gap) * len(curves) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<text x="8" y="20" font-weight="bold">{html.escape(title)}</text>',
    ]
    for index, curve in enumerate(curves):
        top = 50 + index * (panel + gap)
        last = max((x for x, _ in curve.points), default=1) or 1
        high = max((y for _, y in (*curve.points, *curve.beside)), default=1) or 1
        highest = html.escape(f"{high:,.0f} {curve.unit}")
        spots, grey = (
            " ".join(
                f"{left + x / last * (width - left - right):.1f},{top + panel - y / high * panel:.1f}"
                for x, y in points
            )
            for points in (curve.points, curve.beside)
        )
        parts += [
            f'<text x="{left}" y="{top - 6}">{html.escape(curve.name)}</text>',
            f'<path d="M{left} {top}V{top + panel}H{width - right}" fill="none" stroke="#b8bcc4"/>',
            f'<text x="{left - 6}" y="{top + 10}" text-anchor="end">{highest}</text>',
            f'<text x="{left - 6}" y="{top + panel}" text-anchor="end">0</text>',
            f'<text x="{width - right}" y="{top + panel + 16}" text-anchor="end">{last:,.0f} {over}</text>',
            f'<polyline points="{spots}" fill="none" stroke="{curve.colour}" stroke-width="1.6"/>',
        ]
        if grey:
            parts.append(f'<polyline points="{grey}" fill="none" stroke="#9aa0aa" stroke-dasharray="5 4"/>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
