from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.errors import ToolError
from talaria.core.files import result_name
from talaria.tools.result import cap_result, cut, save_result
from talaria.workspace.folder import Folder

LONG = "".join(f"line {n}\n" for n in range(1, 1001))


def test_a_result_within_the_cap_is_left_alone() -> None:
    def never(text: str) -> str:
        raise AssertionError("nothing to save")

    assert cap_result("x" * 1000, 1000, never) == "x" * 1000
    assert cut("ü" * 500, 1000) is None


def test_a_long_result_keeps_its_ends_and_says_where_the_rest_is() -> None:
    saved: list[str] = []

    def save(text: str) -> str:
        saved.append(text)
        return ".talaria/results/r.txt"

    text = cap_result(LONG, 1000, save)
    assert saved == [LONG]
    assert len(text.encode()) <= 1000
    assert text.startswith("line 1\nline 2\n")
    assert text.endswith("line 999\nline 1000\n")
    head, _, rest = text.partition("[")
    first_hidden = head.count("\n") + 1
    assert "8.7 KiB in 1000 lines and is in .talaria/results/r.txt" in rest
    assert f'read_file(".talaria/results/r.txt", offset={first_hidden})' in rest


@pytest.mark.parametrize("save", [None, "full disk"])
def test_a_result_that_cannot_be_saved_is_cut_and_says_so(save: str | None) -> None:
    def fail(text: str) -> str:
        raise ToolError("No space left on device.")

    text = cap_result(LONG, 1000, fail if save else None)
    assert "was not kept" in text
    assert len(text.encode()) <= 1000


@settings(deadline=None, max_examples=50)
@given(
    text=st.text(st.characters(codec="utf-8"), min_size=100, max_size=400)
    | st.text("ab\n✓🦶", min_size=100, max_size=400),
    size=st.integers(64, 300),
)
def test_a_cut_is_within_its_budget_and_made_of_the_real_ends(text: str, size: int) -> None:
    ends = cut(text, size)
    if ends is None:
        assert len(text.encode()) <= size
        return
    assert len((ends.head + ends.tail).encode()) <= size
    assert text.startswith(ends.head)
    assert text.endswith(ends.tail)
    assert ends.head and ends.tail
    assert ends.next_line == ends.head.count("\n") + 1


@settings(deadline=None, max_examples=50)
@given(text=st.text(st.characters(codec="utf-8"), min_size=300, max_size=600), size=st.integers(500, 2000))
def test_a_capped_result_is_never_longer_than_the_cap(text: str, size: int) -> None:
    assert len(cap_result(text * 8, size, lambda _: ".talaria/results/x.txt").encode()) <= size


# -- saved results ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("size", [-300, 0, 3, 63, 64])
def test_some_of_a_text_is_shown_however_little_room_there_is(size: int) -> None:
    ends = cut("x" * 48 + "y" * 100 + "z" * 16, size)
    assert ends is not None
    assert (ends.head, ends.tail) == ("x" * 48, "z" * 16)
