from __future__ import annotations

import os
from pathlib import Path

import pytest

from talaria.core.errors import ToolError
from talaria.workspace.folder import Folder
from talaria.workspace.spill import result_name, save_result


def test_a_saved_result_is_where_its_path_says(tmp_path: Path) -> None:
    path = save_result(Folder(tmp_path), "out.txt", "all of it ✓")
    assert path == ".talaria/results/out.txt"
    assert (tmp_path / path).read_text() == "all of it ✓"


def test_a_name_is_fit_for_a_file_whatever_the_model_calls_its_call() -> None:
    name = result_name("mcp/../x", "turn_1", "../../etc\0\ud800")
    assert "/" not in name and "\0" not in name and name.endswith(".txt")


def test_the_same_call_has_the_same_file_and_another_call_another() -> None:
    assert result_name("t", "turn_1", "c1") == result_name("t", "turn_1", "c1")
    assert len({result_name("t", turn, call) for turn in ("turn_1", "turn_2") for call in ("1", "2")}) == 4


def test_only_the_newest_results_are_kept(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for number in range(5):
        save_result(folder, f"{number}.txt", "x", kept=10)
        os.utime(tmp_path / ".talaria/results" / f"{number}.txt", (number, number))
    save_result(folder, "new.txt", "x", kept=3)
    assert sorted(os.listdir(tmp_path / ".talaria/results")) == ["3.txt", "4.txt", "new.txt"]


def test_a_results_folder_that_was_replaced_by_a_link_is_not_used(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / ".talaria").symlink_to(outside)
    with pytest.raises(ToolError, match="symbolic link"):
        save_result(Folder(tmp_path / "chat"), "out.txt", "x")
    assert list(outside.iterdir()) == []
