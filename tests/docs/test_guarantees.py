"""docs/guarantees.md: every guarantee is there and names tests that exist."""

from __future__ import annotations

import pytest

from incidents.nodes import ROOT, exists, node_ids

STATES = ("holds", "partly", "later")
LINES = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines()
    if line.startswith("| G")
]


def test_every_guarantee_is_there_once_and_in_order() -> None:
    assert [cells[0] for cells in LINES] == [f"G{number}" for number in range(1, 22)]


@pytest.mark.parametrize("cells", LINES, ids=lambda cells: str(cells[0]))
def test_a_guarantee_says_what_holds_and_names_tests_that_exist(cells: list[str]) -> None:
    _, guarantee, now, what, shown_by, figure = cells
    assert guarantee and what and figure
    assert now in STATES
    tests = node_ids(shown_by)
    assert tests or now == "later", "what shows it?"
    assert len(tests) == shown_by.count("`") // 2, "something in the list is not the name of a test"
    assert [test for test in tests if not exists(test)] == []
