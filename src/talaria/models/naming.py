"""Names of models: `provider/model` in tables with patterns, and what a maker itself calls a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

T = TypeVar("T")

_DATE = re.compile(r"-(?:20\d\d-?\d\d-?\d\d|latest)$")
_RESOLD = ("openai/", "anthropic/")  # openrouter sells these under their makers' names


def find_named(table: Mapping[str, T], name: str) -> T | None:
    """What the table says of exactly this name, else under the longest pattern with stars that fits."""
    if name in table:
        return table[name]
    fitting = [pattern for pattern in table if "*" in pattern and fnmatchcase(name, pattern)]
    return table[max(fitting, key=len)] if fitting else None


def find_known(table: Mapping[str, T], provider: str, model: str) -> T | None:
    """What a table of makers' names says of a model, with or without the date of its release.

    Nothing is guessed from a name that looks alike.
    """
    name = f"{provider}/{model}"
    if provider == "openrouter":
        if not model.startswith(_RESOLD):
            return None
        # It writes the versions of Claude with a dot, where their maker writes a dash.
        name = model.replace(".", "-") if model.startswith("anthropic/") else model
    return table.get(name) or table.get(_DATE.sub("", name))
