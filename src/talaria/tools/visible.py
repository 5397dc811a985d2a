"""Text as a person must see it: characters that a reader cannot see are written as escapes."""

from __future__ import annotations

import re

# Printable by Unicode's rules, but a reader sees nothing: fillers, blanks, joiners, variation selectors.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


class VisibleTable(dict[int, str]):
    """A table for `str.translate`, filled as characters are met. `kept` are characters that stay."""

    def __init__(self, kept: str = "") -> None:
        super().__init__({ord(char): char for char in kept})

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if char.isprintable() and not _INVISIBLE.match(char):
            shown = char
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            shown = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        return self.setdefault(code, shown)


def visible_text(text: str, *, keeps_lines: bool = False) -> str:
    """Return the text with control characters, bidirectional marks, blanks other than a space and other
    characters that a reader cannot see written as escapes.

    With `keeps_lines` line ends stay: only for a text that stands alone. In a question with several fields, a
    line end inside one field would add a line that looks like another field.
    """
    return text.translate(VisibleTable("\n" if keeps_lines else ""))


def visible_json(document: bytes | str) -> str:
    """Return the same JSON document with all such characters written as escapes, for a terminal."""
    text = document if isinstance(document, str) else document.decode(errors="replace")
    return text.translate(VisibleTable("\n"))
