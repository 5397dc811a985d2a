from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.messages import File, Image, Text, TokenUsage, ToolResult, UserMessage

count = st.integers(0, 10**9)
usages = st.builds(TokenUsage, count, count, count, count)


def test_usage_adds_up_field_by_field() -> None:
    assert TokenUsage(1, 2, 3, 4) + TokenUsage(10, 20, 30, 40) == TokenUsage(11, 22, 33, 44)


@settings(deadline=None)
@given(usages, usages, usages)
def test_usage_may_be_added_in_any_order(a: TokenUsage, b: TokenUsage, c: TokenUsage) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + TokenUsage() == a


def test_the_text_of_a_user_message_is_its_text_parts() -> None:
    assert UserMessage((Text("one"), Image("https://x/y.png"), Text("two"))).text == "one\ntwo"


def test_a_result_of_parts_has_a_text_that_names_them_all() -> None:
    parts = (Text("one"), Image("https://x/y.png"), File("a.pdf", "inbox/a.pdf", "application/pdf", 9))
    result = ToolResult.of("c", "a", parts)
    assert result.text == "one\n[image]\n[file inbox/a.pdf]"
    assert result.parts == parts


def test_parts_that_are_all_text_are_one_text() -> None:
    assert ToolResult.of("c", "a", (Text("one"), Text("two"))) == ToolResult("c", "a", "one\ntwo")
    assert ToolResult.of("c", "a", ()) == ToolResult("c", "a", "")
