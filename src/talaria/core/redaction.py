"""Removal of secrets from text, by value: whole or cut, in the usual encodings, in any case.

A long secret is found by the beginning or the end of each of its forms, which are extended as far as the text
agrees: a secret that was cut is found by what is left of it. A short secret is found only as a whole, because
pieces of it could be ordinary words. Searching takes time in proportion to the text.

A secret that a program writes in parts is found by a `StreamRedactor`, which holds back the end of a text as
long as it may be the beginning of a secret.
"""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

SHORTEST = 6  # characters of a secret; a shorter one could be part of any text
_LONG = 16  # characters, from which on pieces of a secret are found too
_PIECE = 12  # the shortest piece
_PUBLIC = 16  # characters in which the beginning that all keys of a provider share, as sk-proj-, may end
_WORD = 4  # bytes that are compared at once; a text of 7 bytes has a whole word at a multiple of 4
_SIEVED = 2 * _WORD - 1
_BLOCK = 4096  # words; only anchors with a word in a block are searched for in it
_BEGINNING = 6  # bytes of a form by which it is looked up
_MAX_HELD = 64 << 10
_RECENT = 16
_BREAK = re.compile(rb"[\r\n][ \t\r\n]*")
_INDENT = re.compile(rb"[\r\n][ \t]")


class Secret(NamedTuple):
    """A secret, and the variable or the key of config.toml that it came from. Never shown."""

    name: str
    value: str

    def __repr__(self) -> str:
        return f"Secret({self.name})"


def mark_of(name: str) -> str:
    """Return the text that stands for a secret."""
    return f"[secret {name}]"


class _Form(NamedTuple):
    """A secret in one encoding, in lower case; `width` bytes of it stand for one byte of the secret."""

    data: bytes
    width: float = 1.0


class _Anchored(NamedTuple):
    """A form that has an anchor at `offset`."""

    form: bytes
    offset: int
    name: str


class _Span(NamedTuple):
    start: int
    end: int
    name: str


