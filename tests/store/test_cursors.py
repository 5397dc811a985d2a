"""Places in lists: what a client may send back as `after`."""

from __future__ import annotations

import pytest

from talaria.core.errors import BadRequest
from talaria.store.sql.retention import SLICE_BYTES, _slice
from talaria.store.sql.rows import parse_number_cursor, parse_session_cursor


@pytest.mark.parametrize("after", ["0", "7", "999999999", "9" * 18])
def test_a_number_is_a_place(after: str) -> None:
    assert parse_number_cursor(after) == int(after)


@pytest.mark.parametrize("after", ["", "-1", "1.0", "²", "٣", "x", "9" * 19])
def test_other_texts_are_no_place(after: str) -> None:
    with pytest.raises(BadRequest, match="is not a place in a list"):
        parse_number_cursor(after)


def test_without_a_place_a_list_begins_at_its_start() -> None:
    assert parse_number_cursor(None) == 0
    assert parse_session_cursor(None) == (float("inf"), "")


def test_the_place_of_a_session_is_its_time_and_its_id() -> None:
    assert parse_session_cursor("12.5~ses_1") == (12.5, "ses_1")
    assert parse_session_cursor("12~") == (12.0, "")
    for after in ("", "12.5", "x~ses_1", "~ses_1"):
        with pytest.raises(BadRequest, match="is not a place in a list"):
            parse_session_cursor(after)


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ([], 0),
        ([1, 2, 3], 3),
        ([SLICE_BYTES, 1], 1),
        ([SLICE_BYTES - 1, 1, 1], 2),
        ([SLICE_BYTES - 1, 0, 5], 3),
        ([SLICE_BYTES * 9], 1),
    ],
)
def test_rows_are_deleted_in_slices_of_limited_size(sizes: list[int], taken: int) -> None:
    rows = [("row", size) for size in sizes]
    assert _slice(iter(rows)) == rows[:taken]
