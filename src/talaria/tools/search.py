"""Searching the chat's files in a way that no pattern can stop the gateway.

Python's `re` backtracks: `(a+)+$` over one line can take longer than the machine will last. It holds the
interpreter lock, so a thread would stop the event loop too. No check of the pattern's text finds all such
patterns. So lines are matched in a child process, which gets the files' bytes through a pipe, opens nothing
itself and is killed at a deadline. Files without a plain text that is searched for are not sent to it.
"""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path

import msgspec

from talaria.core.errors import ToolError
from talaria.core.tools import CallScope, ToolContext
from talaria.core.units import format_size
from talaria.tools import matcher
from talaria.tools.function import Arguments
from talaria.workspace.folder import FileKind, Folder, FolderPath, printable
from talaria.workspace.reading import Glob, is_binary, walk

_MAX_HITS = 200
_MAX_FILES = 5000
_MAX_FILE_BYTES = 4 << 20
_MAX_TOTAL_BYTES = 128 << 20
_MAX_PATTERN_CHARS = 1000
_DEADLINE_SECONDS = 15.0
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
    folder = Folder.of(context)
    paths, is_complete = await context.resources.computing(_candidates, folder, path, context.scope)
    scope = asyncio.timeout(None)
    try:
        async with scope, context.resources.child(*_COMMAND) as child:
            scope.reschedule(asyncio.get_running_loop().time() + deadline_seconds)
            return await _search(_Finder(context, folder, child, pattern), paths, is_complete=is_complete)
    except TimeoutError:
        if not scope.expired():
            raise
        raise ToolError(
            f"The search took longer than {deadline_seconds:g} seconds.",
            "Simplify the pattern (no nested repetition such as (a+)+) or narrow the path.",
        ) from None


def _candidates(folder: Folder, path: str, scope: CallScope) -> tuple[list[FolderPath], bool]:
    start = folder.resolve(path)
    if not start.is_root and folder.is_file(start):
        return [start], True
    tree = walk(folder, start, Glob("**"), _MAX_FILES, is_cancelled=scope.is_cancelled)
    return [found.path for found in tree.found if found.item.kind is FileKind.FILE], tree.is_complete


async def _search(finder: _Finder, paths: list[FolderPath], *, is_complete: bool) -> str:
    await finder.begin()
    lines: list[str] = []
    skipped = 0
    total = 0
    for path in paths:
        data = await finder.read(path)
        if data is None:
            skipped += 1
            continue
        total += len(data)
        if total > _MAX_TOTAL_BYTES:
            is_complete = False
            break
        lines += (f"{path}:{number}: {printable(text)}" for number, text in await finder.find(data))
        if len(lines) >= _MAX_HITS:
            note = f"[Only the first {_MAX_HITS} matching lines. Narrow the pattern or the path.]"
            return "\n".join([*lines[:_MAX_HITS], note])
    notes = [] if lines else ["[No line matches.]"]
    if skipped:
        notes.append(
            f"[Not searched: {skipped} binary, unreadable or larger than {format_size(_MAX_FILE_BYTES)}.]"
        )
    if not is_complete:
        notes.append("[There are more files than one search covers. Narrow the path.]")
    return "\n".join([*lines, *notes])


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


class _Finder:
    """Reads files and has a child process find the lines that match."""

    def __init__(self, context: ToolContext, folder: Folder, child: Process, pattern: str) -> None:
        self._in_thread = context.resources.in_thread
        self._folder = folder
        self._child = child
        self._pattern = pattern.encode(errors="replace")
        self._plain = b"" if _META.search(pattern) else self._pattern

    async def begin(self) -> None:
        """Raises `ToolError` if the pattern is no regular expression."""
        await self._ask(self._pattern)

    async def read(self, path: FolderPath) -> bytes | None:
        return await self._in_thread(_read_text, self._folder, path)

    async def find(self, data: bytes) -> list[matcher.Hit]:
        return await self._ask(data) if self._plain in data else []

    async def _ask(self, data: bytes) -> list[matcher.Hit]:
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        # If the child has ended, its last line says why, or is missing.
        with suppress(BrokenPipeError, ConnectionResetError):
            stdin.writelines((len(data).to_bytes(4, "big"), data))
            await stdin.drain()
        line = await stdout.readline()
        if not line:
            raise ToolError("The pattern needs too much memory or time.", "Simplify it, or narrow the path.")
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.error:
            raise ToolError(f"The pattern is not a regular expression: {answer.error}.")
        return answer.hits
