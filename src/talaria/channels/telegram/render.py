"""Renders markdown as Telegram's HTML, and splits it into messages. Pure.

The HTML is always well formed: a mark that is not closed stays a plain character. The markdown is split
before it is rendered, so that a piece also fits when Telegram refuses its formatting and it is sent as plain
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape, unescape
from typing import NamedTuple, TypedDict

from talaria.channels.links import WITH_SCHEME, find_addresses, is_outer

MAX_CAPTION = 1024
LIMIT = 4000  # of 4096: leaves room for a mark before the text and the cursor after it

_FENCE = re.compile(r"\s{0,3}(`{3,16}|~{3,16})\s*([\w+#.-]{0,40})\s*$")
_FENCE_LINE = re.compile(r"^[^\S\n]{0,3}(`{3,16}|~{3,16})[^\S\n]*([\w+#.-]{0,40})[^\S\n]*$", re.MULTILINE)
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*)$")
_BULLET = re.compile(r"(\s*)[-*+]\s+(.*)$")
_QUOTE = re.compile(r"\s{0,3}>\s?(.*)$")
_RULE = re.compile(r"\s{0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$")
_TABLE_ROW = re.compile(r"\s*\|.*\|\s*$")
_TOKEN = re.compile(
    r"(?P<code>`[^`\n]+`)"
    r"|!?\[(?P<label>[^\[\]\n]{1,300})\]\((?P<url>(?:[A-Za-z][A-Za-z0-9+.-]{0,30}:|//)[^\s()<>]{1,1000})\)"
    rf"|(?P<bare>{WITH_SCHEME})"
    r"|(?P<mark>\*\*|__|~~|\*|_)"
)
_SPECIAL = re.compile(r"[*_~`\[.:&<>]")
_EMPHASIS = re.compile("</?[bis]>")
_NO_TEXT = re.compile("<code>[^<]*</code>|<a [^<]*</a>")
_MAX_OPEN = 32
_MAX_ENTITIES = 100  # Telegram ignores the marks of a message from there on
_CLOSING_ROOM = 17  # for the line that closes a code block
_TAGS = {"**": "b", "__": "b", "~~": "s", "*": "i", "_": "i"}


Hosts = frozenset[str]


class CodeEntity(TypedDict):
    """`offset` and `length` count UTF-16 units."""

    type: str
    offset: int
    length: int


def units(text: str) -> int:
    """Return the length in UTF-16 units, as Telegram counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


# -- rendering --------------------------------------------------------------------------------------------


def to_html(markdown: str, own: Hosts = frozenset()) -> str:
    """Return Telegram's HTML. `own` are the gateway's hosts; see `core.links` for what becomes a link.

    Telegram turns bare addresses into links by itself, but not in code: the addresses that must not be links
    are shown as code. A message with more marks than Telegram reads is one block of code if it has such
    addresses.
    """
    html = "\n".join(_render_blocks(markdown.split("\n"), own)).strip("\n")
    if html.count("</") > _MAX_ENTITIES and refused_addresses(markdown, own):
        return f"<pre>{escape(markdown, quote=False)}</pre>"
    return html


def refused_addresses(text: str, own: Hosts = frozenset()) -> list[CodeEntity]:
    """Return the entities for a plain text, in which the same addresses are shown as code."""
    refused = [found for found in find_addresses(text, own) if not found.is_outer]
    if len(refused) > _MAX_ENTITIES:
        return [{"type": "pre", "offset": 0, "length": units(text)}]
    return [
        {"type": "code", "offset": units(text[: found.start]), "length": units(text[found.start : found.end])}
        for found in refused
    ]


def _render_blocks(lines: list[str], own: Hosts) -> Iterator[str]:
    position = 0
    while position < len(lines):
        line = lines[position]
        if not line or line.isspace():
            yield line
            position += 1
        elif fence := _FENCE.match(line):
            end = _find_closing(lines, position + 1, fence[1])
            code = escape("\n".join(lines[position + 1 : end]), quote=False)
            if fence[2]:
                code = f'<code class="language-{escape(fence[2])}">{code}</code>'
            yield f"<pre>{code}</pre>"
            position = end + 1
        elif _TABLE_ROW.match(line):
            end = _find_end(lines, position, _TABLE_ROW)
            yield f"<pre>{escape(chr(10).join(lines[position:end]), quote=False)}</pre>"
            position = end
        elif _QUOTE.match(line):
            end = _find_end(lines, position, _QUOTE)
            quoted = [_QUOTE.sub(r"\1", each) for each in lines[position:end]]
            yield f"<blockquote>{chr(10).join(_render_inline(each, own) for each in quoted)}</blockquote>"
            position = end
        else:
            yield _render_line(line, own)
            position += 1


def _find_closing(lines: list[str], start: int, fence: str) -> int:
    """Return the line that closes a code block; the end of the text if none does."""
    for position in range(start, len(lines)):
        stripped = lines[position].strip()
        if stripped.startswith(fence) and not stripped.strip(fence[0]):
            return position
    return len(lines)


def _find_end(lines: list[str], start: int, pattern: re.Pattern[str]) -> int:
    return next((at for at in range(start, len(lines)) if not pattern.match(lines[at])), len(lines))


def _render_line(line: str, own: Hosts) -> str:
    if heading := _HEADING.match(line):
        title = heading[1].rstrip().rstrip("#").rstrip()
        return f"<b>{_render_inline(title, own)}</b>" if title else ""
    if _RULE.match(line):
        return "———"
    if bullet := _BULLET.match(line):
        return f"{bullet[1]}• {_render_inline(bullet[2], own)}"
    return _render_inline(line, own)


class _OpenMark(NamedTuple):
    """A mark that is not closed yet: its position in the output, and its end in the text."""

    mark: str
    position: int
    end: int


