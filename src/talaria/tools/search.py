"""Searching the chat's files in a way that no pattern can stop the gateway.

Python's `re` backtracks: `(a+)+$` over one line can take longer than the machine will last. It holds the
interpreter lock, so a thread would stop the event loop too. No check of the pattern's text finds all such
patterns. So a regular expression runs in a child process, which gets the files' bytes through a pipe, opens
nothing itself and is killed at a deadline. A plain text takes linear time and is searched for here.
"""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from talaria.core.errors import ToolError
from talaria.core.slots import Pace
from talaria.core.tasks import running
from talaria.core.text import printable
from talaria.core.units import format_size
from talaria.tools import matcher
from talaria.tools.function import Arguments
from talaria.tools.tool import CallScope, ToolContext
from talaria.workspace.folder import FileKind, Folder, FolderPath
from talaria.workspace.reading import Glob, is_binary, walk

_MAX_HITS = 200
_MAX_FILES = 5000
_MAX_FILE_BYTES = 4 << 20
_MAX_TOTAL_BYTES = 128 << 20
_BATCH_FILES = 64  # that are read and sent to the child in one go, because each go costs a millisecond
_BATCH_BYTES = 1 << 20
_MAX_PATTERN_CHARS = 1000
_DEADLINE_SECONDS = 15.0
_PLAIN_CPU_SECONDS = 5.0
_COMMAND = (sys.executable, "-I", "-S", str(Path(matcher.__file__)), str(_MAX_HITS))
_META = re.compile(r"[\\.^$*+?{}\[\]|()]")


async def search_files(arguments: Arguments, context: ToolContext) -> str:
    return await search(context, arguments["pattern"], arguments.get("path", "."), _DEADLINE_SECONDS)


async def search(context: ToolContext, pattern: str, path: str, deadline_seconds: float) -> str:
    """Return the matching lines as `path:line: text`.

    Raises `ToolError` for a bad pattern, and for one that takes longer than the deadline, which begins when
    the child process has its slot. The child is gone when this returns, raises or is cancelled.
    """
    if not pattern or len(pattern) > _MAX_PATTERN_CHARS:
        raise ToolError(f"The pattern must have 1 to {_MAX_PATTERN_CHARS} characters.")
    folder = context.open_folder()
    paths, is_complete = await context.resources.computing(_candidates, folder, path, context.scope)
    report = _Report(is_complete=is_complete)
    if not _META.search(pattern):
        await context.resources.in_thread(_search_plain, folder, paths, pattern, report, context.scope)
        return report.render()
    async with open_matcher(context, pattern, deadline_seconds) as child:
        while paths and not report.is_full:
            datas = await context.resources.in_thread(_read_batch, folder, paths[:_BATCH_FILES])
            batch, paths = paths[: len(datas)], paths[len(datas) :]
            found = [(file, data) for file, data in zip(batch, datas, strict=True) if report.read(data)]
            answers = await child.ask(*(data for _, data in found if data is not None))
            for (file, _), hits in zip(found, answers, strict=True):
                report.add(file, hits)
    return report.render()


@asynccontextmanager
async def open_matcher(
    context: ToolContext, pattern: str, deadline_seconds: float
) -> AsyncIterator[LineMatcher]:
    """Run a child process that finds the lines which match a regular expression. See `search` for the errors
    and the deadline."""
    scope = asyncio.timeout(None)
    try:
        async with scope, context.resources.child(*_COMMAND) as process:
            scope.reschedule(asyncio.get_running_loop().time() + deadline_seconds)
            child = LineMatcher(process)
            await child.ask(pattern.encode(errors="replace"))
            yield child
    except TimeoutError:
        if not scope.expired():
            raise
        raise ToolError(
            f"The search took longer than {deadline_seconds:g} seconds.",
            "Simplify the pattern (no nested repetition such as (a+)+) or search in less.",
        ) from None


def _candidates(folder: Folder, path: str, scope: CallScope) -> tuple[list[FolderPath], bool]:
    start = folder.resolve(path)
    if not start.is_root and folder.is_file(start):
        return [start], True
    tree = walk(folder, start, Glob("**"), _MAX_FILES, is_cancelled=scope.is_cancelled)
    return [found.path for found in tree.found if found.item.kind is FileKind.FILE], tree.is_complete


