"""From our markdown to Telegram's HTML, and into pieces that fit a message. Pure.

What is rendered is always well formed: a mark that is not closed stays a plain character. Pieces are cut in
the source, before rendering, so that the plain text that stands in for a refused piece fits as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

MAX_CAPTION = 1024
LIMIT = 4000  # of 4096: leaves room for a mark before the text and the cursor behind it

_FENCE = re.compile(r"\s{0,3}(```+|~~~+)\s*([\w+#.-]{0,40})\s*$")
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
_FENCE_ROOM = 64  # for what closes a code block and opens it again
_TAGS = {"**": "b", "__": "b", "~~": "s", "*": "i", "_": "i"}


def units(text: str) -> int:
    """The length as Telegram counts it."""
    return len(text) + sum(char > "\uffff" for char in text)


def to_html(markdown: str) -> str:
    lines = markdown.split("\n")
    return "\n".join(_blocks(lines)).strip("\n")


def _blocks(lines: list[str]) -> Iterator[str]:
    position = 0
    while position < len(lines):
        line = lines[position]
        if fence := _FENCE.match(line):
            end = _closing(lines, position + 1, fence[1])
            yield _code("\n".join(lines[position + 1 : end]), fence[2])
            position = end + 1
        elif _TABLE_ROW.match(line):
            end = _run(lines, position, _TABLE_ROW)
            yield f"<pre>{escape(chr(10).join(lines[position:end]), quote=False)}</pre>"
            position = end
        elif _QUOTE.match(line):
            end = _run(lines, position, _QUOTE)
            quoted = [_QUOTE.sub(r"\1", each) for each in lines[position:end]]
            yield f"<blockquote>{chr(10).join(_inline(each) for each in quoted)}</blockquote>"
            position = end
        else:
            yield _line(line)
            position += 1


def _line(line: str) -> str:
    if heading := _HEADING.match(line):
        return f"<b>{_inline(heading[1])}</b>" if heading[1] else ""
    if _RULE.match(line):
        return "———"
    if bullet := _BULLET.match(line):
        return f"{bullet[1]}• {_inline(bullet[2])}"
    return _inline(line)


def _code(text: str, language: str) -> str:
    body = escape(text, quote=False)
    return (
        f'<pre><code class="language-{escape(language)}">{body}</code></pre>'
        if language
        else f"<pre>{body}</pre>"
    )


def _closing(lines: list[str], start: int, fence: str) -> int:
    """Where the fence ends; an unclosed one goes on to the end."""
    for position in range(start, len(lines)):
        stripped = lines[position].strip()
        if stripped.startswith(fence) and not stripped.strip(fence[0]):
            return position
    return len(lines)


def _run(lines: list[str], start: int, pattern: re.Pattern[str]) -> int:
    return next((at for at in range(start, len(lines)) if not pattern.match(lines[at])), len(lines))


class _Opened(NamedTuple):
    """A mark that may be closed yet: where it stands in the output, and where it ends in the text."""

    mark: str
    at: int
    end: int


def _inline(text: str) -> str:
    """Marks pair up like brackets: one that closes leaves those opened inside it as they were written."""
    out: list[str] = []
    opened: list[_Opened] = []
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
            _mark(token["mark"], text, token.start(), out, opened)
    out.append(escape(text[position:], quote=False))
    return "".join(out)


def _mark(mark: str, text: str, start: int, out: list[str], opened: list[_Opened]) -> None:
    end = start + len(mark)
    before = text[start - 1] if start else " "
    after = text[end] if end < len(text) else " "
    is_word_mark = mark[0] == "_"
    can_close = not before.isspace() and not (is_word_mark and after.isalnum())
    can_open = not after.isspace() and not (is_word_mark and before.isalnum())
    at = next((at for at in range(len(opened) - 1, -1, -1) if opened[at].mark == mark), None)
    if can_close and at is not None and opened[at].end < start:
        out[opened[at].at] = f"<{_TAGS[mark]}>"
        out.append(f"</{_TAGS[mark]}>")
        del opened[at:]
        return
    if can_open and len(opened) < _MAX_OPEN:
        opened.append(_Opened(mark, len(out), end))
    out.append(mark)


# -- pieces -------------------------------------------------------------------------------------------------


def split(markdown: str, limit: int = LIMIT) -> tuple[str, ...]:
    """Pieces of at most `limit` units, cut between paragraphs, lines or words, as the text allows. A code
    block that is cut is closed in one piece and opened again in the next."""
    pieces: list[str] = []
    current: list[str] = []
    size = 0
    fence = ""
    for line in _short_lines(markdown.strip("\n"), limit - _FENCE_ROOM):
        room = limit - (units(_mark_of(fence)) + 1 if fence else 0)
        cost = units(line) + 1
        if current and size + cost > room:
            keep = len(current) if fence else _paragraph_end(current)
            pieces.append("\n".join([*current[:keep], *([_mark_of(fence)] if fence else [])]).strip("\n"))
            current = [fence, *current[keep:]] if fence else current[keep:]
            size = sum(units(each) + 1 for each in current)
        current.append(line)
        size += cost
        fence = _fence_after(line, fence)
    pieces.append("\n".join(current).strip("\n"))
    return tuple(piece for piece in pieces if piece.strip()) or ("(an empty reply)",)


def _mark_of(fence: str) -> str:
    return fence.strip()[:3]


def _fence_after(line: str, fence: str) -> str:
    """The line that opened the code block in which the next line stands, or nothing."""
    found = _FENCE.match(line)
    if fence:
        closes = found is not None and not found[2] and found[1].startswith(_FENCE.match(fence)[1])  # type: ignore[index]
        return "" if closes else fence
    return line if found else ""


def _paragraph_end(lines: list[str]) -> int:
    """Behind the last empty line in the second half, else the end: the rest moves to the next piece. Never
    so that a code block would be cut: an opening fence in what moves is moved whole."""
    for at in range(len(lines) - 1, len(lines) // 2, -1):
        if not lines[at].strip() and not any(_FENCE.match(line) for line in lines[at:]):
            return at + 1
    return len(lines)


def _short_lines(text: str, limit: int) -> Iterator[str]:
    """Lines, the long ones cut at spaces where there are any."""
    for line in text.split("\n"):
        rest = line
        while units(rest) > limit:
            cut = _cut(rest, limit)
            space = rest.rfind(" ", cut // 2, cut)
            at = space if space > 0 else cut
            yield rest[:at]
            rest = rest[at:].lstrip(" ") if space > 0 else rest[at:]
        yield rest


def _cut(text: str, limit: int) -> int:
    """How many characters fit into `limit` units."""
    at = min(len(text), limit)
    while units(text[:at]) > limit:
        at -= max(1, (units(text[:at]) - limit) // 2)
    return at


def shorten(text: str, limit: int) -> str:
    return text if units(text) <= limit else text[: _cut(text, limit - 1)] + "…"


def tail(text: str, limit: int) -> str:
    """The end of the text, for what is still being written."""
    if units(text) <= limit:
        return text
    kept = text[-limit // 2 :]
    _, newline, rest = kept.partition("\n")
    return "…\n" + (rest if newline and rest else kept)
