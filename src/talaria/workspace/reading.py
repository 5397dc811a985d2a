"""Reading a chat's folder within limits: its tree by a glob, and a large text file page by page."""

from __future__ import annotations

import codecs
import fnmatch
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader

from talaria.core.errors import ToolError
from talaria.core.files import PRIVATE
from talaria.core.loop_share import Pace
from talaria.core.text import printable
from talaria.workspace.folder import MAX_READ_BYTES, FileKind, Folder, FolderItem, FolderPath

MAX_VISITED = 20_000
SNIFFED_BYTES = 8192
_MAX_DEPTH = 64
_CPU_SECONDS = 2.0
_NOT_ENTERED = frozenset({".git"})
_PIECE_BYTES = 1 << 16
_LEAST_BYTES = 64


# -- a tree -------------------------------------------------------------------------------------------------


class Glob:
    """A glob such as `*.py` or `src/**/*.py`, as a small automaton over the names of a path.

    A state is the number of pattern parts matched so far, so a walk enters only folders that can still match.
    `**` stands for any number of folders. Each part is matched by `fnmatch`, whose patterns cannot backtrack.
    """

    def __init__(self, pattern: str) -> None:
        """Raises `ToolError` for a pattern that leaves the folder or has too many parts."""
        pieces = [piece for piece in pattern.split("/") if piece not in ("", ".")]
        if pattern.startswith("/") or ".." in pieces:
            raise ToolError(
                f"The pattern {printable(pattern[:200])!r} leaves the folder.", 'Start it at "path".'
            )
        if not pieces or len(pieces) > _MAX_DEPTH or len(pattern) > 1000:
            raise ToolError('The pattern must have 1 to 64 parts, such as "*" or "**/*.py".')
        self._parts = [None if piece == "**" else re.compile(fnmatch.translate(piece)) for piece in pieces]
        self.start = self._skip_stars({0})

    def step(self, states: frozenset[int], name: str) -> frozenset[int]:
        """Return the states after one more name of a path."""
        after: set[int] = set()
        for state in states:
            if state == len(self._parts):
                continue
            part = self._parts[state]
            if part is None:
                after.add(state)
            elif part.match(name):
                after.add(state + 1)
        return self._skip_stars(after)

    def is_match(self, states: frozenset[int]) -> bool:
        return len(self._parts) in states

    def can_go_on(self, states: frozenset[int]) -> bool:
        return any(state < len(self._parts) for state in states)

    def _skip_stars(self, states: set[int]) -> frozenset[int]:
        closed = set(states)
        for state in states:
            while state < len(self._parts) and self._parts[state] is None:
                state += 1  # noqa: PLW2901 - `**` may stand for no folder at all
                closed.add(state)
        return frozenset(closed)


@dataclass(frozen=True, slots=True)
class Found:
    path: FolderPath
    item: FolderItem


@dataclass(frozen=True, slots=True)
class Walk:
    """The matches in the order of their paths. If it is not complete, the tree was larger than the limits."""

    found: tuple[Found, ...]
    is_complete: bool


def walk(
    folder: Folder,
    start: FolderPath,
    glob: Glob,
    max_found: int,
    *,
    is_cancelled: Callable[[], bool] = lambda: False,
    max_visited: int = MAX_VISITED,
) -> Walk:
    """Return what `glob` matches below `start`. Links are not followed. The gateway's own files and the
    inside of `.git` are left out, unless `start` is there.

    It ends early after two seconds of computing and when it is cancelled.
    """
    pace = Pace(_CPU_SECONDS, is_cancelled)
    found: list[Found] = []
    visited = 0
    pending: list[tuple[Found | None, FolderPath, frozenset[int]]] = [(None, start, glob.start)]
    while pending:
        if not pace.may_go_on():
            return Walk(tuple(found), is_complete=False)
        candidate, path, states = pending.pop()
        if candidate is not None:
            if glob.is_match(states):
                if len(found) == max_found:
                    return Walk(tuple(found), is_complete=False)
                found.append(candidate)
            if not _is_entered(candidate, states, glob):
                continue
        try:
            items = folder.scan(path, max_visited - visited + 1, pace)
        except ToolError:
            if candidate is None:
                raise
            items = []  # the folder was removed, replaced or closed to us meanwhile
        visited += len(items)
        if visited > max_visited:
            return Walk(tuple(found), is_complete=False)
        for item in reversed(items):
            if not pace.may_go_on():
                return Walk(tuple(found), is_complete=False)
            inner = path / item.name
            after = glob.step(states, item.name)
            if after and not item.name.startswith(PRIVATE):
                pending.append((Found(inner, item), inner, after))
    return Walk(tuple(found), is_complete=True)


def _is_entered(candidate: Found, states: frozenset[int], glob: Glob) -> bool:
    return (
        candidate.item.kind is FileKind.FOLDER
        and candidate.item.name not in _NOT_ENTERED
        and len(candidate.path.parts) < _MAX_DEPTH
        and glob.can_go_on(states)
    )


# -- a text file --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a text file: its line and the byte in that line, both counted from 1."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class TextPage:
    """`last_line` is the last line in `text`, `lines` the number of lines of the file, `next` the position of
    the next page (None at the end of the file). The texts of all pages joined are the file."""

    text: str
    last_line: int
    lines: int
    next: Position | None


def is_binary(data: bytes) -> bool:
    """Return whether there is a NUL byte near the beginning, which no text has."""
    return b"\0" in data[:SNIFFED_BYTES]


def read_page(file: BufferedReader, start: Position, max_lines: int, max_bytes: int) -> TextPage:
    """Return the lines from `start` that fit in `max_bytes` of UTF-8. A longer line comes in pieces.

    Bytes that are not UTF-8 are shown as U+FFFD. Raises `ToolError` for a binary file, and for a start behind
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
    return TextPage(
        text="".join(texts),
        last_line=at.line - 1 + partial,
        lines=at.line - 1 + (remaining or partial),
        next=at if remaining else None,
    )


def _seek(file: BufferedReader, start: Position) -> None:
    file.seek(0)
    skipped = _skip_lines(file, start.line - 1)
    head = file.readline(min(start.column - 1, MAX_READ_BYTES + 1))
    if len(head) < start.column - 1 or head.endswith(b"\n"):
        raise ToolError(f"Line {start.line} has no column {start.column}.")
    if start != Position() and not file.peek(1):
        raise ToolError(f"It has only {skipped} {'line' if skipped == 1 else 'lines'}.")


def _skip_lines(file: BufferedReader, count: int | None) -> int:
    """Skip `count` lines, or all that follow, and return how many there were. Holds no line whole."""
    skipped = 0
    last = b""
    while (count is None or skipped < count) and (piece := file.read(_PIECE_BYTES)):
        found = piece.count(b"\n")
        if count is not None and skipped + found >= count:
            rest = piece.split(b"\n", count - skipped)[-1]
            file.seek(-len(rest), os.SEEK_CUR)
            return count
        skipped += found
        last = piece
    return skipped + (last != b"" and not last.endswith(b"\n"))


def _fitting(line: bytes, room: int) -> int:
    """Return how many bytes of `line` fit as text, without breaking a character apart."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    head = line[:room]
    if len(decoder.decode(head).encode()) > room:
        head = line[: room // len("\ufffd".encode())]
        decoder.reset()
        decoder.decode(head)
    return len(head) - len(decoder.getstate()[0])
