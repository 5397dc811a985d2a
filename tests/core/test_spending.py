"""Money is whole nanodollars, and a day is the agent's."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.core.messages import TokenUsage
from talaria.core.spending import Price, Spent, cost, day_of, from_usd, most, show_usd, to_usd

QUARTER_SECONDS = 900

# $3 in, $0.30 cached, $15 out, $3.75 for what is written to the cache.
SONNET = Price(3_000_000_000, 300_000_000, 15_000_000_000, 3_750_000_000)
counts = st.integers(0, 10**7)


@pytest.mark.parametrize(
    ("tokens", "nanodollars"),
    [
        (TokenUsage(), 0),
        (TokenUsage(1), 3000),
        (TokenUsage(input=1000, cached=1000), 300_000),
        (TokenUsage(input=1000, cached=800), 200 * 3000 + 800 * 300),
        (TokenUsage(input=1000, cached=100, stored=700), 200 * 3000 + 100 * 300 + 700 * 3750),
        (TokenUsage(output=100, reasoning=60), 100 * 15_000),
        (TokenUsage(input=10, cached=50), 50 * 300),  # a provider that counts the two apart
    ],
)
def test_what_tokens_cost(tokens: TokenUsage, nanodollars: int) -> None:
    assert cost(tokens, SONNET) == nanodollars


def test_a_part_of_a_nanodollar_is_a_whole_one() -> None:
    assert cost(TokenUsage(1), Price(37, 0, 0, 0)) == 1


@given(counts, counts, counts, counts)
def test_no_call_costs_more_than_the_most_that_was_reserved(
    fresh: int, cached: int, stored: int, output: int
) -> None:
    tokens = TokenUsage(fresh + cached + stored, cached, output, 0, stored)
    assert cost(tokens, SONNET) <= most(tokens.input, tokens.output, SONNET)


@pytest.mark.parametrize(
    ("dollars", "nanodollars"), [(0, 0), (3.0, 3 * 10**9), (0.0375, 37_500_000), (0.1, 10**8)]
)
def test_dollars_become_whole_nanodollars(dollars: float, nanodollars: int) -> None:
    assert from_usd(dollars) == nanodollars


@pytest.mark.parametrize(
    ("nanodollars", "exact", "shown"),
    [
        (0, "0.00", "$0.00"),
        (1, "0.000000001", "less than $0.0001"),
        (12_500_000, "0.0125", "$0.0125"),
        (1_500_000_000, "1.50", "$1.50"),
        (1_234_567_891, "1.234567891", "$1.2346"),
        (12_000_000_000, "12.00", "$12.00"),
    ],
)
def test_amounts_for_programs_and_for_people(nanodollars: int, exact: str, shown: str) -> None:
    assert (to_usd(nanodollars), show_usd(nanodollars)) == (exact, shown)


def test_a_sum_with_an_unknown_part_has_no_cost() -> None:
    known, unknown = Spent(1, TokenUsage(5), 10), Spent(1, TokenUsage(7), 0, unpriced=1)
    assert (known + known).cost_usd == "0.00000002"
    assert (known + unknown) == Spent(2, TokenUsage(12), 10, 1)
    assert (known + unknown).cost_usd is None


# -- days -------------------------------------------------------------------------------------------------


def at(text: str, zone: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("zone", "now", "begins", "hours"),
    [
        ("UTC", "2026-11-15T12:00", "2026-11-15T00:00", 24),
        ("Europe/Berlin", "2026-11-15T00:00", "2026-11-15T00:00", 24),
        ("Europe/Berlin", "2026-11-15T23:59", "2026-11-15T00:00", 24),
        ("Europe/Berlin", "2026-03-29T12:00", "2026-03-29T00:00", 23),
        ("Europe/Berlin", "2026-10-25T12:00", "2026-10-25T00:00", 25),
        ("Asia/Kathmandu", "2026-11-15T12:00", "2026-11-15T00:00", 24),
        ("Africa/Cairo", "2026-04-24T12:00", "2026-04-24T01:00", 23),  # midnight is left out
        ("America/Havana", "2026-11-01T12:00", "2026-11-01T00:00", 25),  # midnight comes twice
    ],
)
def test_a_day_is_that_of_the_zone(zone: str, now: str, begins: str, hours: int) -> None:
    begun, ended = day_of(at(now, zone), ZoneInfo(zone))
    assert begun == at(begins, zone)
    assert (ended - begun) / 3600 == hours
    assert begun % QUARTER_SECONDS == 0


@given(st.floats(1.6e9, 2.2e9), st.sampled_from(["UTC", "Europe/Berlin", "Africa/Cairo", "Asia/Kathmandu"]))
def test_every_moment_is_within_its_day(now: float, zone: str) -> None:
    begins, ends = day_of(now, ZoneInfo(zone))
    assert begins <= now < ends
    assert day_of(ends, ZoneInfo(zone))[0] == ends
