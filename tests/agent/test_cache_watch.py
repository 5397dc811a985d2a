"""The cache watch names why a prompt cache served less than the frozen prefix lets one expect."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from talaria.agent.warm import CacheSample, MissCause, find_cause, watch
from talaria.core.ids import SessionId, SpecId
from talaria.core.messages import TokenUsage
from talaria.observe.metrics import Metrics

CACHE_SECONDS = 300.0

SESSION = SessionId("ses_a")
BEFORE = CacheSample(0.0, "p/one", "p/one", SpecId("spec_1"), 0, TokenUsage(5000, 4000, 10), caches=True)
MISSED = TokenUsage(5100, 0, 10)


def later(**changes: Any) -> CacheSample:
    return msgspec.structs.replace(BEFORE, **{"at": 10.0, "tokens": MISSED, **changes})


@pytest.mark.parametrize(
    ("now", "cause"),
    [
        (later(tokens=TokenUsage(5100, 4992, 10)), None),
        (later(tokens=TokenUsage(5100, 4000, 10)), None),
        (later(tokens=TokenUsage(5100, 3999, 10)), MissCause.UNEXPLAINED),
        (later(), MissCause.UNEXPLAINED),
        (later(at=CACHE_SECONDS), MissCause.UNEXPLAINED),
        (later(at=CACHE_SECONDS + 1), MissCause.IDLE),
        (later(epoch=1), MissCause.REWRITTEN),
        (later(spec_id=SpecId("spec_2")), MissCause.SPEC),
        (later(own="p/two", answered="p/two", spec_id=SpecId("spec_2")), MissCause.MODEL),
        (later(answered="q/other"), MissCause.FALLBACK),
        (later(answered="q/other", at=CACHE_SECONDS + 1), MissCause.FALLBACK),
    ],
)
def test_the_cause_of_a_miss(now: CacheSample, cause: MissCause | None) -> None:
    assert find_cause(BEFORE, now) is cause


def test_a_provider_that_never_reports_cached_tokens_misses_nothing() -> None:
    before = msgspec.structs.replace(BEFORE, caches=False, tokens=TokenUsage(5000, 0, 10))
    assert find_cause(before, later(caches=False)) is None


def test_a_short_prompt_misses_nothing() -> None:
    before = msgspec.structs.replace(BEFORE, tokens=TokenUsage(1000, 0, 10))
    assert find_cause(before, later()) is None


@pytest.mark.parametrize(
    ("now", "level", "words"),
    [
        (later(), logging.WARNING, "nothing on our side changed"),
        (later(epoch=1), logging.INFO, "history was rewritten"),
    ],
)
def test_a_miss_is_told_and_counted(
    now: CacheSample, level: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    with caplog.at_level(logging.INFO, "talaria.agent"):
        kept = watch(SESSION, BEFORE, now, metrics)
    (record,) = caplog.records
    assert record.levelno == level
    assert "served 0 of about 5000 tokens to session ses_a" in record.getMessage()
    assert words in record.getMessage()
    cause = find_cause(BEFORE, now)
    assert f'talaria_prompt_cache_misses_total{{cause="{cause}"}} 1.0' in metrics.render().decode()
    assert kept.caches


def test_the_first_answer_is_compared_with_nothing_and_remembered() -> None:
    metrics = Metrics()
    first = msgspec.structs.replace(BEFORE, caches=False)
    kept = watch(SESSION, None, first, metrics)
    assert kept == BEFORE
    assert "cause=" not in metrics.render().decode()
