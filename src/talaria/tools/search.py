"""Searching the chat's files in a way that no pattern can stop the gateway.

Python's `re` backtracks: `(a+)+$` over one line can take longer than the machine will last. It holds the
interpreter lock, so a thread would stop the event loop too. No check of the pattern's text finds all such
patterns. So a regular expression runs in a child process, which gets the files' bytes through a pipe, opens
nothing itself and is killed at a deadline. A plain text takes linear time and is matched here.
"""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from talaria.core.errors import ToolError
from talaria.core.tools import ToolContext
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
_ANSWER_BYTES = 1 << 20
_META = re.compile(r"[\\.^$*+?{}\[\]|()]")

Find = Callable[[bytes], Awaitable[list[matcher.Hit]]]


async def search_files(arguments: Arguments, context: ToolContext) -> str:
    return await search(
        Folder(context.folder), arguments["pattern"], arguments.get("path", "."), _DEADLINE_SECONDS
    )


async def search(folder: Folder, pattern: str, path: str, deadline_seconds: float) -> str:
    """Return the matching lines as `path:line: text`.

    Raises `ToolError` for a bad pattern, and for one that takes longer than the deadline. The child process
    is gone when this returns, raises or is cancelled.
    """
    if not pattern or len(pattern) > _MAX_PATTERN_CHARS:
        raise ToolError(f"The pattern must have 1 to {_MAX_PATTERN_CHARS} characters.")
    paths, is_complete = await asyncio.to_thread(_candidates, folder, folder.resolve(path))
    scope = asyncio.timeout(deadline_seconds)
    try:
        async with scope, _finder(pattern) as find:
            return await _search(folder, paths, find, is_complete=is_complete)
    except TimeoutError:
        if not scope.expired():
            raise
        raise ToolError(
            f"The search took longer than {deadline_seconds:g} seconds.",
            "Simplify the pattern (no nested repetition such as (a+)+) or narrow the path.",
        ) from None


def _candidates(folder: Folder, start: FolderPath) -> tuple[list[FolderPath], bool]:
    if not start.is_root and folder.is_file(start):
        return [start], True
    tree = walk(folder, start, Glob("**"), _MAX_FILES)
    return [found.path for found in tree.found if found.item.kind is FileKind.FILE], tree.is_complete


async def _search(folder: Folder, paths: list[FolderPath], find: Find, *, is_complete: bool) -> str:
    lines: list[str] = []
    skipped = 0
    total = 0
    for path in paths:
        data = await asyncio.to_thread(_read_text, folder, path)
        if data is None:
            skipped += 1
            continue
        total += len(data)
        if total > _MAX_TOTAL_BYTES:
            is_complete = False
            break
        hits = await find(data)
        lines += (f"{path}:{number}: {printable(text)}" for number, text in hits)
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


@asynccontextmanager
async def _finder(pattern: str) -> AsyncIterator[Find]:
    if not _META.search(pattern):
        yield _plain_finder(pattern)
        return
    async with _child() as child:
        await _ask(child, pattern.encode(errors="replace"))

        async def find(data: bytes) -> list[matcher.Hit]:
            return await _ask(child, data)

        yield find


def _plain_finder(text: str) -> Find:
    needle = text.encode(errors="replace")
    pattern = re.compile(re.escape(text))

    async def find(data: bytes) -> list[matcher.Hit]:
        if needle not in data:
            return []
        return await asyncio.to_thread(matcher.find_hits, pattern, data, _MAX_HITS)

    return find


@asynccontextmanager
async def _child() -> AsyncIterator[Process]:
    """Start the matching process with an empty environment. It is dead and reaped on leaving."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(Path(matcher.__file__)), str(_MAX_HITS)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env={},
        cwd="/",
        limit=_ANSWER_BYTES,
    )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.communicate()  # closes its pipes and reaps it


class _Answer(msgspec.Struct, frozen=True):
    hits: list[matcher.Hit] = []
    error: str = ""


async def _ask(child: Process, data: bytes) -> list[matcher.Hit]:
    assert child.stdin is not None
    assert child.stdout is not None
    # If the child has ended, its last line says why, or is missing.
    with suppress(BrokenPipeError, ConnectionResetError):
        child.stdin.write(matcher.frame(data))
        await child.stdin.drain()
    line = await child.stdout.readline()
    if not line:
        raise ToolError("The pattern needs too much memory or time.", "Simplify it, or narrow the path.")
    answer = msgspec.json.decode(line, type=_Answer)
    if answer.error:
        raise ToolError(f"The pattern is not a regular expression: {answer.error}.")
    return answer.hits
