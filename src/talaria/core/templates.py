"""Texts with places that a JSON document fills. Pure.

    Deploy {body[action]} of {body[repository][name]}

A place is `{body}`, `{body[KEY]…}` with keys or list indexes, or one of the names that the caller has. `{{`
and `}}` are braces. There is nothing else: no attributes, no formats, no calls. So a document cannot reach
anything but itself, and what it fills in is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

MAX_TEMPLATE: Final = 8_000  # characters
MAX_PLACES: Final = 50
MAX_VALUE: Final = 4_000  # characters of one value
MAX_FILLED: Final = 32_000  # characters of the whole text
NOTHING: Final = "(nothing)"
_BODY: Final = "body"
_PART: Final = re.compile(
    r"(?P<plain>[^{}]+)|(?P<brace>\{\{|\}\})|\{(?P<name>[a-z]+)(?P<path>(?:\[[^\[\]{}]{1,100}\])*)\}"
)


def check_template(text: str, names: tuple[str, ...]) -> str | None:
    """Return what was expected instead of a text that is no template; None if it is one."""
    expected = f"a text with places such as {{body[key]}}, {', '.join(f'{{{name}}}' for name in names)}"
    if len(text) > MAX_TEMPLATE:
        return f"at most {MAX_TEMPLATE:,} characters"
    try:
        places = [name for name, _ in _places(text) if name]
    except ValueError:
        return f"{expected}; a brace of the text itself is written twice"
    if len(places) > MAX_PLACES:
        return f"at most {MAX_PLACES} places"
    return None if set(places) <= {_BODY, *names} else expected


def fill_template(
    text: str, body: Any, names: Mapping[str, str], quote: Callable[[str], str] = lambda value: value
) -> str:
    """Return the text with every place filled by a value that `quote` has seen. A value that the document
    does not have is `NOTHING`. Long values are cut, and so is the whole."""
    filled, left = list[str](), MAX_FILLED
    for name, part in _places(text):
        piece = part if not name else quote(_cut(_show(names.get(name, body), part, name)))
        filled.append(piece[:left])
        left -= len(piece)
        if left <= 0:
            filled.append("…")
            break
    return "".join(filled)


def _places(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a template: an empty name and a text, or the name of a place and its path."""
    at = 0
    while at < len(text):
        if (found := _PART.match(text, at)) is None:
            raise ValueError(f"no template: {text[at : at + 20]!r}")
        at = found.end()
        if found["name"]:
            yield found["name"], found["path"]
        else:
            yield "", found["plain"] or found["brace"][0]


def _show(value: Any, path: str, name: str) -> str:
    if name != _BODY:
        return str(value)
    for key in re.findall(r"\[([^\[\]]+)\]", path):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isascii() and key.isdigit() and len(key) < 7:
            value = value[int(key)] if int(key) < len(value) else None
        else:
            value = None
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cut(value: str) -> str:
    return value if len(value) <= MAX_VALUE else f"{value[:MAX_VALUE]}… ({len(value) - MAX_VALUE:,} more)"
