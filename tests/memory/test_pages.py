"""Edits of memory pages, as truth tables, and the lines that tell of changes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.core.errors import ToolError
from talaria.core.memory import (
    AddFact,
    EditOrigin,
    ForgetFact,
    MemoryEdit,
    MemoryPage,
    ReplaceFact,
    WritePage,
)
from talaria.memory.pages import (
    FactChanges,
    PageFull,
    apply_edit,
    body,
    compare,
    edit_mark,
    facts,
    page_digest,
    shown,
    split,
)

PAGE, DAY = MemoryPage.MEMORY, 1_795_000_000.0  # 2026-11-18
TEA = "- Likes green tea. <!-- 2026-11-18 ses_1 -->"


def origin(key: str = "call 1", by: str = "ses_1") -> EditOrigin:
    return EditOrigin(key, by, DAY)


def after(text: str, edit: MemoryEdit, key: str = "call 1") -> str:
    return body(apply_edit(text, edit, origin(key)).text)


@pytest.mark.parametrize(
    ("text", "edit", "expected"),
    [
        ("", AddFact(PAGE, "Likes green tea."), TEA),
        ("", AddFact(PAGE, " - Likes\n\tgreen  tea. "), TEA),
        (f"{TEA}\n", AddFact(PAGE, "likes GREEN tea."), TEA),
        ("# Anna\n\nBy hand.\n\n\n", AddFact(PAGE, "Likes green tea."), f"# Anna\n\nBy hand.\n{TEA}"),
        ("", AddFact(PAGE, "a --> b <!-- c"), "- a -> b <!- c <!-- 2026-11-18 ses_1 -->"),
        ("- Likes coffee.\n- Is 40.", ReplaceFact(PAGE, "coffee", "Likes green tea."), f"{TEA}\n- Is 40."),
        (f"{TEA}\n- Is 40.", ForgetFact(PAGE, "Likes green tea. (2026-11-18)"), "- Is 40."),
        ("- tea\n- green tea", ForgetFact(PAGE, "tea"), "- green tea"),
        (TEA, WritePage(PAGE, "# Mine\nall new\n"), "# Mine\nall new"),
        (TEA, WritePage(PAGE, ""), ""),
        (TEA, WritePage(PAGE, "x", page_digest(TEA)), "x"),
    ],
)
def test_an_edit_changes_one_fact_and_nothing_else(text: str, edit: MemoryEdit, expected: str) -> None:
    assert after(text, edit) == expected


@pytest.mark.parametrize(
    ("text", "edit", "why"),
    [
        (TEA, ForgetFact(PAGE, "coffee"), "has no such fact"),
        ("- tea one\n- tea two", ForgetFact(PAGE, "tea"), "2 facts of MEMORY.md fit: tea one; tea two."),
        (TEA, ForgetFact(PAGE, "  "), "Say which fact"),
        (TEA, AddFact(PAGE, " \n"), "the text is empty"),
        (TEA, AddFact(PAGE, "x" * 1001), "at most 1000 characters"),
        (TEA, WritePage(PAGE, "x", "another"), "was changed meanwhile"),
        ("", WritePage(PAGE, "x" * 8193), "MEMORY.md is full: it would have 8219 bytes of 8192."),
        ("", WritePage(MemoryPage.USER, "x" * 4096), "USER.md is full: it would have 4122 bytes of 4096."),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_with_the_reason(text: str, edit: MemoryEdit, why: str) -> None:
    with pytest.raises(ToolError) as refused:
        apply_edit(text, edit, origin())
    assert why in refused.value.info().sentence()


def test_an_edit_is_carried_out_once() -> None:
    text = apply_edit("", AddFact(PAGE, "A."), origin("one")).text
    text = apply_edit(text, ForgetFact(PAGE, "A."), origin("two")).text
    again = apply_edit(text, AddFact(PAGE, "A."), origin("one"))
    assert again.is_repeated and again.text == text
    assert body(text) == "" and split(text)[1] == [edit_mark("one"), edit_mark("two")]


def test_a_page_that_a_hand_made_too_long_can_become_shorter_but_not_longer() -> None:
    text = "".join(f"- fact {number} {'x' * 80}\n" for number in range(150))
    assert len(text) > PAGE.max_bytes
    apply_edit(text, ForgetFact(PAGE, "fact 7 x"), origin())
    with pytest.raises(PageFull):
        apply_edit(text, AddFact(PAGE, "one more"), origin())


def test_models_read_dates_and_not_sessions() -> None:
    text = apply_edit("# Anna\n", AddFact(PAGE, "Likes green tea."), origin()).text
    assert shown(text) == "# Anna\n- Likes green tea. (2026-11-18)"
    assert facts(shown(text)) == ["Likes green tea. (2026-11-18)"]


@given(
    st.lists(st.text(alphabet="ab-+# ", min_size=1, max_size=6), max_size=6),
    st.lists(st.text(alphabet="ab-+# ", min_size=1, max_size=6), max_size=6),
)
def test_told_changes_lead_from_what_is_known_to_what_is(old: list[str], new: list[str]) -> None:
    known, current = Counter(facts("\n".join(old))), facts("\n".join(new))
    changes = FactChanges.read(f"Some words:\n{compare(known, current).describe()}\n]")
    assert known + Counter(changes.added) - Counter(changes.removed) == Counter(current)
