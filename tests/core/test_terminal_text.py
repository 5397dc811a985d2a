"""Plain text out of terminal output, however the output is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.core.text import EscapeFilter, readable

RAW = (
    b"a\x1b[31mred\x1b[0m b\x1b]0;title\x07c\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ d\x1bPq#0\x1b\\e\x1b(Bf"
    b"\x1bcg\xc2\x9bh\x00i\r\nj\x08k\x07 \xc3\xa9 10%\r20%\n"
)
PLAIN = b"ared bclink defghi\njk \xc3\xa9 10%\r20%\n"


def filtered(pieces: list[bytes]) -> bytes:
    escapes = EscapeFilter()
    return b"".join([*map(escapes.feed, pieces), escapes.end()])


@given(st.lists(st.integers(min_value=0, max_value=len(RAW))))
def test_pieces_change_nothing(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(RAW)]
    pieces = [RAW[begin:end] for begin, end in pairwise(places)]
    assert filtered(pieces) == PLAIN


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\x1b", b"\x1b[", b"\x1b]", b"\x1bP", b"\r"])))
def test_no_control_character_is_left(pieces: list[bytes]) -> None:
    assert not {*filtered(pieces)} & ({*range(32), 127} - {*b"\t\n\r"})


def test_a_sequence_without_an_end_keeps_back_a_bounded_part() -> None:
    escapes = EscapeFilter()
    told = escapes.feed(b"\x1b]0;" + b"x" * 100_000)
    assert len(told) > 90_000
    assert escapes.feed(b"after") == b"after"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10%\r50%\r100%\n", "100%\n"),
        ("one\ntwo\rTWO\nthree", "one\nTWO\nthree"),
        ("ends\r", "ends"),
        ("\ufffd" * 9 + "ok", "[9 bytes that are not text]ok"),
        ("a\ufffdb", "a\ufffdb"),
    ],
)
def test_a_reader_sees_the_last_state_of_a_line(text: str, shown: str) -> None:
    assert readable(text) == shown
