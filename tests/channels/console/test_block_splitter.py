"""Markdown is printed block by block, and nothing of it is lost on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.console.terminal import BlockSplitter


def split(text: str, size: int = 1) -> list[str]:
    splitter = BlockSplitter()
    blocks = [block for at in range(0, len(text), size) for block in splitter.feed(text[at : at + size])]
    return blocks + splitter.flush()


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("", []),
        ("one", ["one"]),
        ("one\ntwo", ["one\ntwo"]),
        ("one\n\ntwo\n", ["one", "two"]),
        ("one\n\n\n\ntwo", ["one", "two"]),
        ("```py\na\n\nb\n```\n\nafter", ["```py\na\n\nb\n```", "after"]),
        ("text\n```\n\ncode\n```", ["text\n```\n\ncode\n```"]),
        ("~~~\n```\n~~~\n\nx", ["~~~\n```\n~~~", "x"]),
        ("````\n```\n\n````\n\nx", ["````\n```\n\n````", "x"]),
        ("```\nnever closed\n\nstill code", ["```\nnever closed\n\nstill code"]),
        ("a ```not a fence``` b\n\nc", ["a ```not a fence``` b", "c"]),
        ("```not a fence``` b\n\nc", ["```not a fence``` b", "c"]),
    ],
)
def test_blocks_end_at_blank_lines_outside_of_code(text: str, blocks: list[str]) -> None:
    for size in (1, 2, 7, 1000):
        assert split(text, size) == blocks


@given(st.text("ab`~ \n"), st.integers(1, 9))
def test_every_line_with_text_is_in_exactly_one_block(text: str, size: int) -> None:
    lines = [line for line in text.split("\n") if line.strip()]
    assert [line for block in split(text, size) for line in block.split("\n") if line.strip()] == lines


def test_the_tail_is_what_has_not_been_given_away() -> None:
    splitter = BlockSplitter()
    assert splitter.feed("one\n\ntw") == ["one"]
    assert splitter.tail() == "tw"
    assert splitter.flush() == ["tw"]
    assert splitter.tail() == ""
