"""docs/incidents.md: every row is there, gives its reason and names tests that exist."""

from __future__ import annotations

import pytest

from incidents.nodes import exists
from incidents.table import DOCUMENT, HERE, ROWS, Row, read_rows

TABLE = list(read_rows(DOCUMENT.read_text()))


def test_every_row_is_there_once_and_in_order() -> None:
    assert [row.number for row in TABLE] == list(range(1, ROWS + 1))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row.number))
def test_a_row_says_what_why_and_what_shows_it(row: Row) -> None:
    assert row.here in HERE
    assert len(row.symptom.split()) > 3, "what went wrong?"
    assert len(row.reason.split()) > 3, "why can it not happen?"
    assert row.tests, "what shows it?"
    missing = [test for test in row.tests if not exists(test)]
    assert not missing, f"docs/incidents.md names tests that do not exist: {missing}"


def test_a_missing_test_a_missing_reason_and_a_missing_row_would_be_seen() -> None:
    assert not exists("tests/pool/test_pool.py::test_nobody_wrote_this")
    assert not exists("tests/pool/no_such_file.py::test_plan")
    assert not exists("tests/pool/test_pool.py::spec"), "a function, but no test"
    assert exists("tests/pool/test_policy.py::test_plan")
    (row,) = read_rows("# T\n\n## S\n\n### 7. It broke\n\n*Same.*\n")
    assert row == Row("S", 7, "It broke", "same", "", ())
