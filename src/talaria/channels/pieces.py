"""Splits a reply into messages within a platform's limit. Pure.

A code block that is cut is closed in one piece and opened again in the next. Lengths are UTF-16 units, which
is how chat platforms count; a platform that counts characters allows no less.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_FENCE_LINE = re.compile(r"^[^\S\n]{0,3}(`{3,16}|~{3,16})[^\S\n]*([\w+#.-]{0,40})[^\S\n]*$", re.MULTILINE)
FENCE = re.compile(r"\s{0,3}(`{3,16}|~{3,16})\s*([\w+#.-]{0,40})\s*$")
BULLET = re.compile(r"(\s*)[-*+]\s+(.*)$")
QUOTE = re.compile(r"\s{0,3}>\s?(.*)$")
RULE = re.compile(r"\s{0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$")
TABLE_ROW = re.compile(r"\s*\|.*\|\s*$")
_CLOSING_ROOM = 17  # for the line that closes a code block


def units(text: str) -> int:
    """Return the length in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def split(markdown: str, limit: int) -> Iterator[str]:
    """Yield pieces of at most `limit` units, cut between paragraphs, lines or words if possible. A code block
    that is cut is closed in one piece and opened again in the next.

    Each step looks at no more text than fits into one piece. A step over blank text yields an empty piece.
    """
    start, end = 0, len(markdown)
    fence: _Fence | None = None
    while start < end:
        opening = f"{fence.marks}{fence.language}\n" if fence else ""
        window = _fit(markdown, start, limit - units(opening) - _CLOSING_ROOM)
        cut, fence = _find_cut(window, fence, is_last=start + len(window) >= end)
        piece = (opening + window[:cut] if opening else window[:cut].lstrip("\n")).rstrip("\n")
        start += cut
        if start < end:
            if fence:
                piece += f"\n{fence.marks}"
            if markdown[start] in "\n ":
                start += 1
        yield piece if piece.strip() else ""


class _Fence(NamedTuple):
    """The line that opens a code block."""

    marks: str
    language: str


def _find_cut(window: str, fence: _Fence | None, *, is_last: bool) -> tuple[int, _Fence | None]:
    """Return where to end a piece, and the code block that is open there."""
    if is_last:
        return len(window), None
    cut = window.rfind("\n", len(window) // 4)
    if cut < 0:
        cut = window.rfind(" ", len(window) // 2)
    cut = cut if cut > 0 else len(window)
    behind = 0  # the end of the last fence: a piece is not cut before it, so no code block is cut in vain
    for found in _FENCE_LINE.finditer(window, 0, cut):
        if fence is None:
            fence = _Fence(found[1], found[2])
        elif not found[2] and found[1].startswith(fence.marks):
            fence = None
        else:
            continue
        behind = found.end()
    if fence is None and (paragraph := window.rfind("\n\n", max(behind, len(window) // 2), cut)) > 0:
        cut = paragraph
    return cut, fence


def _fit(text: str, start: int, limit: int) -> str:
    """Return as much of the text from `start` on as fits into `limit` units."""
    kept = text[start : start + limit]
    if kept.isascii() or units(kept) <= limit:
        return kept
    data = kept.encode("utf-16-le", "surrogatepass")[: 2 * limit]
    is_half = 0xD8 <= data[-1] < 0xDC
    return data[: -2 if is_half else None].decode("utf-16-le", "surrogatepass")


def shorten(text: str, limit: int) -> str:
    return text if units(text) <= limit else _fit(text, 0, limit - 1) + "…"


def tail(text: str, limit: int) -> str:
    """Return the end of a text that is still being written."""
    if units(text) <= limit:
        return text
    kept = text[-limit // 2 :]
    _, newline, rest = kept.partition("\n")
    return "…\n" + (rest if newline and rest else kept)


def find_closing(lines: list[str], start: int, fence: str) -> int:
    """Return the line that closes a code block; the end of the text if none does."""
    for position in range(start, len(lines)):
        stripped = lines[position].strip()
        if stripped.startswith(fence) and not stripped.strip(fence[0]):
            return position
    return len(lines)
