from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.search.ranking import pick
from talaria.search.words import Traits, analyse, excerpt, placed_terms, terms


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("painting", "paint"),
        ("Stories", "story"),
        ("running", "runs"),
        ("planned", "planning"),
        ("boxes", "box"),
        ("café", "CAFE"),
        ("Ｔｏｋｙｏ", "tokyo"),
        ("Caroline's", "caroline"),
        ("quickly", "quick"),
    ],
)
def test_forms_of_a_word_are_one_term(one: str, other: str) -> None:
    assert terms(one) == terms(other) != []


def test_words_that_say_nothing_are_left_out() -> None:
    assert terms("What did you do with it?") == []


def test_text_without_spaces_becomes_pairs() -> None:
    assert terms("東京タワー") == ["東京", "京タ", "タワ", "ワー", "ー"]
    assert set(terms("東京")) - {"京"} <= set(terms("昨日東京へ行った"))


def test_traits_tell_what_a_text_is_like() -> None:
    assert analyse("Did you paint it last year?")[1] == (
        Traits.ASKS | Traits.IS_QUESTION | Traits.TIME | Traits.MUCH_TIME
    )
    assert analyse("We met on Monday.")[1] == Traits.TIME
    assert analyse("fine")[1] == Traits(0)


@given(st.text(max_size=200))
def test_any_text_has_terms_that_are_words_for_the_index(text: str) -> None:
    for term in terms(text):
        assert term and not any(each.isspace() or (each.isascii() and not each.isalnum()) for each in term)


@given(st.text(max_size=400), st.lists(st.text(max_size=10), max_size=3))
def test_an_excerpt_is_one_short_line(text: str, wanted: list[str]) -> None:
    shown = excerpt(text, wanted, 80)
    assert len(shown) <= 84 and "\n" not in shown
    assert all(0 <= at < max(1, len(text.lower())) for _, at in placed_terms(text))


def test_an_excerpt_shows_the_place_with_the_most_words() -> None:
    text = "dog " + "nothing here " * 100 + "the brown dog barked at the cat " + "nothing here " * 100
    assert "brown dog barked at the cat" in excerpt(text, terms("which brown dog barked"))


@pytest.mark.parametrize(("other", "picked"), [(7.1, [1, 9]), (6.9, [1, 2])])
def test_hit_next_to_a_better_one_is_picked_only_if_it_is_much_better_than_others(
    other: float, picked: list[int]
) -> None:
    assert pick({1: 9.0, 2: 9.0, 9: other}, 2) == picked
