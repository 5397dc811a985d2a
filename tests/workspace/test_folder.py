from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from talaria.core.errors import ToolError
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.text import printable
from talaria.workspace.folder import FileKind, Folder, chat_folder
from workspace.conftest import Site

MAX_WRITE_BYTES = 16 << 20


def put(folder: Folder, path: str, data: bytes) -> bool:
    return folder.write(folder.resolve(path), data)


def get(folder: Folder, path: str) -> bytes:
    return folder.read(folder.resolve(path))


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_chat_folder_is_made_private_when_it_is_first_used(tmp_path: Path) -> None:
    root = chat_folder(tmp_path / "home", ChatAddress("main", "http", "api", "work").key())
    assert not root.parent.exists()
    put(Folder(root), "note.txt", b"hello")
    assert root == tmp_path / "home" / "files" / "agent%3Amain%3Ahttp%3Aapi%3Awork"
    assert [permissions(root), permissions(root.parent)] == [0o700, 0o700]


@pytest.mark.parametrize(
    "key", ["..", ".", "../../etc", "/etc", "agent:a/b", ".hidden", "x" * 500, "ü" * 300]
)
def test_a_chat_folder_stands_directly_in_files(tmp_path: Path, key: str) -> None:
    folder = chat_folder(tmp_path, ChatKey(key))
    assert folder.parent == tmp_path / "files"
    assert Path(os.path.normpath(folder)) == folder
    assert len(os.fsencode(folder.name)) <= 255


def test_two_long_chat_keys_have_two_folders(tmp_path: Path) -> None:
    long = "agent:main:matrix:room:" + "x" * 400
    assert chat_folder(tmp_path, ChatKey(long + "1")) != chat_folder(tmp_path, ChatKey(long + "2"))


def test_writing_makes_parent_folders_and_says_whether_the_file_is_new(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert put(folder, "a/b/c.txt", b"one")
    assert not put(folder, "a/b/c.txt", b"two")
    assert get(folder, "a/b/c.txt") == b"two"


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
def test_new_modes_do_not_follow_the_umask_and_old_ones_stay(tmp_path: Path, umask: int) -> None:
    modes = {"run.sh": 0o755, "open.txt": 0o666, "secret.txt": 0o644, "locked.txt": 0o440}
    for name, mode in modes.items():
        (tmp_path / name).write_text("old")
        (tmp_path / name).chmod(mode)
    before = os.umask(umask)
    try:
        for path in (*modes, "new/deep/file.txt"):
            put(Folder(tmp_path), path, b"new")
        put(Folder(tmp_path / "made" / "chat"), "note.txt", b"new")
    finally:
        os.umask(before)
    assert [permissions(tmp_path / name) for name in ("new", "new/deep", "made", "made/chat")] == [0o700] * 4
    assert (
        permissions(tmp_path / "new/deep/file.txt") == permissions(tmp_path / "made/chat/note.txt") == 0o600
    )
    assert {name: permissions(tmp_path / name) for name in modes} == modes


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_new_modes_in_a_projects_folder_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        for path in ("new/deep/file.txt", ".talaria/output/1.txt"):
            put(Folder(tmp_path, private=False), path, b"new")
    finally:
        os.umask(before)
    assert [permissions(tmp_path / name) for name in ("new", "new/deep")] == [0o777 & ~umask] * 2
    assert permissions(tmp_path / "new/deep/file.txt") == 0o666 & ~umask
    assert [permissions(tmp_path / name) for name in (".talaria", ".talaria/output")] == [0o700] * 2
    assert permissions(tmp_path / ".talaria/output/1.txt") == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("owner", [(0, 65533), (65533, 0), (65533, 65533)])
def test_a_replaced_file_keeps_its_owner_and_group(tmp_path: Path, owner: tuple[int, int]) -> None:
    os.chown(tmp_path, 65534, 65534)
    (tmp_path / "x").write_text("old")
    os.chown(tmp_path / "x", *owner)
    put(Folder(tmp_path), "x", b"new")
    status = (tmp_path / "x").stat()
    assert (status.st_uid, status.st_gid) == owner


def test_a_reader_keeps_the_whole_old_content_while_the_file_is_replaced(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    put(folder, "x", b"old " * 1000)
    with folder.open(folder.resolve("x")) as reader:
        put(folder, "x", b"new")
        assert reader.read() == b"old " * 1000
    assert get(folder, "x") == b"new"


def test_a_write_that_fails_leaves_nothing_behind(site: Site) -> None:
    names = set(os.listdir(site.root))
    with pytest.raises(ToolError, match="not a folder"):
        put(site.folder, "inside.txt/below", b"data")
    with pytest.raises(ToolError, match="is a folder"):
        put(site.folder, "sub", b"data")
    assert set(os.listdir(site.root)) == names


def test_too_much_is_neither_written_nor_read(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with pytest.raises(ToolError, match="too much"):
        put(folder, "big", b"x" * (MAX_WRITE_BYTES + 1))
    put(folder, "ten", b"x" * 10)
    with pytest.raises(ToolError, match="too large"):
        folder.read(folder.resolve("ten"), max_bytes=9)


def test_a_pipe_does_not_block_the_reader(site: Site) -> None:
    with pytest.raises(ToolError, match="not a regular file"):
        get(site.folder, "pipe")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing.txt", "There is no missing.txt. list_files shows what is there."),
        ("missing/x.txt", "There is no missing. list_files shows what is there."),
        ("sub", "sub is a folder, not a file. list_files shows what is in it."),
        ("inside.txt/x", "inside.txt is not a folder."),
        ("link_file", "link_file is a symbolic link, which is not followed. Name the file itself."),
        (
            "link_folder/canary.txt",
            "link_folder is a symbolic link, which is not followed. Name the file itself.",
        ),
        ("socket", "socket is not a regular file. Pipes, sockets and devices cannot be used."),
        ("../x", "../x is outside the chat's folder. Paths are relative to the chat's folder."),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_to_do(site: Site, path: str, says: str) -> None:
    with pytest.raises(ToolError) as refusal:
        get(site.folder, path)
    assert str(refusal.value) == says


def test_scanning_tells_what_is_there_without_following(site: Site) -> None:
    kinds = {item.name: item.kind for item in site.folder.scan(site.folder.resolve("."), limit=100)}
    assert kinds["inside.txt"] is FileKind.FILE
    assert kinds["sub"] is FileKind.FOLDER
    assert kinds["link_folder"] is kinds["link_loop"] is kinds["link_nowhere"] is FileKind.LINK
    assert kinds["pipe"] is kinds["socket"] is FileKind.OTHER
    assert list(kinds) == sorted(kinds)


def test_no_operation_leaks_a_descriptor(site: Site) -> None:
    before = os.listdir("/proc/self/fd")
    for path in ("sub/in.txt", "missing", "link_folder/x", "sub", "pipe", "sub/deep/none/x"):
        with pytest.raises(ToolError):
            get(site.folder, path + "/x")
    get(site.folder, "sub/deep/down.txt")
    put(site.folder, "sub/deep/down.txt", b"")
    site.folder.scan(site.folder.resolve("sub"), limit=10)
    assert os.listdir("/proc/self/fd") == before


def test_names_with_marks_that_reorder_a_line_are_shown_with_escapes() -> None:
    assert printable("a\u202eb\x9bc\n") == "a\\u202eb\\x9bc\\n"
