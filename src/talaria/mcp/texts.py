"""Foreign text as a model may read it, and the names of foreign tools."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Any

from talaria.core.text import (
    CONTROLS,
    CONTROLS_8_BIT,
    DIRECTION_MARKS,
    MISLEADING,
    SURROGATES,
    EscapeFilter,
    cut,
)

MAX_NAME = 64
_HASH_CHARS = 8
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")
# Control characters, and characters that a reader does not see or that change how others are read: marks of
# direction, fillers, joiners of words, tags, selectors of variants that no emoji needs, halves of pairs.
_HIDDEN = re.compile(
    f"[{CONTROLS}{CONTROLS_8_BIT}{MISLEADING}{DIRECTION_MARKS}{SURROGATES}\u00ad\u034f\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b\u2060-\u206f\u3164\ufe00-\ufe0d\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_LINE_ENDS = re.compile("\r\n?|[\u2028\u2029\x0b\x0c\x85]")


def clean(text: str, max_chars: int | None = None) -> str:
    """Return the text without escape sequences of terminals, control characters and characters that a reader
    does not see. Tabs stay, and line ends become `\\n`. A longer text is cut."""
    if max_chars is not None:
        text = cut(text, max_chars)
    if "\x1b" in text:
        plain = EscapeFilter()
        found = plain.feed(text.encode(errors="replace"))
        text = (found + plain.end()).decode(errors="replace")
    return _HIDDEN.sub("", _LINE_ENDS.sub("\n", text))


def clean_line(text: str, max_chars: int = 300) -> str:
    """Return the text on one line, for logs, statuses and errors."""
    return " ".join(clean(text[: 4 * max_chars]).split())[:max_chars]


def clean_schema(value: Any) -> Any:
    """Return a JSON schema with clean texts and without `$schema`.

    Raises `ValueError` if a text that calls depend on, the name of a property or a value of an enum, has
    hidden characters in it.
    """
    match value:
        case str():
            return clean(value)
        case list():
            return [clean_schema(each) for each in value]
        case dict():
            return {_same(key): _clean_member(key, each) for key, each in value.items() if key != "$schema"}
    return value


def _clean_member(key: str, value: Any) -> Any:
    return _same_values(value) if key in ("enum", "const", "required") else clean_schema(value)


def _same_values(value: Any) -> Any:
    """Return the values as they are. An object may be the schema of a property that has this name."""
    match value:
        case str():
            return _same(value)
        case list():
            return [_same_values(each) for each in value]
    return clean_schema(value)


def _same(text: str) -> str:
    if clean(text) != text:
        raise ValueError("its parameters have hidden characters in a name or a value")
    return text


def offered_name(server: str, tool: str, taken: Collection[str]) -> str:
    """Return the name that a tool of a server gets: `mcp_SERVER_TOOL`, as far as providers take it.

    A name that is too long or `taken` ends with a hash of the server and the tool instead.
    """
    plain = _UNFIT.sub("_", f"mcp_{server}_{tool}")
    if len(plain) <= MAX_NAME and plain not in taken:
        return plain
    digest = hashlib.sha256(f"{server}\0{tool}".encode(errors="replace")).hexdigest()
    for size in range(_HASH_CHARS, len(digest)):
        name = f"{plain[: MAX_NAME - size - 1]}_{digest[:size]}"
        if name not in taken:
            break
    return name
