from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

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
