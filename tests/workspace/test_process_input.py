"""The input of a background process, which may read late."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from talaria.workspace.sandbox import shim
from talaria.workspace.watched_process import write_input

MORE_THAN_A_PIPE_HOLDS = b"0123456789abcdef" * (16 << 10)


async def test_input_is_taken_whole_if_the_process_reads_only_after_its_pipe_is_full(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / shim.INPUT)
    reader = os.open(tmp_path / shim.INPUT, os.O_RDONLY | os.O_NONBLOCK)
    try:
        writing = asyncio.create_task(write_input(tmp_path, MORE_THAN_A_PIPE_HOLDS))
        for _ in range(100):
            await asyncio.sleep(0)  # the pipe is full after 16 writes
        assert not writing.done()
        read = b""
        while len(read) < len(MORE_THAN_A_PIPE_HOLDS) and not writing.done():
            with suppress(BlockingIOError):
                read += os.read(reader, 4096)
            await asyncio.sleep(0)
        read += os.read(reader, 1 << 20)
    finally:
        os.close(reader)
    assert read == MORE_THAN_A_PIPE_HOLDS
    assert await writing == len(MORE_THAN_A_PIPE_HOLDS)
