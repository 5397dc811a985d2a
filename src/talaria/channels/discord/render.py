"""Renders markdown as Discord shows it. Pure.

Discord reads most of markdown itself. This changes what it reads differently: code blocks have three
backticks, tables and small headings are not known, and addresses that must not be links are shown as code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from talaria.channels.links import find_addresses, is_outer
from talaria.channels.pieces import FENCE, TABLE_ROW, find_closing, units

MAX_CONTENT = 2000  # https://docs.discord.com/developers/resources/message#create-message-jsonform-params
LIMIT = 1800  # leaves room for a mark before the text, the cursor after it, and marks around addresses

Hosts = frozenset[str]

_SMALL_HEADING = re.compile(r"\s{0,3}#{4,6}\s+(.*?)\s*#*$")
_CODE = re.compile(r"(?<!`)(`++)[^`\n]++\1(?!`)")
_LINK = re.compile(
    r"!?\[(?P<label>[^\[\]\n]{1,300})\]\(<?(?P<url>(?:[A-Za-z][A-Za-z0-9+.-]{0,30}:|//)[^\s()<>]{1,1000})>?\)"
)
_BROKEN = "`\u200b`\u200b`"  # three backticks that end no code block


def to_discord(markdown: str, own: Hosts = frozenset()) -> str:
    """Return the text as Discord should get it. `own` are the gateway's hosts. If it would be too long for
    one message, all of it is one code block, in which nothing is a link."""
    text = "\n".join(_render_blocks(markdown.split("\n"), own)).strip("\n")
    if units(text) > MAX_CONTENT:
        text = _code_block(markdown.replace("`", "'"))
    return text


def _render_blocks(lines: list[str], own: Hosts) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        if fence := FENCE.match(line):
            end = find_closing(lines, at + 1, fence[1])
            yield _code_block("\n".join(lines[at + 1 : end]), fence[2])
            at = end + 1
        elif TABLE_ROW.match(line):
            end = next((n for n in range(at, len(lines)) if not TABLE_ROW.match(lines[n])), len(lines))
            yield _code_block("\n".join(lines[at:end]))
            at = end
        else:
            heading = _SMALL_HEADING.match(line)
            yield _render_line(f"**{heading[1]}**" if heading and heading[1] else line, own)
            at += 1


def _code_block(code: str, language: str = "") -> str:
    return f"```{language}\n{code.replace('```', _BROKEN)}\n```"


def _render_line(line: str, own: Hosts) -> str:
    """Return the line with refused addresses as code. Code in the line is left alone."""
    out, at = [], 0
    for code in _CODE.finditer(line) if "`" in line else ():
        out += [_render_text(line[at : code.start()], own), code[0]]
        at = code.end()
    return "".join([*out, _render_text(line[at:], own)])


def _render_text(text: str, own: Hosts) -> str:
    if "." not in text and ":" not in text:
        return text
    text = _LINK.sub(lambda found: found[0] if is_outer(found["url"], own) else _spell_out(found), text)
    if all(found.is_outer for found in find_addresses(text, own)):
        return text
    out, at, text = [], 0, text.replace("`", "'")  # a backtick without a pair would end the code early
    for found in find_addresses(text, own):
        if not found.is_outer:
            out += [text[at : found.start], f"`{text[found.start : found.end]}`"]
            at = found.end
    return "".join([*out, text[at:]])


def _spell_out(found: re.Match[str]) -> str:
    return f"{found['label']} ({found['url']})"
