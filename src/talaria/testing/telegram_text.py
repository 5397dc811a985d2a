"""Text as Telegram reads it: formatting becomes entities, lengths are in UTF-16, errors have its words."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

import msgspec

_ALIASES = {"strong": "b", "em": "i", "ins": "u", "strike": "s", "del": "s"}
_KINDS = {
    "b": "bold",
    "i": "italic",
    "u": "underline",
    "s": "strikethrough",
    "code": "code",
    "pre": "pre",
    "a": "text_link",
    "blockquote": "blockquote",
    "tg-spoiler": "spoiler",
    "span": "spoiler",
    "tg-emoji": "custom_emoji",
}
_TAG = re.compile(r"<(/?)([^\s<>/]*)([^<>]*)>")
_NAMED = re.compile(r"&(?:lt|gt|amp|quot|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
_HREF = re.compile(r"""href\s*=\s*["']?([^"'\s>]*)""")
_COMMAND = re.compile(r"(?<!\S)/[A-Za-z0-9_]{1,32}(?:@[A-Za-z0-9_]{3,32})?")
_MENTION = re.compile(r"(?<![\w@])@[A-Za-z0-9_]{3,32}")
_LINK = re.compile(
    r"[a-z][a-z0-9+.-]*://\w[^\s<>]*|(?<![\w./-])\d+(?:\.\d+){3}(?!\w|[.-]\w)[^\s<>]*", re.IGNORECASE
)
_BEHIND_LINKS = ".,;:!?'\"*_~()[]{}"


class TextEntity(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    offset: int
    length: int
    url: str = ""


class ParseError(Exception):
    """Its message is the text that Telegram puts after "can't parse entities: "."""


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def parse(text: str, mode: str) -> tuple[str, list[TextEntity]]:
    """Return the visible text and its formatting. Raises `ParseError`."""
    match mode.lower():
        case "":
            return text, []
        case "html":
            return _parse_html(text)
        case _:
            raise ParseError("unsupported parse_mode")


def found_entities(text: str) -> list[TextEntity]:
    """Return the commands and mentions that Telegram marks in a text."""
    found = [("bot_command", match) for match in _COMMAND.finditer(text)]
    found += [("mention", match) for match in _MENTION.finditer(text)]
    return [
        TextEntity(kind, utf16_length(text[: match.start()]), utf16_length(match[0]))
        for kind, match in sorted(found, key=lambda item: item[1].start())
    ]


def found_links(text: str, entities: Iterable[TextEntity]) -> list[str]:
    """Return what can be clicked: text links, and addresses that Telegram finds by itself outside of code."""
    links = [entity.url for entity in entities if entity.type == "text_link"]
    hidden = [each for each in entities if each.type in ("code", "pre", "text_link")]
    for match in _LINK.finditer(text):
        start = utf16_length(text[: match.start()])
        end = start + utf16_length(match[0])
        if not any(each.offset < end and start < each.offset + each.length for each in hidden):
            links.append(match[0].rstrip(_BEHIND_LINKS))
    return links


def _parse_html(text: str) -> tuple[str, list[TextEntity]]:
    plain: list[str] = []
    entities: list[TextEntity] = []
    open_tags: list[tuple[str, int, str]] = []
    length = position = 0
    while position < len(text):
        if text[position] != "<":
            end = text.find("<", position)
            piece = text[position : end if end >= 0 else len(text)]
            position += len(piece)
            piece = _NAMED.sub(lambda found: html.unescape(found[0]), piece)
            plain.append(piece)
            length += utf16_length(piece)
            continue
        at = len(text[:position].encode())
        match = _TAG.match(text, position)
        if match is None:
            raise ParseError(f"Unclosed start tag at byte offset {at}")
        position = match.end()
        name = match[2].lower()
        if not match[1]:
            if _ALIASES.get(name, name) not in _KINDS:
                raise ParseError(f'Unsupported start tag "{name}" at byte offset {at}')
            if name == "span" and "tg-spoiler" not in match[3]:
                raise ParseError(f'Tag "span" must have class "tg-spoiler" at byte offset {at}')
            url = _HREF.search(match[3])
            open_tags.append((name, length, html.unescape(url[1]) if url else ""))
            continue
        if not open_tags:
            raise ParseError(f"Unexpected end tag at byte offset {at}")
        expected, start, url_text = open_tags.pop()
        if name and name != expected:
            raise ParseError(
                f'Unmatched end tag at byte offset {at}, expected "</{expected}>", found "</{name}>"'
            )
        if length > start:
            kind = _KINDS[_ALIASES.get(expected, expected)]
            entities.append(TextEntity(kind, start, length - start, url_text))
    if open_tags:
        raise ParseError(f'Can\'t find end tag corresponding to start tag "{open_tags[-1][0]}"')
    return "".join(plain), sorted(entities, key=lambda entity: (entity.offset, -entity.length))
