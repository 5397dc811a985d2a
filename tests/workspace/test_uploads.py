from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from talaria.testing.clock import FakeClock
from talaria.workspace.uploads import FOLDER, Uploads


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_an_upload_that_vanishes_while_others_are_counted_does_no_harm(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, lambda key: tmp_path / "chat", FakeClock())
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "gone").symlink_to(tmp_path / "nowhere")  # listed, but not there
    upload = await uploads.receive("a.txt", "text/plain", pieces(b"one", b"two"), 100)
    assert (await uploads.open(upload.id)) == (upload, b"onetwo")


async def test_an_upload_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, lambda key: tmp_path / "chat", FakeClock())
    began = asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        yield b"one"
        began.set()
        await asyncio.Event().wait()

    receiving = asyncio.create_task(uploads.receive("a.txt", "", silent(), 100))
    await began.wait()
    assert len(list((tmp_path / FOLDER).iterdir())) == 1
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert list((tmp_path / FOLDER).iterdir()) == []


async def test_uploads_are_private_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        uploads = Uploads(tmp_path / "files", lambda key: tmp_path / "chat", FakeClock())
        await uploads.receive("a.txt", "text/plain", pieces(b"one"), 100)
    finally:
        os.umask(before)
    made = tmp_path / "files" / FOLDER
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()] == [0o600, 0o600]
