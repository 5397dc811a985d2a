"""docs/incidents.md: every row is there, gives its reason and names tests that exist."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from incidents.nodes import exists
from incidents.table import DOCUMENT, HERE, ROWS, Row, read_reported, read_rows

TABLE = list(read_rows(DOCUMENT.read_text()))
REPORTED = list(read_reported(DOCUMENT.read_text()))
OF_PLATFORMS = [row for row in REPORTED if row.section == "Chat platforms"]
OF_DELEGATES = [row for row in REPORTED if row.section == "Delegates"]


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


def test_every_platform_failure_names_its_report_and_a_test() -> None:
    counts = Counter(row.symptom.partition(":")[0] for row in OF_PLATFORMS)
    assert counts == {"Discord": 9, "Slack": 7}
    for row in OF_PLATFORMS:
        assert re.search(r"\((he|oc|omniclaw)#\d+[,)]", row.symptom), row.symptom
        assert row.tests, f"what shows that it cannot happen: {row.symptom}"
        folder = f"tests/channels/{row.symptom.partition(':')[0].lower()}/"
        assert all(exists(test) and test.startswith(folder) for test in row.tests), row.tests


def test_every_failure_of_delegation_names_its_report_and_a_test() -> None:
    assert len(OF_DELEGATES) == 7
    for row in OF_DELEGATES:
        assert re.search(r"\((he|oc|opencode)#\d+[,)]", row.symptom), row.symptom
        assert row.tests and all(exists(test) for test in row.tests), row.tests


def test_a_missing_test_a_missing_reason_and_a_missing_row_would_be_seen() -> None:
    assert not exists("tests/pool/test_pool.py::test_nobody_wrote_this")
    assert not exists("tests/pool/no_such_file.py::test_plan")
    assert not exists("tests/pool/test_pool.py::spec"), "a function, but no test"
    assert exists("tests/pool/test_policy.py::test_plan")
    (row,) = read_rows("# T\n\n## S\n\n### 7. It broke\n\n*Same.*\n")
    assert row == Row("S", 7, "It broke", "same", "", ())
    table = "| failure | test |\n|---|---|\n| IRC: lost | no test |\n"
    (row,) = read_reported(f"# T\n\n## Chat platforms\n\n{table}\n## S\n| a | b |\n")
    assert row == Row("Chat platforms", ROWS + 1, "IRC: lost", "reported", "", ())
