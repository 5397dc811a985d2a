"""Renders markdown as Telegram's HTML. Pure.

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
from talaria.channels.pieces import BULLET, FENCE, QUOTE, RULE, TABLE_ROW, find_closing, units

MAX_CAPTION = 1024
LIMIT = 4000  # of 4096: leaves room for a mark before the text and the cursor after it

_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*)$")
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
_TAGS = {"**": "b", "__": "b", "~~": "s", "*": "i", "_": "i"}


Hosts = frozenset[str]


class CodeEntity(TypedDict):
    """`offset` and `length` count UTF-16 units."""

    type: str
    offset: int
    length: int


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
        elif fence := FENCE.match(line):
            end = find_closing(lines, position + 1, fence[1])
            code = escape("\n".join(lines[position + 1 : end]), quote=False)
            if fence[2]:
                code = f'<code class="language-{escape(fence[2])}">{code}</code>'
            yield f"<pre>{code}</pre>"
            position = end + 1
        elif TABLE_ROW.match(line):
            end = _find_end(lines, position, TABLE_ROW)
            yield f"<pre>{escape(chr(10).join(lines[position:end]), quote=False)}</pre>"
            position = end
        elif QUOTE.match(line):
            end = _find_end(lines, position, QUOTE)
            quoted = [QUOTE.sub(r"\1", each) for each in lines[position:end]]
            yield f"<blockquote>{chr(10).join(_render_inline(each, own) for each in quoted)}</blockquote>"
            position = end
        else:
            yield _render_line(line, own)
            position += 1


def _find_end(lines: list[str], start: int, pattern: re.Pattern[str]) -> int:
    return next((at for at in range(start, len(lines)) if not pattern.match(lines[at])), len(lines))


def _render_line(line: str, own: Hosts) -> str:
    if heading := _HEADING.match(line):
        title = heading[1].rstrip().rstrip("#").rstrip()
        return f"<b>{_render_inline(title, own)}</b>" if title else ""
    if RULE.match(line):
        return "———"
    if bullet := BULLET.match(line):
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
