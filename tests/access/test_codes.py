"""Codes can be read aloud, not guessed."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest

from talaria.access.authorizer import ALPHABET, hash_code, new_code, read_code

LENGTH = 12


def test_a_code_has_more_than_forty_bits() -> None:
    assert len(set(ALPHABET)) == len(ALPHABET)
    assert LENGTH * math.log2(len(ALPHABET)) >= 58


def test_a_code_has_no_letters_that_look_alike() -> None:
    assert not set("01OILU") & set(ALPHABET)
    assert ALPHABET.upper() == ALPHABET


def test_codes_are_grouped_differ_and_use_the_whole_alphabet_evenly() -> None:
    codes = [new_code() for _ in range(5000)]
    assert all(re.fullmatch(f"[{ALPHABET}]{{4}}-[{ALPHABET}]{{4}}-[{ALPHABET}]{{4}}", each) for each in codes)
    assert len(set(codes)) == 5000
    # Each letter is expected 2,000 times with a deviation of 44; at each place 167 times with 13.
    letters = Counter("".join(codes).replace("-", ""))
    assert set(letters) == set(ALPHABET)
    assert all(1700 < count < 2300 for count in letters.values())
    for place in (*range(4), *range(5, 9), *range(10, 14)):
        at_place = Counter(each[place] for each in codes)
        assert all(70 < at_place[letter] < 290 for letter in ALPHABET)


@pytest.mark.parametrize(
    "typed",
    ["K7QD-93MX-4TZA", "k7qd-93mx-4tza", "K7QD93MX4TZA", " k7qd 93mx\t4tza\n", "K-7-Q-D-9-3-M-X-4-T-Z-A"],
)
def test_a_code_is_read_however_it_is_typed(typed: str) -> None:
    assert read_code(typed) == "K7QD-93MX-4TZA"


@pytest.mark.parametrize(
    "typed",
    ["", " ", "K7QD", "K7QD-93MX-4TZ", "K7QD-93MX-4TZAA", "K7QD-93MX-4TZ0", "K7QD-93MX-4TZ!",
     "Ｋ7QD-93MX-4TZA", "K7QD-93MX-4TZA" * 10_000, "-" * 1_000_000, "\x00" * 12, "ßßßßßß"],
)  # fmt: skip
def test_what_cannot_be_a_code_is_none(typed: str) -> None:
    assert read_code(typed) is None


def test_a_hash_shows_nothing_of_its_code() -> None:
    code = new_code()
    assert re.fullmatch("[0-9a-f]{64}", hash_code(code))
    assert hash_code(code) != hash_code(new_code())