def _render_inline(text: str, own: Hosts) -> str:
    if not _SPECIAL.search(text):
        return text
    html = _render_tokens(text, own, with_marks=True)
    shown = unescape(_EMPHASIS.sub("", _NO_TEXT.sub(" ", html)))
    if any(not found.is_outer for found in find_addresses(shown, own)):
        # Marks or brackets hid an address, as in 12*7*.0.0.1: without their meaning they stay in the text.
        return _render_tokens(text, own, with_marks=False)
    return html


def _render_tokens(text: str, own: Hosts, *, with_marks: bool) -> str:
    """Marks pair up like brackets. When a mark closes, marks that were opened inside it stay plain."""
    out: list[str] = []
    opened: list[_OpenMark] = []
    position = 0
    for token in _TOKEN.finditer(text):
        out.append(_render_text(text[position : token.start()], own))
        position = token.end()
        if token["code"]:
            out.append(_as_code(token["code"][1:-1]))
        elif token["url"] and is_outer(token["url"], own):
            out.append(f'<a href="{escape(token["url"])}">{escape(token["label"], quote=False)}</a>')
        elif token["url"] and with_marks:
            out.append(f"{_render_text(token['label'], own)} ({_as_code(token['url'])})")
        elif bare := token["bare"]:
            out.append(escape(bare, quote=False) if is_outer(bare, own) else _as_code(bare))
        elif with_marks:
            _render_mark(token["mark"], text, token.start(), out, opened)
        else:
            out.append(_render_text(token[0], own))
    out.append(_render_text(text[position:], own))
    return "".join(out)


def _render_text(text: str, own: Hosts) -> str:
    out: list[str] = []
    position = 0
    for found in find_addresses(text, own):
        if not found.is_outer:
            out += (
                escape(text[position : found.start], quote=False),
                _as_code(text[found.start : found.end]),
            )
            position = found.end
    return "".join((*out, escape(text[position:], quote=False)))


def _as_code(text: str) -> str:
    return f"<code>{escape(text, quote=False)}</code>"


def _render_mark(mark: str, text: str, start: int, out: list[str], opened: list[_OpenMark]) -> None:
    end = start + len(mark)
    before = text[start - 1] if start else " "
    after = text[end] if end < len(text) else " "
    is_word_mark = mark[0] == "_"  # not within a word
    can_close = not before.isspace() and not (is_word_mark and after.isalnum())
    can_open = not after.isspace() and not (is_word_mark and before.isalnum())
    at = next((at for at in range(len(opened) - 1, -1, -1) if opened[at].mark == mark), None)
    if can_close and at is not None and opened[at].end < start:
        out[opened[at].position] = f"<{_TAGS[mark]}>"
        out.append(f"</{_TAGS[mark]}>")
        del opened[at:]
        return
    if can_open and len(opened) < _MAX_OPEN:
        opened.append(_OpenMark(mark, len(out), end))
    out.append(mark)


# -- splitting --------------------------------------------------------------------------------------------


def split(markdown: str, limit: int = LIMIT) -> Iterator[str]:
    """Yield pieces of at most `limit` units, cut between paragraphs, lines or words if possible. A code block
    that is cut is closed in one piece and opened again in the next.

    Each step looks at no more text than fits into one piece. A step over blank text yields an empty piece.
    """
    start, end = 0, len(markdown)
    fence: _Fence | None = None
    while start < end:
        opening = f"{fence.marks}{fence.language}\n" if fence else ""
        window = _fit(markdown, start, limit - units(opening) - _CLOSING_ROOM)
        cut, fence = _find_cut(window, fence, is_last=start + len(window) >= end)
        piece = (opening + window[:cut] if opening else window[:cut].lstrip("\n")).rstrip("\n")
        start += cut
        if start < end:
            if fence:
                piece += f"\n{fence.marks}"
            if markdown[start] in "\n ":
                start += 1
        yield piece if piece.strip() else ""


class _Fence(NamedTuple):
    """The line that opens a code block."""

    marks: str
    language: str


def _find_cut(window: str, fence: _Fence | None, *, is_last: bool) -> tuple[int, _Fence | None]:
    """Return where to end a piece, and the code block that is open there."""
    if is_last:
        return len(window), None
    cut = window.rfind("\n", len(window) // 4)
    if cut < 0:
        cut = window.rfind(" ", len(window) // 2)
    cut = cut if cut > 0 else len(window)
    behind = 0  # the end of the last fence: a piece is not cut before it, so no code block is cut in vain
    for found in _FENCE_LINE.finditer(window, 0, cut):
        if fence is None:
            fence = _Fence(found[1], found[2])
        elif not found[2] and found[1].startswith(fence.marks):
            fence = None
        else:
            continue
        behind = found.end()
    if fence is None and (paragraph := window.rfind("\n\n", max(behind, len(window) // 2), cut)) > 0:
        cut = paragraph
    return cut, fence


def _fit(text: str, start: int, limit: int) -> str:
    """Return as much of the text from `start` on as fits into `limit` units."""
    kept = text[start : start + limit]
    if kept.isascii() or units(kept) <= limit:
        return kept
    data = kept.encode("utf-16-le", "surrogatepass")[: 2 * limit]
    is_half = 0xD8 <= data[-1] < 0xDC
    return data[: -2 if is_half else None].decode("utf-16-le", "surrogatepass")


def shorten(text: str, limit: int) -> str:
    return text if units(text) <= limit else _fit(text, 0, limit - 1) + "…"


def tail(text: str, limit: int) -> str:
    """Return the end of a text that is still being written."""
    if units(text) <= limit:
        return text
    kept = text[-limit // 2 :]
    _, newline, rest = kept.partition("\n")
    return "…\n" + (rest if newline and rest else kept)
