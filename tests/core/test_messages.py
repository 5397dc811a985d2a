from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.messages import Image, Text, TokenUsage, UserMessage

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
