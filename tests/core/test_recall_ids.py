from __future__ import annotations

import pytest

from talaria.core.errors import ToolError
from talaria.core.ids import new_session_id
from talaria.core.shown import RecallId, RecallKind, entry_id, result_id, summary_id


def test_every_id_that_is_written_is_read_again() -> None:
    other = new_session_id()
    for text in (entry_id(12), summary_id(40), result_id(12, 2), f"{other}/e7", f"{other}/r7.1"):
        assert str(RecallId.parse(text)) == text


def test_an_id_names_its_session_only_behind_a_branching_point() -> None:
    other = new_session_id()
    assert RecallId.parse("e12") == RecallId(RecallKind.ENTRY, 12)
    assert RecallId.parse(f"{other}/s40") == RecallId(RecallKind.SUMMARY, 40, 0, other)


def test_marks_around_an_id_do_not_count() -> None:
    assert RecallId.parse(" [r12.2] ") == RecallId(RecallKind.RESULT, 12, 2)


@pytest.mark.parametrize(
    "text", ["", "12", "e0", "e", "r12", "e12.1", "s-1", "ses_x/", "/e1", "e" + "9" * 30]
)
def test_another_text_is_refused_with_the_forms_of_ids(text: str) -> None:
    with pytest.raises(ToolError) as refused:
        RecallId.parse(text)
    assert "e12" in refused.value.hint
