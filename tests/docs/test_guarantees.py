"""docs/guarantees.md: one section for each guarantee, which names tests that exist."""

from __future__ import annotations

import re

import pytest

from incidents.nodes import ROOT, exists, node_ids

NUMBERS = range(1, 30)
STATES = ("Holds", "Partly", "Later")
SECTIONS = dict(
    re.findall(
        r"^## (G\d+)\. (.*?)(?=^## |\Z)",
        (ROOT / "docs" / "guarantees.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)


def test_every_guarantee_has_one_section_in_order() -> None:
    assert list(SECTIONS) == [f"G{number}" for number in NUMBERS]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_guarantee_states_what_holds_its_figure_and_tests_that_exist(name: str) -> None:
    title, state_and_text, *rest = SECTIONS[name].strip().split("\n\n")
    found = re.match(r"\*\*(\w+)\.\*\* \S", state_and_text)
    assert title
    assert found is not None
    assert found[1] in STATES
    assert rest[0].startswith("Figure: ")
    listed = rest[1].splitlines() if len(rest) > 1 else []
    tests = node_ids("\n".join(listed))
    assert tests or found[1] == "Later", "no test shows this guarantee"
    assert len(tests) == len(listed), "a line of the list is not the name of a test"
    assert [test for test in tests if not exists(test)] == []
