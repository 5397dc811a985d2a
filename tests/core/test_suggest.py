"""Suggestions for mistyped names."""

from __future__ import annotations

from talaria.core.text import did_you_mean, nearest


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert nearest("opneai", ["OpenAI", "anthropic"]) == "OpenAI"


def test_nothing_close_means_no_suggestion() -> None:
    assert nearest("zzz", ["openai"]) is None
    assert did_you_mean("zzz", ["openai"], "There are: openai.") == "There are: openai."
    assert did_you_mean("openia", ["openai"]) == "Did you mean openai?"


def test_a_huge_name_costs_no_more_than_a_long_one() -> None:
    assert nearest("x" * 10_000_000, ["read_file"]) is None
