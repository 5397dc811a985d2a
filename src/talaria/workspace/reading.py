"""Reading a chat's folder within limits: its tree by a glob, and a large text file page by page."""

from __future__ import annotations

import base64
import codecs
import fnmatch
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader

import msgspec

from talaria.core.errors import ToolError
from talaria.core.files import PRIVATE
from talaria.core.messages import Image
from talaria.core.slots import Pace
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


# -- which files are pictures that models take: by their first bytes, never by their name -----------------
# A picture that a provider refuses would be refused with every later request of its session. So a model is
# shown only what all providers take: by kind, by bytes (5 MiB once written as base64) and by pixels.


MAX_PICTURE_BYTES = 5 * (1 << 20) // 4 * 3
MAX_SIDE = 8000
_SOI, _SOS = 0xD8, 0xDA
_MAX_SEGMENTS = 4096  # and bytes of padding
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,", re.IGNORECASE)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class Picture(msgspec.Struct, frozen=True):
    media_type: str
    width: int
    height: int


def look_at(data: bytes) -> Picture | None:
    """Return what the first bytes of a file say about the picture in it; None if they are not those of a PNG,
    GIF, WebP or JPEG."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            return Picture("image/png", *struct.unpack(">II", data[16:24]))
        if data.startswith((b"GIF87a", b"GIF89a")):
            return Picture("image/gif", *struct.unpack("<HH", data[6:10]))
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
    except struct.error:
        pass
    return None


def image_bytes(image: Image) -> bytes | None:
    """Return the bytes of an image that is a `data:` URL; None for any other, and for one that is too long to
    be shown."""
    head = _DATA_URL.match(image.url)
    if head is None or len(image.url) > 2 * MAX_PICTURE_BYTES:
        return None
    try:
        return base64.b64decode(image.url[head.end() :], validate=True)
    except ValueError:
        return None


def picture_part(data: bytes) -> Image | None:
    """Return the picture as models are shown it; None if `data` is no picture or one that is too large."""
    if len(data) > MAX_PICTURE_BYTES or (picture := look_at(data)) is None:
        return None
    if not (0 < picture.width <= MAX_SIDE and 0 < picture.height <= MAX_SIDE):
        return None
    return Image(f"data:{picture.media_type};base64,{base64.b64encode(data).decode()}")


def _webp(data: bytes) -> Picture | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":
        (bits,) = struct.unpack("<I", data[21:25])
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack("<HH", data[26:30]))
    else:
        return None
    return Picture("image/webp", width, height)


def _jpeg(data: bytes) -> Picture | None:
    # The size is in a frame segment, which may stand behind large ones.
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if at + 9 >= len(data) or data[at] != 0xFF:
            break
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _FRAMES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return Picture("image/jpeg", width, height)
        elif marker in (_SOS, _SOI):
            return None
        else:
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return None
