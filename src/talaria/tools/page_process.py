"""Reads HTML pages in a child process: in the sandbox of commands if there is one, else with limits only."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

import talaria
from talaria.core.errors import ToolError
from talaria.core.tasks import running
from talaria.net.fetcher import FetchedPage
from talaria.tools.tool import ToolContext
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.command import ProcessLimits, Sandbox, SandboxCommand, SandboxError, hand_over
from talaria.workspace.sandbox.landlock import NoSandbox
from talaria.workspace.sandbox.process import SandboxedProcess, Stream, open_process

_log = logging.getLogger("talaria.tools")

_READER = ("-I", "-m", "talaria.tools.page_reader")
_CONFINED = "confined"  # the argument of a reader that dies with its sandbox
_READ_SECONDS = 30.0
_MAX_ANSWER = 8 << 20
_LIMITS = ProcessLimits(memory=1 << 30, processes=16, seconds=_READ_SECONDS, file_size=1 << 20, open_files=64)
_PROBE = FetchedPage("https://example.com/", "text/html", "utf-8", b"<title>t</title><p>text</p>")


class ReadPage(msgspec.Struct, frozen=True):
    """The answer of the reader, which is checked: a page may have taken over the reader."""

    title: Annotated[str, msgspec.Meta(max_length=300, pattern=r"^[^\r\n]*\Z")]
    text: str
    links: tuple[Annotated[str, msgspec.Meta(max_length=2000, pattern="^https?://")], ...]


class PageProcess:
    """Reads pages. Without `sandboxes`, or if none of them works here, the reader has limits only."""

    def __init__(self, sandboxes: Sandboxes | None = None, program: tuple[str, ...] = _READER) -> None:
        """`program` are the arguments of Python."""
        self._sandboxes = sandboxes
        self._program = program
        self._choosing: asyncio.Task[Sandbox | None] | None = None

    async def read(self, page: FetchedPage, context: ToolContext) -> ReadPage:
        """Return the title, the text and the links of an HTML page. Raises `ToolError`."""
        sandbox = await self._sandbox(context)
        try:
            async with asyncio.timeout(_READ_SECONDS):
                if sandbox is None:
                    answer = await self._run(page, context)
                else:
                    async with context.resources.child_time():
                        answer = await self._run_confined(sandbox, page, context)
        except TimeoutError:
            raise ToolError(f"The page {page.url} takes too long to be read.", "Fetch another one.") from None
        try:
            return msgspec.json.decode(answer, type=ReadPage)
        except (msgspec.MsgspecError, ValueError, RecursionError):  # it met its limit of time or memory
            raise ToolError(f"The page {page.url} cannot be read.", "Fetch another one.") from None

    async def _sandbox(self, context: ToolContext) -> Sandbox | None:
        """Return the sandbox, once it has read a page of our own. Callers at the same time share one try."""
        if self._choosing is None or self._choosing.cancelled():
            self._choosing = asyncio.create_task(self._choose(context), name="choose a sandbox for pages")
        return await asyncio.shield(self._choosing)

    async def _choose(self, context: ToolContext) -> Sandbox | None:
        sandbox = None if self._sandboxes is None else (await self._sandboxes.choose()).sandbox
        if sandbox is None or isinstance(sandbox, NoSandbox):
            return None
        try:
            msgspec.json.decode(await self._run_confined(sandbox, _PROBE, context), type=ReadPage)
        except (SandboxError, OSError, ValueError, msgspec.MsgspecError) as error:
            self._choosing = None  # the next page tries again
            _log.warning("a web page is read outside of the sandbox: Python does not run in it (%s)", error)
            return None
        return sandbox

    async def _run(self, page: FetchedPage, context: ToolContext) -> bytes:
        async with context.resources.child(sys.executable, *self._program) as child:
            assert child.stdin is not None and child.stdout is not None
            async with running(_write(child.stdin, _order(page)), name="page-writer"):
                found = bytearray()
                while len(found) < _MAX_ANSWER and (piece := await child.stdout.read(64 << 10)):
                    found += piece
                return bytes(found)

    async def _run_confined(self, sandbox: Sandbox, page: FetchedPage, context: ToolContext) -> bytes:
        """Run the reader without a network, with empty folders. Raises `SandboxError`."""
        place = await context.resources.in_thread(_make_place)
        try:
            argv = (_executable(), *self._program, _CONFINED)
            folder, tmp = place / "folder", place / "tmp"
            command = SandboxCommand(
                argv, folder, folder, tmp, readable=_python_folders(), limits=_LIMITS, has_input=True
            )
            async with (
                open_process(sandbox, command) as process,
                running(_feed(process, _order(page)), name="page-writer"),
            ):
                found = bytearray()
                async for piece in process.output():
                    if piece.stream is Stream.OUT:
                        found += piece.content
                    if len(found) >= _MAX_ANSWER:
                        break
                return bytes(found)
        finally:
            await context.resources.in_thread(shutil.rmtree, place, True)


def _order(page: FetchedPage) -> bytes:
    return json.dumps({"url": page.url}).encode() + b"\n" + page.text().encode("utf-8", "replace")


async def _write(stream: asyncio.StreamWriter, data: bytes) -> None:
    stream.write(data)
    await stream.drain()
    stream.close()


async def _feed(process: SandboxedProcess, data: bytes) -> None:
    await process.write(data)
    process.close_input()


def _make_place() -> Path:
    """Make the empty folders that a sandbox needs."""
    place = Path(os.path.realpath(tempfile.mkdtemp(prefix="talaria-page-")))
    folders = place / "folder", place / "tmp"
    for folder in folders:
        folder.mkdir(mode=0o700)
    hand_over(folders)
    return place


@cache
def _python_folders() -> tuple[Path, ...]:
    """Return the folders that this Python and the package need, beyond those of the system."""
    package = Path(talaria.__file__).parents[1]
    found = {Path(os.path.realpath(path)) for path in (sys.prefix, sys.base_prefix, package)}
    inside = {path for path in found if path.parents and any(other in path.parents for other in found)}
    return tuple(sorted(path for path in found - inside if not path.is_relative_to("/usr")))


def _executable() -> str:
    """Return the path of Python without a link in its folders, so that it is the same in the sandbox."""
    folder, name = os.path.split(sys.executable)
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 - the file itself may be a link
