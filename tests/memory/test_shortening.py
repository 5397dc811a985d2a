"""Shortening a full page: what is taken of a model's answer, and what is not."""

from __future__ import annotations

import pytest

from talaria.core.errors import ToolError
from talaria.core.memory import EditOrigin, MemoryPage
from talaria.memory.tool import instructions, read_answer

PAGE = MemoryPage.USER
ORIGIN = EditOrigin("call", "ses_9", 1_795_000_000.0)
WANTED = "# Anna\n- Likes tea. <!-- 2026-01-02 ses_1 -->\n- Has a cat.\n"
LONG = "x" * 700


def test_facts_keep_their_origins_and_dates() -> None:
    answer = f"- Likes tea. (2026-01-02)\n\n- Had {LONG}. (2025-05-05)\n- No date."
    assert read_answer(answer, PAGE, WANTED, ORIGIN).splitlines() == [
        "- Likes tea. <!-- 2026-01-02 ses_1 -->",
        f"- Had {LONG}. <!-- 2025-05-05 ses_9 -->",
        "- No date. <!-- 2026-11-18 ses_9 -->",
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "did not answer with a list"),
        ("Here is the list:\n- Likes tea.", "did not answer with a list"),
        ("- Likes tea.", "facts would be lost"),
        (f"- {LONG}\n" * 6, "which is too long"),
        (f"- {'y' * 1001}", "at most 1000 characters"),
    ],
)
def test_an_answer_that_is_no_shorter_list_is_refused(answer: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        read_answer(answer, PAGE, WANTED, ORIGIN)


def test_the_model_is_told_how_long_the_page_may_be() -> None:
    assert "at most 2457 bytes" in instructions(PAGE)
