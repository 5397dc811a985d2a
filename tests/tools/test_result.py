from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.files import result_name
from talaria.core.redaction import Redactor
from talaria.workspace.folder import Folder
from talaria.workspace.spill import KEPT_RESULTS, Spill

LONG = "".join(f"line {n}\n" for n in range(1, 1001))


def capped(
    text: str, max_bytes: int, folder: Path | None = None, pieces: int = 1, name: str = "r.txt"
) -> str:
    """What a model gets of a text that comes in pieces."""
    spill = Spill(Redactor(), max_bytes, None if folder is None else lambda: Folder(folder), name)
    data = text.encode()
    size = len(data) // pieces + 1
    for at in range(0, len(data), size):
        spill.add(data[at : at + size])
        if spill.has_batch:
            spill.save()
    spill.end()
    short = spill.short()
    return spill.long() if short is None else short


def ends_of(text: str) -> tuple[str, str]:
    head, _, rest = text.partition("[The middle was left out.")
    return head.removesuffix("\n"), rest.partition("]\n")[2]


@pytest.mark.parametrize("text", ["x" * 1000, "ü" * 500, ""])
def test_a_result_within_the_cap_is_left_alone(tmp_path: Path, text: str) -> None:
    assert capped(text, 1000, tmp_path) == text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pieces", [1, 7, 3000])
def test_a_long_result_keeps_its_ends_and_says_where_the_rest_is(tmp_path: Path, pieces: int) -> None:
    text = capped(LONG, 1000, tmp_path, pieces)
    assert (tmp_path / ".talaria/results/r.txt").read_text() == LONG
    assert len(text.encode()) <= 1000
    assert text.startswith("line 1\nline 2\n")
    assert text.endswith("line 999\nline 1000\n")
    head, _, rest = text.partition("[")
    first_hidden = head.count("\n") + 1
    assert "8.7 KiB in 1000 lines and is in .talaria/results/r.txt" in rest
    assert f'read_file(".talaria/results/r.txt", offset={first_hidden})' in rest


def test_a_result_that_cannot_be_saved_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / ".talaria").write_text("in the way")
    for folder in (None, tmp_path):
        text = capped(LONG, 1000, folder)
        assert "It was not kept." in text
        assert len(text.encode()) <= 1000


@settings(deadline=None, max_examples=50)
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), min_size=100, max_size=400)
    | st.text("ab\n✓🦶", min_size=100, max_size=400),
    size=st.integers(64, 300),
    pieces=st.integers(1, 50),
)
def test_a_cut_is_within_its_budget_and_made_of_the_real_ends(text: str, size: int, pieces: int) -> None:
    long = capped(text * 8, size + 400, None, pieces)
    if long == text * 8:
        assert len(long.encode()) <= size + 400
        return
    head, tail = ends_of(long)
    assert len((head + tail).encode()) <= size
    assert (text * 8).startswith(head)
    assert (text * 8).endswith(tail)
    assert head and tail
    assert len(long.encode()) <= size + 400


@pytest.mark.parametrize("size", [-300, 0, 3, 63, 64])
def test_some_of_a_text_is_shown_however_little_room_there_is(size: int) -> None:
    assert ends_of(capped("x" * 48 + "y" * 100 + "z" * 16, size)) == ("x" * 48, "z" * 16)


# -- saved results ------------------------------------------------------------------------------------------


def test_a_name_is_fit_for_a_file_whatever_the_model_calls_its_call() -> None:
    name = result_name("mcp/../x", "turn_1", "../../etc\0\ud800")
    assert "/" not in name and "\0" not in name and name.endswith(".txt")


def test_the_same_call_has_the_same_file_and_another_call_another() -> None:
    assert result_name("t", "turn_1", "c1") == result_name("t", "turn_1", "c1")
    assert len({result_name("t", turn, call) for turn in ("turn_1", "turn_2") for call in ("1", "2")}) == 4


def test_only_the_newest_results_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT_RESULTS + 2):
        capped(LONG, 1000, tmp_path, name=f"{number}.txt")
        os.utime(tmp_path / ".talaria/results" / f"{number}.txt", (number, number))
    capped(LONG, 1000, tmp_path, name="new.txt")
    left = {path.name for path in (tmp_path / ".talaria/results").iterdir()}
    assert left == {"new.txt", *(f"{number}.txt" for number in range(3, KEPT_RESULTS + 2))}


def test_a_results_folder_that_was_replaced_by_a_link_is_not_used(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / ".talaria").symlink_to(outside)
    assert "symbolic link" in capped(LONG, 1000, tmp_path / "chat")
    assert list(outside.iterdir()) == []
