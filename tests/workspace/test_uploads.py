from __future__ import annotations

import asyncio
import os
import resource
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from talaria.core.errors import NotFound, StoreError
from talaria.core.ids import ChatKey
from talaria.testing.clock import FakeClock
from talaria.workspace.folder import FileKind, Folder
from talaria.workspace.uploads import FOLDER, KEPT_SECONDS, Uploads, place_file


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_an_upload_that_vanishes_while_others_are_counted_does_no_harm(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, lambda key: tmp_path / "chat", FakeClock())
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "gone").symlink_to(tmp_path / "nowhere")  # listed, but not there
    upload = await uploads.receive("a.txt", "text/plain", pieces(b"one", b"two"), 100)
    assert (await uploads.open(upload.id)) == (upload, b"onetwo")


async def test_an_upload_that_is_forgotten_while_a_message_takes_it_is_not_found(tmp_path: Path) -> None:
    clock = FakeClock()

    def folder_of(key: ChatKey) -> Path:  # asked for between the reading and the copying
        clock.advance(KEPT_SECONDS + 1)
        assert uploads.forget() == 1
        return tmp_path / "chat"

    uploads = Uploads(tmp_path, folder_of, clock)
    upload = await uploads.receive("a.txt", "text/plain", pieces(b"one"), 100)
    with pytest.raises(NotFound):
        await uploads.parts(ChatKey("chat"), [upload.id])


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


async def test_an_upload_whose_note_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """The disk takes the file, and has no room for the few bytes of its note."""
    uploads = Uploads(tmp_path, lambda key: tmp_path / "chat", FakeClock())

    async def filling() -> AsyncIterator[bytes]:
        yield b"one"
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.getsignal(signal.SIGXFSZ)
    try:
        with pytest.raises(StoreError):
            await uploads.receive("a.txt", "", filling(), 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list((tmp_path / FOLDER).iterdir()) == []


@pytest.mark.parametrize("left", [("file_a", "file_a.json"), ("file_a",), ("file_a.json",)])
def test_what_the_end_of_a_process_left_of_an_upload_is_forgotten(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    """The process was killed when it had made the note and not written it."""
    clock = FakeClock()
    uploads = Uploads(tmp_path, lambda key: tmp_path / "chat", clock)
    (tmp_path / FOLDER).mkdir()
    for name in left:
        (tmp_path / FOLDER / name).touch()
        os.utime(tmp_path / FOLDER / name, (clock.now(), clock.now()))
    assert uploads.forget() == 0
    for name in left:
        os.utime(tmp_path / FOLDER / name, (0, clock.now() - KEPT_SECONDS - 1))
    assert uploads.forget() == 1
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_file_gets_a_number_if_another_has_its_name(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    names = [place_file(folder, "a.tar.gz", b"%d" % n) for n in range(3)]
    assert names == ["a.tar.gz", "a.tar-2.gz", "a.tar-3.gz"]
    assert place_file(folder, "a.tar.gz", b"1") == "a.tar-2.gz", "the same content is there already"
    assert [place_file(folder, "plain", data) for data in (b"1", b"2", b"2")] == [
        "plain",
        "plain-2",
        "plain-2",
    ]
    assert [place_file(folder, ".hidden", data) for data in (b"1", b"2")] == [".hidden", ".hidden-2"]
    assert (tmp_path / "a.tar-3.gz").read_bytes() == b"2"


def test_a_folder_knows_kinds_and_what_is_there(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_bytes(b"123")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    found = {item.name: (item.kind, item.size) for item in folder.scan(folder.resolve("."), 10)}
    assert found == {
        "dir": (FileKind.FOLDER, 0),
        "file": (FileKind.FILE, 3),
        "link": (FileKind.LINK, 0),
        "pipe": (FileKind.OTHER, 0),
    }
    assert len(folder.scan(folder.resolve("."), 2)) == 2
    assert folder.is_file(folder.resolve("file"))
    for name in (".", "dir", "pipe", "link"):
        assert not folder.is_file(folder.resolve(name)), name
    assert folder.exists(folder.resolve("link"))
    assert not folder.exists(folder.resolve("none"))
    assert folder.has(folder.resolve("file"), b"123")
    for data in (b"12", b"1234", b"124"):
        assert not folder.has(folder.resolve("file"), data)
    assert not folder.has(folder.resolve("dir"), b"")
    folder.remove_folder(folder.resolve("dir"))
    folder.remove_folder(folder.resolve("none"))
    folder.remove(folder.resolve("file"))
    folder.remove(folder.resolve("file"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
