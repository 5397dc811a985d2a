"""The beginning of a long text, and reading on behind it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from talaria.workspace.folder import Folder
from talaria.workspace.reading import Position, read_page
from talaria.workspace.spill import begin_text
from talaria.workspace.uploads import keep_message


@pytest.mark.parametrize(
    "text",
    [
        "a line of some length\n" * 500,
        "one line without an end " * 500,
        "鍵と錠前、山の上の小屋。" * 400,
        "short\n" + "日本語" * 2000,
        "\n" * 9000,
        "crlf\r\n" * 2000,
    ],
)
def test_beginning_and_rest_are_the_whole_text(tmp_path: Path, text: str) -> None:
    folder = Folder(tmp_path)
    begun, file = keep_message(folder, "one", text, 2048)
    assert isinstance(file.rest, str)
    assert len(begun.text.encode()) <= 2048
    assert file.size == len(text.encode())
    line, column = re.fullmatch(r"offset=(\d+)(?:, column=(\d+))?", file.rest).groups()  # type: ignore[union-attr]
    at: Position | None = Position(int(line), int(column or 1))
    pieces = [begun.text]
    while at is not None:
        with folder.open(folder.resolve(file.path)) as opened:
            page = read_page(opened, at, 100_000, 3000)
        pieces.append(page.text)
        at = page.next
    assert "".join(pieces) == text


def test_a_text_is_cut_at_the_end_of_a_line_that_is_near() -> None:
    assert begin_text(b"one\ntwo\nthree\nfour", 16) == ("one\ntwo\nthree\n", "offset=4")
    assert begin_text(b"one\nand a long second line", 16) == ("one\nand a long s", "offset=2, column=13")
