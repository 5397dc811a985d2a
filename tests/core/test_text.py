"""Cutting text, and which characters are removed or escaped."""

from __future__ import annotations

import re

import pytest

from talaria.core import text
from talaria.core.text import cut, cut_middle, cut_to_fit, list_some, printable

DANGEROUS = "\x00\x1b\x7f\x9b\u2028\u202e\u2066\ud800\u061c\ufeff"


@pytest.mark.parametrize(
    ("function", "size", "expected"),
    [
        (cut, 6, "abcdef"),
        (cut, 5, "abcde…"),
        (cut_to_fit, 6, "abcdef"),
        (cut_to_fit, 5, "abcd…"),
        (cut_middle, 6, "abcdef"),
        (cut_middle, 5, "ab … ef"),
    ],
)
def test_text_is_cut_only_if_it_is_longer(function: object, size: int, expected: str) -> None:
    assert callable(function)
    assert function("abcdef", size) == expected


def test_names_after_the_first_few_become_an_ellipsis() -> None:
    assert list_some(["a", "b"], 2) == "a, b"
    assert list_some(["a", "b", "c"], 2) == "a, b, …"


@pytest.mark.parametrize("char", DANGEROUS)
def test_dangerous_character_is_removed_or_escaped(char: str) -> None:
    assert text.clean(f"a{char}b") == ("a\ufffdb" if char == "\ud800" else "ab")
    assert text.plain_name(f"a{char}b") == "a_b"
    shown = printable(f"a{char}b")
    assert shown.isascii() and re.fullmatch(r"a\\[xu][0-9a-f]+b", shown)


def test_tabs_and_line_feeds_stay_in_clean_text_and_are_escaped_in_a_printed_line() -> None:
    assert text.clean("a\tb\nc\r") == "a\tb\nc"
    assert printable("a\tb\nc\r") == r"a\tb\nc\r"
