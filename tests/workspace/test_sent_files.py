"""Copies of sent files: bounded, private, and removed when their time has come."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from talaria.core.errors import ToolError
from talaria.core.files import SentFile, content_digest, sent_file_id, turn_of_file
from talaria.core.ids import ChatKey, TurnId, new_turn_id
from talaria.core.limits import Limits, LimitSettings
from talaria.core.units import Size
from talaria.workspace.folder import Folder
from talaria.workspace.quota import FolderFull, FolderQuota
from talaria.workspace.uploads import drop_old_copies, keep_copy, open_copy, remove_private

KEY = ChatKey("agent:main:http:api:one")


def sent(root: Path, number: int, data: bytes = b"x", name: str = "a.txt", kept: int = 100) -> SentFile:
    root.mkdir(exist_ok=True)
    (root / name).write_bytes(data)
    folder = Folder(root)
    return keep_copy(folder, folder.resolve(name), (TurnId(f"turn_{number:026}"), "c1"), kept)[0]


def test_a_copy_is_as_the_file_was_and_belongs_to_the_user_alone(tmp_path: Path) -> None:
    file = sent(tmp_path / "chat", 1, b"before")
    (tmp_path / "chat" / "a.txt").write_bytes(b"after")
    with open_copy(lambda key: tmp_path / "chat", KEY, file) as copy:
        assert copy.read() == b"before"
    assert (tmp_path / "chat" / file.copy_path).stat().st_mode & 0o777 == 0o600


def test_a_call_that_is_run_again_replaces_its_copy(tmp_path: Path) -> None:
    first, again = sent(tmp_path / "chat", 1, b"one"), sent(tmp_path / "chat", 1, b"other")
    assert (first.id[:40], again.size) == (again.id[:40], 5)
    assert len(list((tmp_path / "chat").glob(".talaria/sent/*/*"))) == 1


def test_a_sent_file_has_no_characters_in_its_name_that_deceive(tmp_path: Path) -> None:
    file = sent(tmp_path / "chat", 1, name="plan\u202efdp.exe")
    assert file.name == "plan_fdp.exe"
    with open_copy(lambda key: tmp_path / "chat", KEY, file) as copy:
        assert copy.read() == b"x"


def test_the_newest_copies_of_a_chat_stay(tmp_path: Path) -> None:
    files = [sent(tmp_path / "chat", number, kept=3) for number in range(1, 7)]
    kept = {path.name for path in (tmp_path / "chat" / ".talaria/sent").iterdir()}
    assert kept == {file.id.removeprefix("file_") for file in files[-3:]}
    with pytest.raises(ToolError):
        open_copy(lambda key: tmp_path / "chat", KEY, files[0])


def test_copies_count_towards_the_room_of_the_chat(tmp_path: Path) -> None:
    quota = FolderQuota(Limits(LimitSettings(chat_files=Size(1500))))
    (tmp_path / "a.txt").write_bytes(b"x" * 1000)
    folder = Folder(tmp_path, quota)
    with pytest.raises(FolderFull, match="full"):
        keep_copy(folder, folder.resolve("a.txt"), (new_turn_id(), "c1"))
    assert not list(tmp_path.glob(".talaria/sent/*/*"))


def test_old_copies_of_all_chats_go(tmp_path: Path) -> None:
    old, new = [sent(tmp_path / "one", number) for number in (1, 2)]
    sent(tmp_path / "two", 3)
    os.utime(tmp_path / "one" / old.copy_path, (1000, 1000))
    (tmp_path / "linked").symlink_to(tmp_path / "one")
    assert drop_old_copies(tmp_path, 2000.0) == 1
    assert drop_old_copies(tmp_path / "nowhere", 2000.0) == 0
    assert not (tmp_path / "one" / old.copy_path).parent.exists()
    assert (tmp_path / "one" / new.copy_path).exists()
    assert (tmp_path / "one" / "a.txt").exists()


def test_a_removal_touches_the_gateways_own_files_only(tmp_path: Path) -> None:
    root = tmp_path / "chat"
    file = sent(root, 1)
    (root / ".talaria/results").mkdir()
    (root / ".talaria/results/r.txt").write_text("long")
    (tmp_path / "outside").write_text("mine")
    remove_private(root, "a.txt")
    for path in ("../outside", "/etc/hostname"):
        with pytest.raises(ToolError):
            remove_private(root, path)
    assert (root / "a.txt").exists() and (tmp_path / "outside").exists()
    for _ in range(2):  # a second time is harmless
        remove_private(root, file.copy_path)
        remove_private(root, ".talaria/results/r.txt")
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == ["a.txt"]
    remove_private(tmp_path / "gone", file.copy_path)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    "file_id",
    [
        "",
        "file_",
        "file_" + "0" * 32,
        "file_" + "0" * 26,
        "file_" + "0" * 26 + "_0123456",
        "FILE_" + "0" * 26,
    ],
)
def test_only_ids_of_sent_files_name_a_turn(file_id: str) -> None:
    assert turn_of_file(file_id) is None
    turn_id = new_turn_id()
    assert turn_of_file(sent_file_id(turn_id, "call")) == turn_id, "of an earlier release"
    assert turn_of_file(sent_file_id(turn_id, "call", content_digest(b"x"))) == turn_id
