from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.errors import ToolError
from talaria.tools.result import cap_result, cut

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
