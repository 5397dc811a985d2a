from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.errors import ToolError
from talaria.workspace.page import Page, Position, is_binary, read_page


def opened(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))


def page(data: bytes, line: int = 1, column: int = 1, lines: int = 1000, size: int = 1000) -> Page:
    return read_page(opened(data), Position(line, column), lines, size)


def test_a_short_file_is_one_page() -> None:
    assert page(b"a\nb\n") == Page("a\nb\n", last_line=2, lines=2, next=None)
    assert page(b"a\nb") == Page("a\nb", last_line=2, lines=2, next=None)
    assert page(b"") == Page("", last_line=0, lines=0, next=None)
    assert page(b"\n") == Page("\n", last_line=1, lines=1, next=None)


def test_offset_and_limit_pick_lines() -> None:
    assert page(b"1\n2\n3\n4\n5", line=2, lines=2) == Page("2\n3\n", last_line=3, lines=5, next=Position(4))
    assert page(b"1\n2\n3", line=3) == Page("3", last_line=3, lines=3, next=None)


def test_a_page_ends_with_a_whole_line_when_the_budget_does() -> None:
    data = b"x" * 49 + b"\n"
    assert page(data * 3, size=120) == Page(data.decode() * 2, last_line=2, lines=3, next=Position(3))


def test_a_line_longer_than_the_budget_comes_in_pieces() -> None:
    first = page(b"x" * 100 + b"\nnext\n", size=70)
    assert first == Page("x" * 70, last_line=1, lines=2, next=Position(1, 71))
    assert page(b"x" * 100 + b"\nnext\n", column=71, size=70).text == "x" * 30 + "\nnext\n"


def test_a_piece_never_ends_inside_a_character() -> None:
    first = page("✓".encode() * 50, size=70)
    assert first == Page("✓" * 23, last_line=1, lines=1, next=Position(1, 70))


@pytest.mark.parametrize(
    ("data", "line", "column", "says"),
    [
        (b"a\nb\n", 3, 1, "only 2 lines"),
        (b"a", 2, 1, "only 1 line."),
        (b"", 5, 1, "only 0 lines"),
        (b"abc\nd", 1, 5, "no column 5"),
        (b"abc\nd", 2, 9, "no column 9"),
        (b"text\0more", 1, 1, "binary"),
    ],
)
def test_a_start_behind_the_end_and_a_binary_file_are_refused(
    data: bytes, line: int, column: int, says: str
) -> None:
    with pytest.raises(ToolError, match=says):
        page(data, line, column)


def test_a_nul_byte_makes_a_file_binary() -> None:
    assert is_binary(b"\x7fELF\0")
    assert not is_binary("Übergrößenträger ✓".encode())


letters = st.binary(max_size=200) | st.text("aü✓🦶", min_size=50, max_size=100).map(str.encode)
lines = st.lists(letters.map(lambda line: line.replace(b"\0", b"0").replace(b"\n", b"")), max_size=8)


@settings(deadline=None)
@given(lines=lines, ending=st.booleans(), size=st.integers(64, 300), limit=st.integers(1, 5))
def test_following_the_pages_gives_the_whole_file_and_no_page_is_over_its_budget(
    lines: list[bytes], ending: bool, size: int, limit: int
) -> None:
    data = b"\n".join(lines) + (b"\n" if ending and lines else b"")
    at: Position | None = Position()
    texts = []
    while at is not None:
        part = read_page(opened(data), at, limit, size)
        texts.append(part.text)
        assert len(part.text.encode()) <= size
        assert part.lines == data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
        at = part.next
    assert "".join(texts) == data.decode(errors="replace")
