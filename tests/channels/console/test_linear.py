"""A text of any length and shape costs time in proportion to its length, in however many pieces it comes."""

from __future__ import annotations

from io import StringIO

import pytest

from support.complexity import assert_linear
from talaria.console.plain import PlainRenderer
from talaria.console.terminal import BlockSplitter
from talaria.core.events import Delta, Done, describe_call
from talaria.core.text import clean, clean_line

SHAPES = {
    "letters": "x",
    "lines": "a\n",
    "blocks": "a\n\n",
    "fences": "```\n",
    "ticks": "`",
    "ticks in a row": "`" * 64 + "x`\n",
    "waves": "~",
    "escapes": "\x1b[",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_splitting_into_blocks_is_linear(shape: str) -> None:
    def split(pieces: list[str]) -> None:
        splitter = BlockSplitter()
        for piece in pieces:
            splitter.feed(piece)
        splitter.tail(100)
        splitter.flush()

    assert_linear(lambda size: [SHAPES[shape]] * (size // 64 // len(SHAPES[shape])), split)
    assert_linear(lambda size: [SHAPES[shape] * (size // 64 // len(SHAPES[shape]))], split)


@pytest.mark.parametrize("shape", SHAPES)
def test_plain_text_is_linear(shape: str) -> None:
    def show(pieces: list[str]) -> None:
        renderer = PlainRenderer(StringIO(), None, is_live=True)
        for piece in pieces:
            renderer.show(Delta(piece))
        renderer.show(Done("".join(pieces)))

    assert_linear(lambda size: [SHAPES[shape]] * (size // 64 // len(SHAPES[shape])), show)


@pytest.mark.parametrize("shape", [*SHAPES.values(), " ", "\u202e", '{"a":'])
def test_text_for_display_is_linear(shape: str) -> None:
    def show(text: str) -> None:
        clean(text)
        clean_line(text)
        describe_call(text, text)

    assert_linear(lambda size: shape * (size // 8 // len(shape)), show)
