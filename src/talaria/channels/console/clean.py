"""What may reach a terminal: text without the characters that move cursors, set titles or reverse lines.

Characters are dropped one by one, so it does not matter where a stream was split; what is left of an escape
sequence is harmless letters.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")  # cannot be written in any encoding
_SPACE = re.compile(r"\s+")


def clean(text: str) -> str:
    """Line feeds and tabs stay; every other control character goes."""
    return _SURROGATE.sub("\ufffd", _UNSAFE.sub("", text))


def clean_line(text: str, longest: int = 200) -> str:
    """The text as one line of at most `longest` characters."""
    line = _SPACE.sub(" ", clean(text)).strip()
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"
