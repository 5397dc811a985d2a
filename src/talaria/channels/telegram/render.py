"""Renders markdown as Telegram's HTML, and splits it into messages. Pure.

The HTML is always well formed: a mark that is not closed stays a plain character. The markdown is split
before it is rendered, so that a piece also fits when Telegram refuses its formatting and it is sent as plain
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

MAX_CAPTION = 1024
LIMIT = 4000  # of 4096: leaves room for a mark before the text and the cursor after it

_FENCE = re.compile(r"\s{0,3}(`{3,16}|~{3,16})\s*([\w+#.-]{0,40})\s*$")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_BULLET = re.compile(r"(\s*)[-*+]\s+(.*)$")
_QUOTE = re.compile(r"\s{0,3}>\s?(.*)$")
_RULE = re.compile(r"\s{0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$")
_TABLE_ROW = re.compile(r"\s*\|.*\|\s*$")
_TOKEN = re.compile(
    r"(?P<code>`[^`\n]+`)"
    r"|!?\[(?P<label>[^\[\]\n]{1,300})\]\((?P<url>(?:https?://|tg://|mailto:)[^\s()<>]{1,1000})\)"
    r"|(?P<mark>\*\*|__|~~|\*|_)"
)
_MAX_OPEN = 32
_FENCE_ROOM = 64  # for the lines that close a code block and open it again
_TAGS = {"**": "b", "__": "b", "~~": "s", "*": "i", "_": "i"}


def units(text: str) -> int:
    """Return the length in UTF-16 units, as Telegram counts it."""
    return len(text) + sum(char > "\uffff" for char in text)


# -- rendering --------------------------------------------------------------------------------------------


def to_html(markdown: str) -> str:
    return "\n".join(_render_blocks(markdown.split("\n"))).strip("\n")


def _render_blocks(lines: list[str]) -> Iterator[str]:
    position = 0
    while position < len(lines):
        line = lines[position]
        if fence := _FENCE.match(line):
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
            yield f"<blockquote>{chr(10).join(_render_inline(each) for each in quoted)}</blockquote>"
            position = end
        else:
            yield _render_line(line)
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


def _render_line(line: str) -> str:
    if heading := _HEADING.match(line):
        return f"<b>{_render_inline(heading[1])}</b>" if heading[1] else ""
    if _RULE.match(line):
        return "———"
    if bullet := _BULLET.match(line):
        return f"{bullet[1]}• {_render_inline(bullet[2])}"
    return _render_inline(line)


class _OpenMark(NamedTuple):
    """A mark that is not closed yet: its position in the output, and its end in the text."""

    mark: str
    position: int
    end: int


def _render_inline(text: str) -> str:
    """Marks pair up like brackets. When a mark closes, marks that were opened inside it stay plain."""
    out: list[str] = []
    opened: list[_OpenMark] = []
    position = 0
    for token in _TOKEN.finditer(text):
        out.append(escape(text[position : token.start()], quote=False))
        position = token.end()
        if token["code"]:
            out.append(f"<code>{escape(token['code'][1:-1], quote=False)}</code>")
        elif token["url"]:
            label = escape(token["label"], quote=False)
            out.append(f'<a href="{escape(token["url"])}">{label}</a>')
        else:
            _render_mark(token["mark"], text, token.start(), out, opened)
    out.append(escape(text[position:], quote=False))
    return "".join(out)


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


def split(markdown: str, limit: int = LIMIT) -> tuple[str, ...]:
    """Return pieces of at most `limit` units, cut between paragraphs, lines or words if possible. A code
    block that is cut is closed in one piece and opened again in the next."""
    pieces: list[str] = []
    current: list[str] = []
    size = 0
    fence: re.Match[str] | None = None  # the line that opened the current code block
    for line in _split_lines(markdown.strip("\n"), limit - _FENCE_ROOM):
        cost = units(line) + 1
        if current and size + cost > limit - (len(fence[1]) + 1 if fence else 0):
            keep = len(current) if fence else _find_paragraph_end(current)
            pieces.append("\n".join([*current[:keep], *([fence[1]] if fence else [])]).strip("\n"))
            current = [*([fence[1] + fence[2]] if fence else []), *current[keep:]]
            size = sum(units(each) + 1 for each in current)
        current.append(line)
        size += cost
        found = _FENCE.match(line)
        if fence is None:
            fence = found
        elif found and not found[2] and found[1].startswith(fence[1]):
            fence = None
    pieces.append("\n".join(current).strip("\n"))
    return tuple(piece for piece in pieces if piece.strip()) or ("(an empty reply)",)


def _find_paragraph_end(lines: list[str]) -> int:
    """Return the index after the last blank line in the second half; the lines behind it move to the next
    piece. Return the end if there is none, or if a fence follows it: no code block may be cut."""
    for at in range(len(lines) - 1, len(lines) // 2, -1):
        if _FENCE.match(lines[at]):
            break
        if not lines[at].strip():
            return at + 1
    return len(lines)


def _split_lines(text: str, limit: int) -> Iterator[str]:
    """Yield lines of at most `limit` units; longer lines are cut, at a space if possible."""
    for line in text.split("\n"):
        start = 0
        while units(line[start : start + limit + 1]) > limit:
            end = start + _count_fitting(line[start : start + limit], limit)
            space = line.rfind(" ", (start + end) // 2, end)
            yield line[start : space if space > 0 else end]
            start = space + 1 if space > 0 else end
        yield line[start:]


def _count_fitting(text: str, limit: int) -> int:
    """Return how many characters fit into `limit` units."""
    at = min(len(text), limit)
    while units(text[:at]) > limit:
        at -= max(1, (units(text[:at]) - limit) // 2)
    return at


def shorten(text: str, limit: int) -> str:
    return text if units(text) <= limit else text[: _count_fitting(text, limit - 1)] + "…"


def tail(text: str, limit: int) -> str:
    """Return the end of a text that is still being written."""
    if units(text) <= limit:
        return text
    kept = text[-limit // 2 :]
    _, newline, rest = kept.partition("\n")
    return "…\n" + (rest if newline and rest else kept)
