"""Reading a large text file in parts, within a budget of bytes and without holding it whole."""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass
from io import BufferedReader

from talaria.core.errors import ToolError

SNIFFED_BYTES = 8192
_PIECE_BYTES = 1 << 16
_LEAST_BYTES = 64


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a text file: its line and the byte in that line, both counted from 1."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class Page:
    """`last_line` is the last one in `text`, `lines` how many there are, `next` where to go on (None: at the
    end). The texts of all pages joined are the file."""

    text: str
    last_line: int
    lines: int
    next: Position | None


def is_binary(data: bytes) -> bool:
    """Text has no NUL bytes near its beginning."""
    return b"\0" in data[:SNIFFED_BYTES]


def read_page(file: BufferedReader, start: Position, max_lines: int, max_bytes: int) -> Page:
    """The lines from `start`, as many as fit in `max_bytes` of UTF-8; a longer line comes in pieces.

    Bytes that are not UTF-8 are shown as U+FFFD. Raises `ToolError` for a binary file and for a start behind
    the end of the file or of the line.
    """
    if is_binary(file.read(SNIFFED_BYTES)):
        raise ToolError("It is a binary file, not text.")
    _seek(file, start)
    texts: list[str] = []
    room = max(max_bytes, _LEAST_BYTES)
    at = start
    while at.line - start.line < max_lines:
        line = file.readline(room + 1)
        text = line.decode(errors="replace")
        size = len(text.encode())
        if max(len(line), size) > room:
            file.seek(-len(line), os.SEEK_CUR)
            if texts:
                break
            line = file.read(_fitting(line, room))
            text, room = line.decode(errors="replace"), 0
        if not line:
            break
        texts.append(text)
        room -= min(size, room)
        at = Position(at.line + 1) if line.endswith(b"\n") else Position(at.line, at.column + len(line))
    remaining = _skip_lines(file, None)
    partial = 1 if at.column > 1 else 0
    return Page(
        text="".join(texts),
        last_line=at.line - 1 + partial,
        lines=at.line - 1 + (remaining or partial),
        next=at if remaining else None,
    )


def _seek(file: BufferedReader, start: Position) -> None:
    file.seek(0)
    skipped = _skip_lines(file, start.line - 1)
    head = file.readline(start.column - 1)
    if len(head) < start.column - 1 or head.endswith(b"\n"):
        raise ToolError(f"Line {start.line} has no column {start.column}.")
    if start != Position() and not file.peek(1):
        raise ToolError(f"It has only {skipped} {'line' if skipped == 1 else 'lines'}.")


def _skip_lines(file: BufferedReader, count: int | None) -> int:
    """Go on by `count` lines, or to the end; answers how many there were."""
    skipped = 0
    is_inside = False
    while skipped != count:
        piece = file.readline(_PIECE_BYTES)
        if not piece:
            break
        is_inside = not piece.endswith(b"\n")
        skipped += not is_inside
    return skipped + is_inside


def _fitting(line: bytes, room: int) -> int:
    """How many bytes of `line` fit as text, without breaking a character apart."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    head = line[:room]
    if len(decoder.decode(head).encode()) > room:
        head = line[: room // len("\ufffd".encode())]
        decoder.reset()
        decoder.decode(head)
    return len(head) - len(decoder.getstate()[0])
