"""Nothing that a model writes can steer the terminal."""

from hypothesis import given
from hypothesis import strategies as st

from talaria.core.display import clean, clean_line

ALLOWED = {"\n", "\t"}


@given(st.text(st.characters(codec=None)))
def test_no_control_character_gets_through(text: str) -> None:
    assert all(ord(c) >= 0x20 and not 0x7F <= ord(c) <= 0x9F for c in clean(text) if c not in ALLOWED)
    clean(text).encode("utf-8")


@given(st.text(), st.integers(0, 50))
def test_it_does_not_matter_where_a_stream_was_split(text: str, at: int) -> None:
    assert clean(text[:at]) + clean(text[at:]) == clean(text)


def test_escape_sequences_lose_their_power_and_plain_text_stays() -> None:
    assert clean("\x1b]0;title\x07a\x1b[31mb\x9b2Jc\u202e\r\n\tü🙂") == "]0;titlea[31mb2Jc\n\tü🙂"


def test_a_line_is_one_line_of_limited_length() -> None:
    assert clean_line(" a\n\n b\t\x1bc ") == "a b c"
    assert clean_line("x" * 30, 10) == "x" * 9 + "…"
