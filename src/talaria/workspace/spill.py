"""Texts that are too long for a model: the model gets their ends, and the whole is in a file of the chat's
folder, where `read_file` can page through it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from talaria.core import files
from talaria.core.errors import ToolError
from talaria.core.redaction import Redactor
from talaria.core.units import format_size
from talaria.workspace.folder import MAX_READ_BYTES, FileKind, Folder, FolderPath

RESULTS = FolderPath(tuple(files.RESULTS.split("/")))
KEPT_RESULTS = 100
_BATCH = 256 << 10
_LEAST_BYTES = 64
_NOTE_BYTES = 400


class Spill:
    """Takes a text in pieces, and removes the secrets that `redactor` knows, also those that come in several
    pieces. The two ends stay in memory. A text of more than `max_bytes` goes to a file as it comes, up to the
    size that `read_file` can read and the room that the chat has.

    `open_folder` returns the chat's folder; with None nothing is kept. `name` is that of the file. `clean`
    makes the ends fit for a reader.
    """

    def __init__(
        self,
        redactor: Redactor,
        max_bytes: int,
        open_folder: Callable[[], Folder] | None,
        name: str,
        clean: Callable[[str], str] = str,
    ) -> None:
        self._redact = redactor.stream()
        self._max_bytes = max_bytes
        self._room = max(max_bytes - _NOTE_BYTES, _LEAST_BYTES)
        self._open_folder = open_folder
        self._path = RESULTS / name
        self._clean = clean
        self._head = bytearray()
        self._tail = bytearray()
        self._unsaved = bytearray()
        self._size = self._lines = self._saved = 0
        self._folder: Folder | None = None
        self._file: BinaryIO | None = None
        self._problem = ""

    def add(self, piece: bytes) -> bytes:
        """Take the next piece. Return the bytes without secrets that are known to be complete now."""
        return self._take(self._redact.feed(piece))

    def end(self) -> bytes:
        """Take the end of the text. Return the rest of it without secrets."""
        return self._take(self._redact.finish())

    @property
    def has_file(self) -> bool:
        return self._file is not None

    @property
    def has_batch(self) -> bool:
        """Whether `save` should be called before the next piece."""
        return len(self._unsaved) >= _BATCH and self._size > self._max_bytes

    def save(self) -> None:
        """Write what has come to the file. Blocks. Raises nothing: `long` says what could not be saved."""
        data, self._unsaved = bytes(self._unsaved[: MAX_READ_BYTES - self._saved]), bytearray()
        if not data or self._open_folder is None or self._problem:
            return
        try:
            if self._folder is None or self._file is None:
                self._folder = self._open_folder()
                self._file = self._folder.create(self._path)
            self._folder.charge(len(data))
            self._saved += self._file.write(data)
        except ToolError as error:
            self._problem = error.user_text
        except OSError as error:
            self._problem = f"{error.strerror}."

    def close(self) -> None:
        """Close the file, if there is one, with all that has come. Blocks. Raises nothing."""
        if self._folder is not None and self._file is not None:
            self.save()
            with suppress(OSError):
                self._file.close()
            with suppress(ToolError):
                prune_results(self._folder)

    def whole(self, text: str) -> str:
        """Take a text as a whole and return what a model gets of it. Blocks."""
        self.add(text.encode(errors="replace"))
        self.end()
        short = self.short()
        return self.long() if short is None else short

    def short(self) -> str | None:
        """Return the text if it fits; None if it is too long. Call it after `end`."""
        if self._size > self._max_bytes:
            return None
        text = self._clean(self._head.decode(errors="replace"))
        return text if len(text.encode()) <= self._max_bytes else None

    def long(self) -> str:
        """Close the file and return the two ends of the text around a note on where the rest is. They are cut
        at line ends if there is one not too far away, and never inside a character. Blocks."""
        self.save()
        self.close()
        # The pieces may begin and end inside a character. Bytes that are no text take more room as text.
        last_bytes = self._room // 4
        head = self._clean(self._head[: self._room].decode(errors="replace").rstrip("\ufffd"))
        tail = self._clean(self._tail[-self._room :].decode(errors="replace").lstrip("\ufffd"))
        first = head_of(head.encode(), self._room - last_bytes).decode(errors="ignore")
        last = tail_of(tail.encode(), last_bytes).decode(errors="ignore")
        gap = "" if first.endswith("\n") or not first else "\n"
        note = self._note(first.count("\n") + 1)
        return f"{first}{gap}[The middle was left out. {note}]\n{last}"

    def _take(self, data: bytes) -> bytes:
        self._size += len(data)
        self._lines += data.count(b"\n")
        self._head += data[: max(max(self._max_bytes, self._room) - len(self._head), 0)]
        if self._open_folder is not None:
            self._unsaved += data
        self._tail += data[-self._room :]
        if len(self._tail) > 2 * self._room:
            del self._tail[: -self._room]
        return data

    def _note(self, next_line: int) -> str:
        lines = self._lines + (not self._tail.endswith(b"\n"))
        whole = f"{format_size(self._size)} in {lines} {'line' if lines == 1 else 'lines'}"
        if self._saved == self._size:
            goes_on = f'read_file("{self._path}", offset={next_line}) reads on from here.'
            return f"The whole result has {whole} and is in {self._path}: {goes_on}"
        kept = "It was not kept."
        if self._saved:
            kept = f"Its first {format_size(self._saved)} are in {self._path}."
        return f"The whole result had {whole}. {kept} {self._problem}".rstrip()


def head_of(data: bytes, max_bytes: int) -> bytes:
    """Return the beginning of a text, up to a line end if there is one not too far away."""
    head = data[:max_bytes]
    at = head.rfind(b"\n") + 1
    return head[:at] if at > len(head) // 2 else head


def tail_of(data: bytes, max_bytes: int) -> bytes:
    """Return the end of a text, from the beginning of a line on if there is one not too far away."""
    tail = data[-max_bytes:]
    at = tail.find(b"\n") + 1
    return tail[at:] if 0 < at < len(tail) // 2 else tail


def begin_text(data: bytes, max_bytes: int) -> tuple[str, str]:
    """Return the beginning of a text in UTF-8, at most `max_bytes` of it, and the arguments with which
    `read_file` goes on; columns are bytes of a line."""
    text = head_of(data, max_bytes).decode(errors="ignore")
    kept = text.encode()
    line, column = kept.count(b"\n") + 1, len(kept) - kept.rfind(b"\n")
    return text.removeprefix("\ufeff"), f"offset={line}" if column == 1 else f"offset={line}, column={column}"


# -- the files


def prune_results(folder: Folder, kept: int = KEPT_RESULTS) -> None:
    """Remove all saved results but the newest. Raises `ToolError`."""
    items = [item for item in folder.scan(RESULTS, limit=10 * kept) if item.kind is FileKind.FILE]
    items.sort(key=lambda item: item.modified_at)
    for item in items[: max(len(items) - kept, 0)]:
        folder.remove(RESULTS / item.name)


def drop_old_results(files: Path, before: float) -> int:
    """Remove the results of all chats that were saved before then, and return how many. Other files of the
    chats stay."""
    count = 0
    for chat in sorted(files.iterdir()) if files.is_dir() else ():
        folder = Folder(chat)
        with suppress(ToolError):  # a chat without results, or one whose folder was replaced by a link
            for item in folder.scan(RESULTS, limit=10 * KEPT_RESULTS):
                if item.kind is FileKind.FILE and item.modified_at < before:
                    folder.remove(RESULTS / item.name)
                    count += 1
    return count
