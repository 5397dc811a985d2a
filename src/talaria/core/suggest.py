"""Suggestions for mistyped names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST_NAME = 100  # comparing costs the product of both lengths


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known name that `name` was probably meant to be, ignoring case; None if none is close.

    `likeness` is how close it has to be, from 0 to 1: among short names many are a little alike.
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = get_close_matches(name[:_LONGEST_NAME].lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint that names the nearest known name, or `otherwise` if none is close."""
    found = nearest(name, known)
    return f"Did you mean {found}?" if found else otherwise
