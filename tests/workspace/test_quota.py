from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from talaria.core.errors import ToolError
from talaria.core.ids import ChatKey
from talaria.core.limits import Limits, LimitSettings
from talaria.core.units import Size
from talaria.testing.clock import FakeClock
from talaria.workspace.folder import Folder
from talaria.workspace.quota import FolderFull, FolderQuota, measure
from talaria.workspace.uploads import Uploads, UploadTooLarge

CHAT = ChatKey("chat")


def small(size: int = 1000, count: int = 100) -> Limits:
    return Limits(LimitSettings(chat_files=Size(size), chat_file_count=count))


def put(folder: Folder, path: str, size: int) -> bool:
    return folder.write(folder.resolve(path), b"x" * size)


def test_a_full_folder_takes_no_more_and_says_which_limit_it_is(tmp_path: Path) -> None:
    limits = small()
    folder = Folder(tmp_path / "chat", FolderQuota(limits))
    put(folder, "a", 600)
    with pytest.raises(FolderFull, match="is full") as refused:
        put(folder, "b", 401)
    assert "limits.chat_files = 1000 in config.toml" in refused.value.hint
    put(folder, "b", 400)
    reading = limits.readings()["chat_files"]
    assert (reading.used, reading.refused) == (1000, 1)
    assert sorted(path.name for path in (tmp_path / "chat").iterdir()) == ["a", "b"]


def test_a_replaced_file_counts_by_its_growth_and_a_smaller_one_is_always_taken(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"x" * 5000)
    folder = Folder(tmp_path, FolderQuota(small()))
    with pytest.raises(FolderFull):
        put(folder, "old", 5001)
    put(folder, "old", 4000)
    put(folder, "old", 900)
    put(folder, "new", 100)
    with pytest.raises(FolderFull):
        put(folder, "new", 101)


def test_files_and_folders_are_counted_too(tmp_path: Path) -> None:
    limits = small(count=5)
    folder = Folder(tmp_path, FolderQuota(limits))
    put(folder, "a/b/c", 1)
    put(folder, "a/d", 1)
    put(folder, "e", 1)
    for path in ("f", "g/h"):
        with pytest.raises(FolderFull) as refused:
            put(folder, path, 1)
        assert "limits.chat_file_count = 5" in refused.value.hint
    put(folder, "a/d", 2)


def test_room_that_a_removed_file_leaves_can_be_used(tmp_path: Path) -> None:
    folder = Folder(tmp_path, FolderQuota(small()))
    put(folder, "a", 1000)
    folder.remove(folder.resolve("a"))
    put(folder, "b", 1000)


def test_a_write_that_fails_is_not_counted(tmp_path: Path) -> None:
    limits = small()
    folder = Folder(tmp_path, FolderQuota(limits))
    put(folder, "a/b", 10)
    with pytest.raises(ToolError, match="is a folder"):
        put(folder, "a", 500)
    assert limits.readings()["chat_files"].used == 10


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """Writes fail beyond this size, as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_the_disk_refuses_is_not_counted_and_leaves_nothing(tmp_path: Path) -> None:
    limits = small()
    folder = Folder(tmp_path, FolderQuota(limits))
    put(folder, "a", 10)
    with no_file_over(100), pytest.raises(ToolError, match="b: File too large"):
        put(folder, "b", 500)
    used = limits.readings()
    assert (used["chat_files"].used, used["chat_file_count"].used) == (10, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_use_of_the_folder_that_was_written_longest_ago_is_forgotten_first(tmp_path: Path) -> None:
    quota = FolderQuota(small())
    quota.charge(tmp_path / "old", 1000, 1)
    quota.charge(tmp_path / "kept", 1000, 1)
    for n in range(1023):
        quota.charge(tmp_path / str(n), 1, 1)
    quota.charge(tmp_path / "old", 1000, 1)  # measured again, and empty
    with pytest.raises(FolderFull):
        quota.charge(tmp_path / "old", 1, 1)


def test_chats_have_room_of_their_own_and_measuring_follows_no_link(tmp_path: Path) -> None:
    quota = FolderQuota(small())
    put(Folder(tmp_path / "one", quota), "a", 1000)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "link").symlink_to(tmp_path / "one")
    (tmp_path / "two" / "up").symlink_to("..")
    put(Folder(tmp_path / "two", quota), "a", 900)
    size, count = measure(tmp_path / "two", 100)
    assert (900 <= size < 1000, count) == (True, 3)


async def test_an_upload_into_a_full_folder_is_refused_with_its_limit(tmp_path: Path) -> None:
    quota = FolderQuota(small())
    uploads = Uploads(tmp_path, lambda key: tmp_path / "chat", FakeClock(), quota=quota)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 600

    first = await uploads.receive("a.bin", "", pieces(), 1000)
    second = await uploads.receive("b.bin", "", pieces(), 1000)
    await uploads.parts(CHAT, [first.id])
    with pytest.raises(UploadTooLarge) as refused:
        await uploads.parts(CHAT, [second.id])
    assert "limits.chat_files" in refused.value.hint
    with pytest.raises(FolderFull):
        await uploads.put(CHAT, "c", "text/plain", b"x" * 600)
