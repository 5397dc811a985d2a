"""The output of a command on its way to people, to the model and to a file, in bounded memory."""

from __future__ import annotations

import codecs
from contextlib import suppress
from typing import BinaryIO

from talaria.core.errors import ToolError
from talaria.core.files import result_name
from talaria.core.loop_share import LoopShare
from talaria.core.terminal_text import EscapeFilter, readable
from talaria.core.units import format_size
from talaria.tools.result import RESULTS, prune_results
from talaria.tools.tool import ToolContext
from talaria.workspace.folder import MAX_READ_BYTES

_EMITTED_BYTES = 64 << 10  # a call shows no more while it runs
_BATCH = 256 << 10
_NOTE_BYTES = 400


class CommandOutput:
    """Takes output in pieces. The beginning and the end stay in memory; all of a long output goes to a file
    of the chat's folder as it comes, up to what `read_file` can read and the chat has room for.

    Escape sequences and control characters are taken out before anything else, and then the gateway's
    secrets, also those that come in several pieces. `share` bounds the part of the event loop that the
    outputs of all commands take.
    """

    def __init__(self, context: ToolContext, max_bytes: int, share: LoopShare) -> None:
        self._context = context
        self._share = share
        self._kept = max(max_bytes - _NOTE_BYTES, 256)
        self._plain = EscapeFilter()
        self._redact = context.redactor.stream()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._emitted = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._waiting = bytearray()  # to be written to the file
        self._file: OutputFile | None = None
        self._next_line = 1
        self._lines = 0
        self._ends_line = True
        self.size = 0

    async def write(self, piece: bytes) -> None:
        """Take the next piece. Raises nothing: what cannot be saved is lost, and the result says so."""
        async with self._share:
            self._take(self._redact.feed(self._plain.feed(piece)))
        if len(self._waiting) >= _BATCH:
            await self._save()

    async def finish(self) -> str:
        """Return the text for the model: all of the output, or its two ends around a note."""
        self._take(self._redact.feed(self._plain.end()) + self._redact.finish())
        if self._emitted < _EMITTED_BYTES:
            self._emit(self._decoder.decode(b"", final=True))
        if self._file is None:
            text = readable(self._head.decode(errors="replace"))
            if len(text.encode()) <= self._kept:
                return text
            self._waiting += self._head
        await self._save()
        assert self._file is not None
        note = await self._context.resources.in_thread(self._file.close)
        return self._around(note)

    async def abandon(self) -> None:
        """Close the file of a command that did not come to an end. It keeps what it has."""
        if self._file is not None:
            self._take(self._redact.finish())
            await self._save()
            await self._context.resources.in_thread(self._file.close)

    def _take(self, data: bytes) -> None:
        if not data:
            return
        if self._emitted < _EMITTED_BYTES:
            self._emit(self._decoder.decode(data))
        self.size += len(data)
        self._lines += data.count(b"\n")
        self._ends_line = data.endswith(b"\n")
        if self._file is None and len(self._head) + len(data) <= self._kept:
            self._head += data
            return
        if self._file is None:
            self._file = OutputFile(self._context)
            self._waiting += self._head
            room = self._kept - len(self._head)
            self._head += data[:room]
            self._tail += self._head
        self._waiting += data
        self._tail += data[-self._kept :]
        if len(self._tail) > 2 * self._kept:
            del self._tail[: -self._kept]

    def _emit(self, text: str) -> None:
        self._emitted += len(text)
        self._context.emit(text.replace("\r", "\n"))

    async def _save(self) -> None:
        if self._file is None:
            self._file = OutputFile(self._context)
        batch, self._waiting = bytes(self._waiting), bytearray()
        await self._context.resources.in_thread(self._file.write, batch)

    def _around(self, note: str) -> str:
        """Return the two ends of the output around a note on where the rest is."""
        head = bytes(self._head[: self._kept * 3 // 4])
        at = head.rfind(b"\n") + 1
        if at > len(head) // 2:
            head = head[:at]
        next_line = head.count(b"\n") + 1
        first = readable(head.decode(errors="replace").rstrip("\ufffd"))
        tail = bytes((self._tail or self._head)[-(self._kept // 4) :])
        at = tail.find(b"\n") + 1
        if 0 < at < len(tail) // 2:
            tail = tail[at:]
        last = readable(tail.decode(errors="replace").lstrip("\ufffd"))
        lines = self._lines + (not self._ends_line)
        whole = f"{format_size(self.size)} in {lines} {'line' if lines == 1 else 'lines'}"
        gap = "" if first.endswith("\n") or not first else "\n"
        middle = f"[The middle was left out, from line {next_line} on. The output has {whole}. {note}]\n"
        ends = f"{first}{gap}{middle}{last}"
        return (
            ends
            if len(ends.encode()) <= self._kept + _NOTE_BYTES
            else _shorten(first, middle, last, self._kept)
        )


def _shorten(first: str, middle: str, last: str, max_bytes: int) -> str:
    """Bytes that are no text take more room as text."""
    head = first.encode()[: max_bytes // 2].decode(errors="ignore")
    tail = last.encode()[-max_bytes // 4 :].decode(errors="ignore")
    return f"{head}\n{middle}{tail}"


class OutputFile:
    """The file that keeps a long output. Its methods block and raise nothing."""

    def __init__(self, context: ToolContext) -> None:
        self._folder = context.open_folder()
        self._path = RESULTS / result_name("terminal", context.turn_id, context.call_id)
        self._file: BinaryIO | None = None
        self._size = 0
        self._problem = ""

    def write(self, data: bytes) -> None:
        if self._problem:
            return
        try:
            if self._file is None:
                self._file = self._folder.create(self._path)
            data = data[: MAX_READ_BYTES - self._size]
            self._folder.charge(len(data))
            self._file.write(data)
            self._size += len(data)
        except ToolError as error:
            self._problem = error.user_text
        except OSError as error:
            self._problem = f"{error.strerror}."

    def close(self) -> str:
        """Return a sentence on where the output is."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            with suppress(ToolError):
                prune_results(self._folder)
        if not self._size:
            return f"It was not kept. {self._problem}".rstrip()
        if self._problem or self._size >= MAX_READ_BYTES:
            return f"Its first {format_size(self._size)} are in {self._path}. {self._problem}".rstrip()
        return f"All of it is in {self._path}."
