"""Text from outside, made safe to show, and long text cut.

Control characters could move the cursor, set titles or reverse lines. They are removed or escaped one by one,
so it does not matter where a stream was split. The rest of an escape sequence is harmless letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import msgspec

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


# -- plain text out of what programs write for a terminal -------------------------------------------------


# Sequences by their kind: control (colours, cursor), strings (titles, links, clipboard), all others.
_SEQUENCE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"
    rb"|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)"
    rb"|\x1b[PX^_][^\x1b]*+\x1b\\"
    rb"|\x1b(?![\]PX^_\[])[ -/]*[0-~]"
)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*+\x1b?|[PX^_][^\x1b]*+\x1b?|[ -/]*)\Z")
_EIGHT_BIT = re.compile(rb"\xc2[\x80-\x9f]")  # the control characters above 127, as UTF-8
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\r"})
_MAX_CARRIED = 4096
_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\n])")
_BROKEN = re.compile("\ufffd{4,}")


class EscapeFilter:
    """Removes escape sequences and control characters from bytes that come in pieces.

    Tabs, line ends and carriage returns stay; `\\r\\n` becomes `\\n`. Text of any length between the pieces
    is passed on at once, but for the beginning of a sequence, of which a bounded part is kept back.
    """

    __slots__ = ("_carried",)

    def __init__(self) -> None:
        self._carried = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the plain bytes of the next piece."""
        data = self._carried + piece if self._carried else piece
        self._carried = b""
        if b"\x1b" in data:
            data = _SEQUENCE.sub(b"", data)
            unfinished = _UNFINISHED.search(data, max(0, len(data) - _MAX_CARRIED))
            if unfinished is not None:
                data, self._carried = data[: unfinished.start()], unfinished[0]
        if not self._carried and data.endswith((b"\r", b"\xc2")):
            data, self._carried = data[:-1], data[-1:]
        return _clean(data)

    def end(self) -> bytes:
        """Return what was kept back and turned out to be text."""
        data, self._carried = self._carried, b""
        return _clean(data)


def _clean(data: bytes) -> bytes:
    if b"\xc2" in data:
        data = _EIGHT_BIT.sub(b"", data)
    return data.translate(None, _CONTROLS).replace(b"\r\n", b"\n")


def readable(text: str) -> str:
    """Return decoded output as a reader of a terminal would see it: a line that a program wrote over (a
    progress bar) is shown as it was last, and a run of bytes that are no text by their number."""
    if "\r" in text:
        text = _OVERWRITTEN.sub("", text).replace("\r", "")
    if "\ufffd" in text:
        text = _BROKEN.sub(lambda found: f"[{len(found[0])} bytes that are not text]", text)
    return text


# -- texts with places that a JSON document fills ---------------------------------------------------------
# Pure.
#
#     Deploy {body[action]} of {body[repository][name]}
#
# A place is `{body}`, `{body[KEY]…}` with keys or list indexes, or one of the names that the caller has.
# `{{` and `}}` are braces. There is nothing else: no attributes, no formats, no calls. So a document cannot
# reach anything but itself, and what it fills in is bounded.


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


# -- suggestions for mistyped names -----------------------------------------------------------------------


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
