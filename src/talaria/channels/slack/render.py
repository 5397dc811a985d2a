"""Renders markdown as Slack's mrkdwn in blocks, and reads Slack's text. Pure.

A message is a section with `verbatim`, in which Slack makes no links by itself: an address is a link only
if this module writes one. `<`, `>` and `&` are always escaped, so no text of a model can mention a person or
all members of a channel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from typing import Any

from talaria.channels import pieces
from talaria.channels.links import WITH_SCHEME, find_addresses, is_outer
from talaria.core.delivery import Button

LIMIT = 2800  # of the 3000 characters of a section: leaves room for a mark before the text
MAX_LABEL = 75
MAX_VALUE = 2000
MAX_BUTTONS = 25  # of one message

Hosts = frozenset[str]
Block = dict[str, Any]

_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_TOKEN = re.compile(
    r"`(?P<code>[^`\n]+)`"
    r"|!?\[(?P<label>[^\[\]\n]{1,300})\]\((?P<url>(?:[A-Za-z][A-Za-z0-9+.-]{0,30}:|//)[^\s()<>]{1,1000})\)"
    rf"|(?P<bare>{WITH_SCHEME})"
)
_BOLD = re.compile(r"(?<!\w)(\*\*|__)(?=\S)(.+?)(?<=\S)\1(?!\w)")
_ITALIC = re.compile(r"(?<![\w*])\*(?=[^\s*])(.+?)(?<=[^\s*])\*(?![\w*])")
_STRUCK = re.compile(r"~~(?=\S)(.+?)(?<=\S)~~")
_KEPT, _KEPT_END, _STAR = "\ue000", "\ue001", "\ue002"  # for private use, so no text has them
_PRIVATE = re.compile(f"[{_KEPT}{_KEPT_END}{_STAR}]")
_KEPT_ITEM = re.compile(f"{_KEPT}([0-9]+){_KEPT_END}")
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_MARKUP = re.compile(r"<([@#!]?)([^<>|]*)(?:\|([^<>]*))?>")


def escape(text: str) -> str:
    return text.translate(_ESCAPES)


# -- what is sent -----------------------------------------------------------------------------------------


def split(reply: str, own: Hosts = frozenset(), limit: int = LIMIT) -> Iterator[str]:
    """Yield pieces of markdown whose mrkdwn fits into one section each."""
    for piece in pieces.split(reply, limit):
        if len(to_mrkdwn(piece, own)) <= LIMIT or limit <= 100:
            yield piece
        else:  # escapes made it longer
            yield from split(piece, own, limit // 2)


def to_blocks(markdown: str, own: Hosts = frozenset(), buttons: tuple[Button, ...] = ()) -> list[Block]:
    """Return the blocks of a message. Edits with blocks do not get Slack's mark "(edited)"."""
    blocks: list[Block] = [
        {
            "type": "section",
            "text": {"type": "mrkdwn", "text": to_mrkdwn(piece, own), "verbatim": True},
            "expand": True,
        }
        for piece in split(markdown, own)
        if piece
    ]
    elements = [
        {
            "type": "button",
            "text": {"type": "plain_text", "text": pieces.shorten(button.label, MAX_LABEL)},
            "value": button.command,
            "action_id": f"b{index}",
        }
        for index, button in enumerate(buttons[:MAX_BUTTONS])
        if len(button.command) <= MAX_VALUE
    ]
    return [*blocks, {"type": "actions", "elements": elements}] if elements else blocks


def to_mrkdwn(markdown: str, own: Hosts = frozenset()) -> str:
    """Return Slack's mrkdwn. `own` are the gateway's hosts; see `channels.links` for what becomes a link."""
    lines = _PRIVATE.sub("", markdown).split("\n")
    return "\n".join(_render_blocks(lines, own)).strip("\n")


def _render_blocks(lines: list[str], own: Hosts) -> Iterator[str]:
    position = 0
    while position < len(lines):
        line = lines[position]
        if fence := pieces.FENCE.match(line):
            end = pieces.find_closing(lines, position + 1, fence[1])
            yield _code_block("\n".join(lines[position + 1 : end]))
            position = end + 1
        elif pieces.TABLE_ROW.match(line):
            end = next(
                (at for at in range(position, len(lines)) if not pieces.TABLE_ROW.match(lines[at])),
                len(lines),
            )
            yield _code_block("\n".join(lines[position:end]))
            position = end
        else:
            yield _render_line(line, own)
            position += 1


def _code_block(code: str) -> str:
    inner = escape(code).replace("```", "``\u200b`")  # else the block would end there
    return f"```\n{inner}\n```"


def _render_line(line: str, own: Hosts) -> str:
    if not line or line.isspace():
        return line
    if heading := _HEADING.match(line):
        title = _inline(heading[1].replace("**", ""), own).replace("*", "")
        return f"*{title}*" if title else ""
    if pieces.RULE.match(line):
        return "———"
    if quote := pieces.QUOTE.match(line):
        return f">{_inline(quote[1], own)}"
    if bullet := pieces.BULLET.match(line):
        return f"{bullet[1]}• {_inline(bullet[2], own)}"
    return _inline(line, own)


def _inline(text: str, own: Hosts) -> str:
    """Render a line. Code and links are set aside, so that no mark is found in them."""
    kept: list[str] = []

    def keep(done: str) -> str:
        kept.append(done)
        return f"{_KEPT}{len(kept) - 1}{_KEPT_END}"

    def render(token: re.Match[str]) -> str:
        if token["code"]:
            return keep(_code(token["code"]))
        url = token["url"] or token["bare"]
        if not is_outer(url, own):
            label = f"{token['label']} " if token["label"] else ""
            return label + keep(f"({_code(url)})" if label else _code(url))
        target = escape(url).replace("|", "%7C")
        label = token["label"]
        return keep(f"<{target}|{escape(label).replace('|', '/')}>" if label else f"<{target}>")

    text = _TOKEN.sub(render, text)
    text = _replace_inner(text, own, lambda address: keep(_code(address)))
    text = _BOLD.sub(rf"{_STAR}\2{_STAR}", escape(text))
    text = _STRUCK.sub(r"~\1~", _ITALIC.sub(r"_\1_", text)).replace(_STAR, "*")
    return _KEPT_ITEM.sub(lambda found: kept[int(found[1])], text)


def _replace_inner(text: str, own: Hosts, show: Callable[[str], str]) -> str:
    """Replace bare hosts and addresses that must not become links."""
    parts, end = [], 0
    for found in find_addresses(text, own):
        if not found.is_outer and _KEPT not in text[found.start : found.end]:
            parts += [text[end : found.start], show(text[found.start : found.end])]
            end = found.end
    return "".join(parts) + text[end:]


def _code(text: str) -> str:
    return f"`{escape(text.replace('`', chr(39)))}`"


# -- what is read -----------------------------------------------------------------------------------------


def mentioned(text: str) -> set[str]:
    """Return the ids of the people whom a text of Slack mentions."""
    return {found[2] for found in _MARKUP.finditer(text) if found[1] == "@"}


def to_plain(text: str, names: Mapping[str, str]) -> str:
    """Return a text of Slack as a person sees it. `names` are those of people by their ids."""

    def show(found: re.Match[str]) -> str:
        kind, target, label = found[1], found[2], found[3] or ""
        match kind:
            case "@":
                return f"@{names.get(target) or label or target}"
            case "#":
                return f"#{label or target}"
            case "!":
                return label if label else f"@{target.partition('^')[0]}"
            case _:
                target = target.removeprefix("mailto:")
                return target if not label or label in target else f"{label} ({target})"

    return unescape(_MARKUP.sub(show, text))
