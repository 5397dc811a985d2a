"""Removal of secrets from text, by value: whole or cut, in the usual encodings, in any case.

A long secret is found by the beginning or the end of each of its forms, which are extended as far as the text
agrees: a secret that was cut is found by what is left of it. A short secret is found only as a whole, because
pieces of it could be ordinary words. Searching takes time in proportion to the text.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote

MARK = "[redacted]"
SHORTEST = 6  # characters of a secret; a shorter one could be part of any text
_LONG = 16  # characters, from which on pieces of a secret are found too
_PIECE = 12  # the shortest piece
_PUBLIC = 16  # characters in which the beginning that all keys of a provider share, as sk-proj-, may end
_SHORT_TEXT = 200
_BREAK = re.compile(rb"[\r\n][ \t\r\n]*")


class _Form(NamedTuple):
    """A secret in one encoding, in lower case; `width` bytes of it stand for one byte of the secret."""

    data: bytes
    width: float = 1.0


class Redactor:
    """Replaces each known secret by `[redacted]`. Immutable."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secret for secret in secrets if len(secret) >= SHORTEST)
        anchors: dict[bytes, list[tuple[bytes, int]]] = {}
        for secret in self._secrets:
            for form in _forms(secret):
                for start, end in _places(secret, form):
                    anchors.setdefault(form.data[start:end], []).append((form.data, start))
        self._anchors = tuple(anchors.items())
        self._starts = frozenset(anchor[:SHORTEST] for anchor in anchors)
        has_blanks = any(re.search(rb"\s", anchor) for anchor in anchors)
        shortest = min(map(len, anchors), default=0)
        self._run = re.compile(b"%s{%d}" % (b"." if has_blanks else rb"\S", shortest), re.DOTALL)

    def with_secrets(self, secrets: Iterable[str]) -> Redactor:
        return Redactor({*self._secrets, *secrets})

    def __call__(self, text: str) -> str:
        if not self._anchors:
            return text
        whole = text.encode("utf-8", "surrogatepass")
        # A secret that is broken over lines is found as well.
        lower = data = whole.lower()
        if b"\n" in data or b"\r" in data:
            data = _BREAK.sub(b"", lower)
        if self._is_clean(data):
            return text
        spans = sorted(self._find(data))
        if not spans:
            return text
        return _replace(whole, spans if data is lower else _spread(spans, lower))

    def _is_clean(self, data: bytes) -> bool:
        """Return whether a look at the text is enough: the lines of a log are short, and few have so many
        characters in a row."""
        if not self._run.search(data):
            return True
        if len(data) > _SHORT_TEXT:
            return False
        pieces = {data[at : at + SHORTEST] for at in range(len(data) - SHORTEST + 1)}
        return pieces.isdisjoint(self._starts)

    def _find(self, data: bytes) -> Iterator[tuple[int, int]]:
        for anchor, forms in self._anchors:
            at = data.find(anchor)
            while at >= 0:
                found = [_extend(data, at, len(anchor), *form) for form in forms]
                yield from found
                at = data.find(anchor, max(end for _, end in found))

    def __repr__(self) -> str:
        return f"Redactor({len(self._secrets)} secrets)"


def _extend(data: bytes, at: int, size: int, form: bytes, offset: int) -> tuple[int, int]:
    """Return how far the text agrees with the form around a match."""
    end, past = at + size, offset + size
    before = _longest(lambda count: data.endswith(form[offset - count : offset], 0, at), offset)
    after = _longest(lambda count: data.startswith(form[past : past + count], end), len(form) - past)
    return at - before, end + after


def _longest(agrees: Callable[[int], bool], most: int) -> int:
    """Return the largest count up to `most` that agrees; all smaller ones do too."""
    if not most or agrees(most):
        return most
    least = 0
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if agrees(middle) else (least, middle)
    return least


def _spread(spans: list[tuple[int, int]], lower: bytes) -> list[tuple[int, int]]:
    """Return the spans in the text with its line breaks."""
    places, removed = [0], [0]
    for found in _BREAK.finditer(lower):
        places.append(found.start() - removed[-1])
        removed.append(removed[-1] + len(found[0]))

    def place(at: int) -> int:
        return at + removed[bisect_right(places, at) - 1]

    return [(place(start), place(end - 1) + 1) for start, end in spans]


def _replace(whole: bytes, spans: list[tuple[int, int]]) -> str:
    """Return the text with a mark for each span; spans that overlap are one."""
    pieces: list[bytes] = []
    last = 0
    for start, end in spans:
        while whole[start] & 0xC0 == 0x80:  # half of a character is not cut off
            start += 1  # noqa: PLW2901
        while end < len(whole) and whole[end] & 0xC0 == 0x80:
            end -= 1  # noqa: PLW2901
        if start >= last:
            pieces += (whole[last:start], MARK.encode())
        last = max(last, end)
    return b"".join((*pieces, whole[last:])).decode("utf-8", "surrogatepass")


# -- forms


def _forms(secret: str) -> Iterator[_Form]:
    data = secret.encode("utf-8", "surrogatepass")
    texts = {
        data,
        data[::-1],
        quote(data, safe="").encode(),
        json.dumps(secret)[1:-1].encode(),
        json.dumps(secret, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass"),
    }
    lines = (_BREAK.sub(b"", text).lower() for text in texts)
    yield from (_Form(line) for line in lines if len(line) >= SHORTEST)
    yield _Form(data.hex().encode(), 2)
    for core in {core for shift in range(3) for core in _base64(data, shift)}:
        yield _Form(core.lower(), 4 / 3)
        yield _Form(core.replace(b"+", b"-").replace(b"/", b"_").lower(), 4 / 3)


def _base64(data: bytes, shift: int) -> Iterator[bytes]:
    """Yield the base64 of the secret behind `shift` other bytes: the characters that depend on it alone."""
    coded = b64encode(bytes(shift) + data).rstrip(b"=")
    start = (shift * 8 + 5) // 6
    yield coded[start:]  # nothing follows the secret
    if (shift + len(data)) % 3:
        yield coded[start:-1]


def _places(secret: str, form: _Form) -> Iterator[tuple[int, int]]:
    """Yield the parts of a form to search for: all of it, or its beginning and its end."""
    size = len(form.data)
    if len(secret) < _LONG:
        yield 0, size
        return
    public = max(secret.rfind(mark, 0, _PUBLIC) for mark in "-_:.") + 1
    yield 0, min(size, round(max(_PIECE, public + 8) * form.width))
    yield max(0, size - round(_PIECE * form.width)), size