class Redactor:
    """Replaces each known secret by `[secret NAME]`. Immutable."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        names: dict[str, str] = {}
        for name, value in sorted(secrets):
            if len(value) >= SHORTEST:
                names.setdefault(value, name)
        self._names = names
        anchors: dict[bytes, list[_Anchored]] = {}
        starts: dict[int, list[bytes]] = {}
        for value, name in names.items():
            for form in _forms(value):
                starts.setdefault(form.data[0], []).append(form.data)
                for start, end in _places(value, form):
                    anchors.setdefault(form.data[start:end], []).append(_Anchored(form.data, start, name))
        self._anchors = {anchor: tuple(found) for anchor, found in anchors.items()}
        self._starts = {first: tuple(forms) for first, forms in starts.items()}
        lengths = range(1, _BEGINNING + 1)
        self._beginnings = frozenset(
            form[:length] for forms in starts.values() for form in forms for length in lengths
        )
        self._longest = max((len(form) for forms in starts.values() for form in forms), default=0)
        self._shortest = min(map(len, anchors), default=0)
        # Whichever way an anchor lies in a text, one of its first four words is at a multiple of four there.
        words: dict[int, list[bytes]] = {}
        for anchor in anchors:
            for at in range(_WORD if len(anchor) >= _SIEVED else 0):
                word = int.from_bytes(anchor[at : at + _WORD], sys.byteorder)
                words.setdefault(word, []).append(anchor)
        self._words = frozenset(words)
        self._by_word = words
        self._unsieved = tuple(anchor for anchor in anchors if len(anchor) < _SIEVED)

    def __bool__(self) -> bool:
        return bool(self._names)

    def with_secrets(self, secrets: Iterable[Secret]) -> Redactor:
        """Return a redactor that knows these secrets too; this one if it knows them already."""
        new = [secret for secret in secrets if secret.value not in self._names]
        return Redactor([*self.secrets(), *new]) if new else self

    def secrets(self) -> Iterator[Secret]:
        return (Secret(name, value) for value, name in self._names.items())

    def __call__(self, text: str) -> str:
        if not self._names or len(text) < SHORTEST:
            return text
        whole = text.encode("utf-8", "surrogatepass")
        spans = self._find(whole)
        return _replace(whole, spans).decode("utf-8", "surrogatepass") if spans else text

    def redact_bytes(self, data: bytes) -> bytes:
        spans = self._find(data) if self._names else []
        return _replace(data, spans) if spans else data

    def names_in(self, data: bytes) -> list[str]:
        """Return the names of the secrets that the data holds."""
        return sorted({span.name for span in self._find(data)}) if self._names else []

    def stream(self) -> StreamRedactor:
        """Return a redactor for one text that comes in parts."""
        return StreamRedactor(self)

    def _find(self, whole: bytes) -> list[_Span]:
        lower, data = _normalised(whole)
        spans = self._spans(data)
        return spans if data is lower or not spans else _spread(spans, lower)

    def _spans(self, data: bytes) -> list[_Span]:
        """Return where secrets are in a text in lower case without line breaks, in order."""
        found: set[_Span] = set()
        for anchor in self._unsieved:
            found.update(self._matches(data, anchor, 0, len(data)))
        view = memoryview(data)[: len(data) // _WORD * _WORD].cast("I")
        for block in range(0, len(view), _BLOCK):
            if not (words := self._words.intersection(view[block : block + _BLOCK])):
                continue
            # An anchor begins at most three bytes before its word.
            start, end = max(0, block * _WORD - _WORD), (block + _BLOCK) * _WORD
            for anchor in {anchor for word in words for anchor in self._by_word[word]}:
                found.update(self._matches(data, anchor, start, end + len(anchor)))
        return sorted(found, key=lambda span: (span.start, -span.end, span.name)) if found else []

    def _matches(self, data: bytes, anchor: bytes, start: int, end: int) -> Iterator[_Span]:
        at = data.find(anchor, start, end)
        while at >= 0:
            found = [_extend(data, at, len(anchor), form) for form in self._anchors[anchor]]
            yield from found
            at = data.find(anchor, max(span.end for span in found), end)

    def _unfinished(self, data: bytes) -> int:
        """Return where the longest end of the text begins that may be the beginning of a secret."""
        size, beginnings = len(data), self._beginnings
        for at in range(max(0, size - self._longest), size):
            if data[at : at + _BEGINNING] in beginnings:
                end = data[at:]
                if any(form.startswith(end) for form in self._starts[data[at]]):
                    return at
        return size

    def __repr__(self) -> str:
        return f"Redactor({len(self._names)} secrets)"


class StreamRedactor:
    """Redacts one text that comes in parts. Not safe for several threads at once.

    `feed` returns what can be shown already. `finish` returns the rest, when the text has ended. The text is
    either bytes or, with `feed_text` and `finish_text`, a text.
    """

    __slots__ = ("_held", "_is_idle", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._is_idle = not redactor  # it knows no secret
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        redactor = self._redactor
        if self._is_idle:
            return data
        whole = self._held + data if self._held else data
        lower, joined = _normalised(whole)
        spans = redactor._spans(joined) if len(joined) >= redactor._shortest else []
        cut = redactor._unfinished(joined)
        for span in reversed(spans):  # a secret is shown whole or not yet
            if span.start < cut < span.end:
                cut = span.start
        if joined is not lower:
            spans, cut = _spread(spans, lower), _place(lower, cut, len(joined))
        while 0 < cut < len(whole) and whole[cut] & 0xC0 == 0x80:  # nor half a character
            cut -= 1
        if len(whole) - cut > max(_MAX_HELD, 2 * redactor._longest):
            cut = len(whole)
        self._held = whole[cut:]
        shown = whole[:cut]
        return _replace(shown, [span for span in spans if span.end <= cut]) if spans else shown

    def finish(self) -> bytes:
        rest, self._held = self._held, b""
        return self._redactor.redact_bytes(rest)

    def feed_text(self, text: str) -> str:
        if self._is_idle:
            return text
        return self.feed(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def finish_text(self) -> str:
        return self.finish().decode("utf-8", "surrogatepass")


class Redacted(str):
    """A text without the secrets that `redactor` knows, which it need not be asked to find again."""

    redactor: Redactor

    def __new__(cls, text: str, redactor: Redactor) -> Self:
        made = super().__new__(cls, text)
        made.redactor = redactor
        return made


class SecretRegistry:
    """The secrets of this process, with their names. Every sink asks it for the current redactor.

    A secret that was known once stays known: it may still be valid elsewhere. Safe in any thread.
    """

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._lasting = Redactor(secrets)
        self._recent: deque[Secret] = deque(maxlen=_RECENT)
        self.redactor = self._lasting

    def add(self, secrets: Iterable[Secret]) -> None:
        self._lasting = self._lasting.with_secrets(secrets)
        self.redactor = self._lasting.with_secrets(self._recent)

    def add_recent(self, secret: Secret) -> None:
        """Add a secret of a kind of which there may be any number. Only the last ones of them are known."""
        self._recent.append(secret)
        self.redactor = self._lasting.with_secrets(self._recent)

    def __call__(self, text: str) -> str:
        return self.redactor(text)


def _normalised(whole: bytes) -> tuple[bytes, bytes]:
    """Return the text in lower case, with and without line breaks: a secret that is broken over lines is
    found as well. Both are the same object if there are none."""
    lower = whole.lower()
    if b"\n" not in lower and b"\r" not in lower:
        return lower, lower
    if _INDENT.search(lower) is None:
        return lower, lower.translate(None, b"\r\n")
    first, *rest = lower.replace(b"\r", b"\n").split(b"\n")
    return lower, first + b"".join([line.lstrip(b" \t") for line in rest])


def _extend(data: bytes, at: int, size: int, anchored: _Anchored) -> _Span:
    """Return how far the text agrees with the form around a match."""
    form, offset, name = anchored
    end, past = at + size, offset + size
    before = _longest(lambda count: data.endswith(form[offset - count : offset], 0, at), offset)
    after = _longest(lambda count: data.startswith(form[past : past + count], end), len(form) - past)
    return _Span(at - before, end + after, name)


def _longest(agrees: Callable[[int], bool], most: int) -> int:
    """Return the largest count up to `most` that agrees; all smaller ones do too."""
    if not most or agrees(most):
        return most
    least = 0
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if agrees(middle) else (least, middle)
    return least


def _spread(spans: list[_Span], lower: bytes) -> list[_Span]:
    """Return the spans in the text with its line breaks. Takes long for a long text with many lines."""
    if not spans:
        return []
    places, removed = [0], [0]
    for found in _BREAK.finditer(lower):
        places.append(found.start() - removed[-1])
        removed.append(removed[-1] + len(found[0]))

    def place(at: int) -> int:
        return at + removed[bisect_right(places, at) - 1]

    return [_Span(place(start), place(end - 1) + 1, name) for start, end, name in spans]


def _place(lower: bytes, at: int, size: int) -> int:
    """Return the place of one character in the text with its line breaks; `size` is that without them.

    It is near the end, so lines are looked at from there: a text of short lines would cost much otherwise.
    """
    if at == size:
        return len(lower)
    begin, window = len(lower), 4 * (size - at) + 64
    while begin:
        begin = max(0, lower.rfind(b"\n", 0, max(0, len(lower) - window)))
        tail = lower[begin:]
        before = size - (len(tail) - sum(len(found[0]) for found in _BREAK.finditer(tail)))
        if before <= at:
            return begin + _spread([_Span(at - before, at - before + 1, "")], tail)[0].start
        window *= 4
    return 0


def _replace(whole: bytes, spans: list[_Span]) -> bytes:
    """Return the text with a mark for each span; spans that overlap are one."""
    pieces: list[bytes] = []
    last = 0
    for start, end, name in spans:
        while whole[start] & 0xC0 == 0x80:  # half of a character is not cut off
            start += 1  # noqa: PLW2901
        while end < len(whole) and whole[end] & 0xC0 == 0x80:
            end -= 1  # noqa: PLW2901
        if start >= last:
            pieces += (whole[last:start], mark_of(name).encode())
        last = max(last, end)
    return b"".join((*pieces, whole[last:]))


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


# -- the address of an API, with its credentials taken apart ----------------------------------------------


HIDDEN = "…"
_BOT_TOKEN = re.compile(r"/bot([0-9]+:[A-Za-z0-9_-]{10,})(?=/|$)")
_PASSWORD = re.compile(r"([\w+.-]+://[^:@/?#\s]*):([^/?#\s]*)@")
_SHOWN = re.compile("version", re.IGNORECASE)  # the parameters of a query that are no secret


def hide_passwords(text: str) -> str:
    """Return the text with PASSWORD in place of the passwords of addresses in it."""
    return _PASSWORD.sub(r"\1:PASSWORD@", text)


def password_of(text: str) -> str:
    """Return the password of a URL as it is written there; an empty text for any other text.

    `urlsplit` cannot read every PostgreSQL URL: some Pythons refuse a list of hosts with an IPv6 address.
    """
    found = _PASSWORD.match(text.strip())
    return found[2] if found else ""


class ApiAddress(str):
    """An address as it may be shown: without user and password, without the values of the query, and without
    the token of a bot in its path.

    It is a text, so it can be printed, logged, stored and compared like one. `target` and `authorization`
    have the credentials and are for requests only. Two addresses are equal only if their credentials are.
    """

    whole: str
    """The address as it was written, for config.toml only."""
    secrets: frozenset[str]
    """The credentials in it, for the redactor."""
    authorization: str | None
    """The header for user and password; None without them."""
    _base: str
    _query: str

    def __new__(cls, url: str) -> ApiAddress:
        if isinstance(url, ApiAddress):
            return url
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = SplitResult("", "", "", "", "")
        userinfo, at, host = parts.netloc.rpartition("@")
        path = _BOT_TOKEN.sub("", parts.path)
        query = [name_and_value.partition("=") for name_and_value in parts.query.split("&") if name_and_value]
        if at or query or parts.fragment or path != parts.path:
            shown = "&".join(
                f"{name}{sign}{value if _SHOWN.search(name) else HIDDEN if value else ''}"
                for name, sign, value in query
            )
            clean = parts._replace(netloc=host, path=path, query=shown, fragment="").geturl()
        else:
            clean = url
        self = super().__new__(cls, clean)
        self.whole = url
        self._base = parts._replace(netloc=host, path=path.rstrip("/"), query="", fragment="").geturl() or url
        self._query = parts.query
        user, _, password = userinfo.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        self.authorization = f"Basic {b64encode(pair).decode()}" if at else None
        values = [value for name, value in parse_qsl(parts.query) if not _SHOWN.search(name)]
        found = {password or user, unquote(password or user), *values, *_BOT_TOKEN.findall(parts.path)}
        self.secrets = frozenset(found - {""})
        return self

    def target(self, path: str) -> str:
        """Return the address of `path` below this one, with the query and without user and password."""
        return f"{self._base}{path}{'?' if self._query else ''}{self._query}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ApiAddress):
            return self.whole == other.whole
        return str.__eq__(self, other) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__
