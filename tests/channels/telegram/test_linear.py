"""Text that others choose costs time in proportion to its length, and each step on the loop is bounded."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from support.complexity import assert_linear
from talaria.channels.live_message import LiveText
from talaria.channels.pieces import split
from talaria.channels.telegram.bot_api import User
from talaria.channels.telegram.parse import decode, parse
from talaria.channels.telegram.render import to_html
from talaria.core.events import Delta, ToolOutput

LIMIT = 4000

SHAPES = {
    "letters": "x",
    "words": "word ",
    "wide": "😀",
    "lines": "a b\n",
    "blank": "\n",
    "spaces": " ",
    "fences": "```\n",
    "open fences": "    \n```py\n",
    "ticks": "`",
    "marks": "*a_",
    "brackets": "[",
    "links": "[a](http://",
    "quotes": "> ",
    "rows": "| ",
    "rules": "- ",
    "hashes": "# ",
    "heading": "# a" + " " * 97,
    "addresses": "http://a.b/",
    "dots": "a.",
    "digits": "1.1.1.1.",
    "schemes": "a:/",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_splitting_is_linear(shape: str) -> None:
    unit = SHAPES[shape]
    assert_linear(lambda size: unit * (size // 4 // len(unit)), lambda text: [*split(text, 4000)])


@pytest.mark.parametrize("shape", SHAPES)
def test_rendering_is_linear(shape: str) -> None:
    assert_linear(lambda size: SHAPES[shape] * (size // 64 // len(SHAPES[shape])), to_html)


BOT = User(42, is_bot=True, username="talaria_bot")
MENTION = {"type": "mention", "offset": 0, "length": 1_000_000_000}
UPDATES: dict[str, Callable[[int], dict[str, object]]] = {
    "text": lambda size: {"text": "x" * size},
    "at signs": lambda size: {"text": "@" * size},
    "mentions": lambda size: {"text": "@talaria_bot " * (size // 13)},
    "command": lambda size: {"text": "/" + "a" * size + "@talaria_bot"},
    "controls": lambda size: {"text": "\x00\u202e" * (size // 8)},
    "entities": lambda size: {"text": "x" * (size // 2), "entities": [MENTION] * (size // 128)},
    "photos": lambda size: {"photo": [{"file_id": "f"}] * (size // 16)},
    "name": lambda size: {"document": {"file_id": "f", "file_name": "a." * (size // 2)}},
    "quote": lambda size: {"text": "x", "reply_to_message": {**HEAD, "text": "a\n" * (size // 2)}},
}
HEAD: dict[str, object] = {"message_id": 1, "chat": {"id": -5, "type": "group"}, "from": {"id": 7}}


@pytest.mark.parametrize("shape", UPDATES)
def test_reading_an_update_is_linear(shape: str) -> None:
    def make(size: int) -> bytes:
        return msgspec.json.encode({"update_id": 1, "message": {**HEAD, **UPDATES[shape](size // 16)}})

    def read(data: bytes) -> None:
        update = decode(data)
        assert update is not None
        parse(update, BOT)
        parse(update, BOT, "all")

    assert_linear(make, read)


@pytest.mark.parametrize("make", [Delta, lambda text: ToolOutput("c", text)])
def test_a_text_that_comes_in_many_pieces_is_linear(make: Callable[[str], Delta | ToolOutput]) -> None:
    def show(pieces: list[Delta | ToolOutput]) -> None:
        text = LiveText("full")
        for piece in pieces:
            text.take(piece)
        assert len(text.body()) < LIMIT

    assert_linear(lambda size: [make("word ")] * (size // 64), show)
