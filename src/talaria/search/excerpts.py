"""Excerpts: the part of a text around the words that a query looks for. Pure."""

from __future__ import annotations

from collections.abc import Collection

from talaria.search.words import placed_terms

EXCERPT_CHARS = 240
_MOST_CHARS = 64 << 10  # of a text that are looked through


def excerpt(text: str, wanted: Collection[str], width: int = EXCERPT_CHARS) -> str:
    """Return about `width` characters of the text in one line, where the most of the wanted terms stand."""
    places = [(at, term) for term, at in placed_terms(text[:_MOST_CHARS]) if term in wanted]
    best, most = 0, 0
    for index, (at, _) in enumerate(places):
        near = {term for place, term in places[index : index + 20] if place < at + width * 3 // 4}
        if len(near) > most:
            best, most = at, len(near)
    start = max(0, min(best - width // 5, len(text) - width))
    if start:
        start = text.find(" ", start, start + 20) + 1 or start
    shown = " ".join(text[start : start + width].split())
    return f"{'… ' if start else ''}{shown}{' …' if start + width < len(text) else ''}"
