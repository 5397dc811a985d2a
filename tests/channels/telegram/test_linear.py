"""Text that others choose costs time in proportion to its length, and each step on the loop is bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from complexity import assert_linear
from talaria.channels.telegram.outlet import LiveText
from talaria.channels.telegram.render import LIMIT, split, to_html
from talaria.core.events import Delta, ToolOutput

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
    assert_linear(lambda size: SHAPES[shape] * (size // 4 // len(SHAPES[shape])), lambda text: [*split(text)])


@pytest.mark.parametrize("shape", SHAPES)
def test_rendering_is_linear(shape: str) -> None:
    assert_linear(lambda size: SHAPES[shape] * (size // 64 // len(SHAPES[shape])), to_html)


@pytest.mark.parametrize("make", [Delta, lambda text: ToolOutput("c", text)])
def test_a_text_that_comes_in_many_pieces_is_linear(make: Callable[[str], Delta | ToolOutput]) -> None:
    def show(pieces: list[Delta | ToolOutput]) -> None:
        text = LiveText("full")
        for piece in pieces:
            text.take(piece)
        assert len(text.body()) < LIMIT

    assert_linear(lambda size: [make("word ")] * (size // 64), show)