@dataclass(slots=True)
class _Report:
    """The matching lines so far, and what was left out. `is_complete` is False if not all files were
    searched."""

    is_complete: bool
    _lines: list[str] = field(default_factory=list)
    _skipped: int = 0
    _room: int = _MAX_TOTAL_BYTES

    @property
    def is_full(self) -> bool:
        return len(self._lines) >= _MAX_HITS or self._room < 0

    def read(self, data: bytes | None) -> bool:
        """Note that a file was read, or could not be; return whether it is to be searched."""
        if data is None:
            self._skipped += 1
            return False
        self._room -= len(data)
        self.is_complete &= self._room >= 0
        return self._room >= 0

    def add(self, path: FolderPath, hits: list[matcher.Hit]) -> None:
        self._lines += (f"{path}:{number}: {printable(text)}" for number, text in hits)

    def render(self) -> str:
        if len(self._lines) >= _MAX_HITS:
            note = f"[Only the first {_MAX_HITS} matching lines. Narrow the pattern or the path.]"
            return "\n".join([*self._lines[:_MAX_HITS], note])
        notes = [] if self._lines else ["[No line matches.]"]
        if self._skipped:
            limit = format_size(_MAX_FILE_BYTES)
            notes.append(f"[Not searched: {self._skipped} binary, unreadable or larger than {limit}.]")
        if not self.is_complete:
            notes.append("[There are more files than one search covers. Narrow the path.]")
        return "\n".join([*self._lines, *notes])


def _search_plain(
    folder: Folder, paths: list[FolderPath], text: str, report: _Report, scope: CallScope
) -> None:
    """Search for a text, in linear time."""
    needle, pace = text.encode(errors="replace"), Pace(_PLAIN_CPU_SECONDS, scope.is_cancelled)
    for path in paths:
        if report.is_full:
            return
        if not pace.may_go_on():
            report.is_complete = False
            return
        data = _read_text(folder, path)
        if report.read(data):
            assert data is not None
            report.add(path, find_plain(needle, data, _MAX_HITS))


def find_plain(needle: bytes, data: bytes, limit: int) -> list[matcher.Hit]:
    """Return the first `limit` lines that contain `needle`, as `matcher.find_hits` does for a pattern."""
    hits: list[matcher.Hit] = []
    number, start = 1, 0
    while len(hits) < limit and (found := data.find(needle, start)) >= 0:
        begin = data.rfind(b"\n", start, found) + 1 or start
        number += data.count(b"\n", start, begin)
        end = data.find(b"\n", found)
        line = data[begin : end if end >= 0 else len(data)]
        at = len(line[: found - begin].decode(errors="replace"))
        hits.append((number, matcher.excerpt(line.decode(errors="replace").rstrip("\r"), at)))
        if end < 0:
            break
        number, start = number + 1, end + 1
    return hits


def _read_batch(folder: Folder, paths: list[FolderPath]) -> list[bytes | None]:
    """Return the bytes of the first files, at least of one, as `_read_text` does."""
    datas: list[bytes | None] = []
    room = _BATCH_BYTES
    for path in paths:
        datas.append(data := _read_text(folder, path))
        room -= len(data or b"")
        if room < 0:
            break
    return datas


def _read_text(folder: Folder, path: FolderPath) -> bytes | None:
    """Return the file's bytes; None if it is binary, too large, or gone since it was listed."""
    try:
        data = folder.read(path, _MAX_FILE_BYTES)
    except ToolError:
        return None
    return None if is_binary(data) else data


class _Answer(msgspec.Struct, frozen=True):
    hits: list[matcher.Hit] = []
    error: str = ""


@dataclass(frozen=True, slots=True)
class LineMatcher:
    """The child process that finds the lines which match."""

    _child: Process

    async def ask(self, *texts: bytes) -> list[list[matcher.Hit]]:
        """Send the pattern first, then texts, and return the hits in each. Raises `ToolError` if the child
        gives up."""
        async with running(self._send(texts), name="matcher-writer"):
            return [await self._receive() for _ in texts]

    async def _send(self, texts: tuple[bytes, ...]) -> None:
        stdin = self._child.stdin
        assert stdin is not None
        # If the child has ended, its last line says why, or is missing.
        with suppress(BrokenPipeError, ConnectionResetError):
            for data in texts:
                stdin.writelines((len(data).to_bytes(4, "big"), data))
                await stdin.drain()

    async def _receive(self) -> list[matcher.Hit]:
        stdout = self._child.stdout
        assert stdout is not None
        line = await stdout.readline()
        if not line:
            raise ToolError("The pattern needs too much memory or time.", "Simplify it, or narrow the path.")
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.error:
            raise ToolError(f"The pattern is not a regular expression: {answer.error}.")
        return answer.hits
