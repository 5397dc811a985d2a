"""Text from outside, made safe to show, and long text cut.

Control characters could move the cursor, set titles or reverse lines. They are removed or escaped one by one,
so it does not matter where a stream was split. The rest of an escape sequence is harmless letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Classes of characters, for the brackets of a regular expression.
CONTROLS = "\x00-\x08\x0b-\x1f\x7f"  # without tab and line feed
CONTROLS_8_BIT = "\x80-\x9f"
LINE_SEPARATORS = "\u2028\u2029"
EMBEDDINGS = "\u202a-\u202e\u2066-\u2069"  # change the direction of the text that follows
DIRECTION_MARKS = "\u200e\u200f"
SURROGATES = "\ud800-\udfff"  # cannot be written in any encoding
NOT_IN_LINES = f"\t\n{CONTROLS}{CONTROLS_8_BIT}{LINE_SEPARATORS}{SURROGATES}"
MISLEADING = f"\u061c{EMBEDDINGS}\ufeff"  # a reader does not see them, but other text moves

_UNSAFE = re.compile(f"[{CONTROLS}{CONTROLS_8_BIT}{LINE_SEPARATORS}{MISLEADING}]")
_SURROGATE = re.compile(f"[{SURROGATES}]")
_UNPRINTABLE = re.compile(f"[{NOT_IN_LINES}{MISLEADING}]")
_SPACE = re.compile(r"\s+")
# Printable by Unicode's rules, but a reader sees nothing: fillers, blanks, joiners, variation selectors.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def clean(text: str) -> str:
    """Return the text without control characters other than line feeds and tabs."""
    return _SURROGATE.sub("\ufffd", _UNSAFE.sub("", text))


def plain_name(name: str) -> str:
    """Return the name of a file with `_` in place of such characters."""
    return _SURROGATE.sub("_", _UNSAFE.sub("_", name))


def clean_line(text: str, longest: int = 200) -> str:
    """Return the text as one line of at most `longest` characters. Only the beginning of a long text is
    looked at."""
    start = text[: longest * 16]
    line = _SPACE.sub(" ", clean(start)).strip()
    if len(line) <= longest and len(start) == len(text):
        return line
    return line[: longest - 1].rstrip() + "…"


def printable(text: str) -> str:
    """Return `text` on one line that every sink can encode, with control characters and those that
    change the direction of writing as their escapes."""
    return _UNPRINTABLE.sub(escape_match, text)


def escape_match(found: re.Match[str]) -> str:
    """Return the escape of a matched character, such as `\\n`, `\\x1b` or `\\u202e`."""
    return found[0].encode("unicode_escape").decode()


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


def cut(text: str, longest: int) -> str:
    """Return the text, or its first `longest` characters and an ellipsis."""
    return text if len(text) <= longest else f"{text[:longest]}…"


def cut_to_fit(text: str, width: int) -> str:
    """Return the text in at most `width` characters, an ellipsis included."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def cut_middle(text: str, longest: int) -> str:
    """Return the text, or its beginning and its end, each with half of `longest` characters."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} … {text[-half:]}"


def list_some(names: Sequence[str], most: int) -> str:
    """Return the names with commas between them, and an ellipsis for those after the first `most`."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
