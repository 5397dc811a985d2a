"""Text from outside that is safe to display: control characters could move the cursor, set titles or reverse
lines.

Characters are dropped one by one, so it does not matter where a stream was split. The rest of an escape
sequence is harmless letters.
"""

from __future__ import annotations

import re

import msgspec

from talaria.core.files import SentFile
from talaria.core.units import format_size

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")  # cannot be written in any encoding
_SPACE = re.compile(r"\s+")
_TELLING = ("path", "command", "url", "query", "pattern", "task", "action", "question")
_MAX_ARGUMENTS = 1 << 20
_LONGEST = 72  # of a tool's name, and of the argument behind it


def clean(text: str) -> str:
    """Return the text without control characters other than line feeds and tabs."""
    return _SURROGATE.sub("\ufffd", _UNSAFE.sub("", text))


def clean_line(text: str, longest: int = 200) -> str:
    """Return the text as one line of at most `longest` characters. Only the beginning of a long text is
    looked at."""
    start = text[: longest * 16]
    line = _SPACE.sub(" ", clean(start)).strip()
    if len(line) <= longest and len(start) == len(text):
        return line
    return line[: longest - 1].rstrip() + "…"


def describe_file(file: SentFile, place: str) -> str:
    """Return a sent file as one line, with the place where it is."""
    return f"⇩ {clean_line(file.name, _LONGEST)}, {format_size(file.size)}: {clean(place)}"


def describe_call(name: str, arguments: str) -> str:
    """Return a tool call as one line: its name and its most telling argument. Arguments that are no JSON, or
    very long, are shown as the model wrote them."""
    try:
        fields = msgspec.json.decode(arguments if len(arguments) <= _MAX_ARGUMENTS else "")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        texts = {key: value for key, value in fields.items() if isinstance(value, str) and value}
        telling = (key for key in (*_TELLING, *texts) if key in texts)
        arguments = texts.get(next(telling, ""), "")
    return f"{clean_line(name, _LONGEST)} {clean_line(arguments, _LONGEST)}".rstrip()
