"""Schedules in plain words: read by rules, and asked about when they leave something open."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.errors import BadRequest
from talaria.core.jobs import At, Cron, Every
from talaria.jobs.schedules import next_shown
from talaria.jobs.words import UnclearSchedule, parse_sentence, parse_words, read_when

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 17, 14, 30, tzinfo=BERLIN).timestamp()  # a Tuesday


@pytest.mark.parametrize(
    ("words", "expression"),
    [
        ("every weekday at 9", "0 9 * * 1-5"),
        ("Weekdays at 9:30", "30 9 * * 1-5"),
        ("at 9 every weekday", "0 9 * * 1-5"),
        ("every day at 18:05", "5 18 * * *"),
        ("daily at noon", "0 12 * * *"),
        ("each day at 7am", "0 7 * * *"),
        ("every day at 9 and 17", "0 9,17 * * *"),
        ("every monday at 8", "0 8 * * 1"),
        ("mondays and thursdays at 6 pm", "0 18 * * 1,4"),
        ("every Mon, Wed and Fri at 7", "0 7 * * 1,3,5"),
        ("every weekend at 10", "0 10 * * 6,0"),
        ("every hour", "0 * * * *"),
        ("every 30 minutes between 9 and 17 on weekdays", "*/30 9-16 * * 1-5"),
        ("every 2 hours from 8 to 20", "0 8-20/2 * * *"),
        ("every first monday of the month at 8", "0 8 * * 1#1"),
        ("on the last friday of each month at 17:00", "0 17 * * 5L"),
        ("every month on the 1st at 8", "0 8 1 * *"),
        ("on the 31st of every month at 9", "0 9 31 * *"),
        ("every last day of the month at 18:00", "0 18 L * *"),
        ("every year on 24 december at 9", "0 9 24 12 *"),
    ],
)
def test_words_that_repeat_are_a_cron_expression(words: str, expression: str) -> None:
    assert parse_words(words, BERLIN, NOW) == Cron(expression)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("in 20 minutes", "Tue 2026-11-17 14:50 CET"),
        ("in ten minutes.", "Tue 2026-11-17 14:40 CET"),
        ("in an hour", "Tue 2026-11-17 15:30 CET"),
        ("in half an hour", "Tue 2026-11-17 15:00 CET"),
        ("in 1h30m", "Tue 2026-11-17 16:00 CET"),
        ("in 2 hours and 5 minutes", "Tue 2026-11-17 16:35 CET"),
        ("90 seconds from now", "Tue 2026-11-17 14:31:30 CET"),
        ("tomorrow at 18:00", "Wed 2026-11-18 18:00 CET"),
        ("at 6pm today", "Tue 2026-11-17 18:00 CET"),
        ("at 9", "Wed 2026-11-18 09:00 CET"),
        ("on friday at 9", "Fri 2026-11-20 09:00 CET"),
        ("next tuesday at 9", "Tue 2026-11-24 09:00 CET"),
        ("tuesday at 15", "Tue 2026-11-17 15:00 CET"),
        ("on 24 december at 18:00", "Thu 2026-12-24 18:00 CET"),
        ("december 24, 2027 at 18", "Fri 2027-12-24 18:00 CET"),
        ("on 2026-12-24 at 18:00", "Thu 2026-12-24 18:00 CET"),
        ("on 29 february at 9", "Tue 2028-02-29 09:00 CET"),
    ],
)
def test_words_for_one_time_are_an_instant(words: str, shown: str) -> None:
    schedule = parse_words(words, BERLIN, NOW)
    assert isinstance(schedule, At)
    assert next_shown(schedule, BERLIN, NOW) == (shown,)


def test_an_interval_counts_from_now() -> None:
    assert parse_words("every 10 minutes", BERLIN, NOW) == Every(600, NOW)
    assert parse_words("every two weeks", BERLIN, NOW) == Every(1_209_600, NOW)


@pytest.mark.parametrize(
    ("words", "question"),
    [
        ("every day", "At what time?"),
        ("tomorrow", "At what time?"),
        ("tomorrow morning", "At what time?"),
        ("every first monday of the month", "At what time?"),
        ("every week", "On which day of the week"),
        ("monthly", "On which day"),
        ("in a few minutes", "In how many minutes?"),
        ("in 0 minutes", "In how many minutes?"),
        ("twice a day", "At which times?"),
        ("on 3/4 at 9", "Which day and which month?"),
        ("every other day", "every other day"),
        ("every day at 25", "no time 25"),
        ("at 13pm", "no time 13pm"),
        ("every day at 9 and 17:30", "same minute"),
        ("every 7 minutes between 9 and 17", "Between which full hours"),
        ("on the 32nd of every month at 9", "No month has a day 32"),
    ],
)
def test_words_that_leave_something_open_are_asked_about(words: str, question: str) -> None:
    with pytest.raises(UnclearSchedule, match=question) as caught:
        parse_words(words, BERLIN, NOW)
    assert caught.value.hint


def test_a_date_that_does_not_exist_is_told() -> None:
    with pytest.raises(BadRequest, match="There is no 31 February"):
        parse_words("on 31 february at 9", BERLIN, NOW)


def test_other_words_are_no_schedule() -> None:
    assert parse_words("when the sun is blue", BERLIN, NOW) is None
    with pytest.raises(UnclearSchedule, match="When is 'whenever'"):
        read_when("whenever", BERLIN, NOW)


@pytest.mark.parametrize(
    ("sentence", "text", "is_reminder"),
    [
        (
            "every weekday at 9 tell me what changed in this folder",
            "tell me what changed in this folder",
            False,
        ),
        ("Tell me the news, every weekday at 9", "Tell me the news", False),
        ("In 20 minutes: look at the oven", "look at the oven", False),
        ("remind me in ten minutes to stretch", "stretch", True),
        ("Remind me to call Bob tomorrow at 18:00", "call Bob", True),
        ("remind me tomorrow at 9 that the rent, of course, is due", "the rent, of course, is due", True),
        ("remind me in ten minutes", "The time has come.", True),
    ],
)
def test_a_sentence_has_a_time_and_a_text(sentence: str, text: str, is_reminder: bool) -> None:
    found = parse_sentence(sentence, BERLIN, NOW)
    assert found is not None
    assert (found.text, found.is_reminder) == (text, is_reminder)


def test_a_sentence_without_a_time_is_no_job_but_a_reminder_is_asked_about() -> None:
    assert parse_sentence("tell me when this page changes", BERLIN, NOW) is None
    with pytest.raises(UnclearSchedule, match="When should I remind you"):
        parse_sentence("remind me to sleep", BERLIN, NOW)
    with pytest.raises(UnclearSchedule, match="At what time"):
        parse_sentence("every day tell me a joke", BERLIN, NOW)


_WORDS = (
    *("every", "in", "at", "on", "the", "day", "days", "weekday", "monday", "minutes", "hours", "9", "17:30"),
    *("31", "of", "month", "first", "and", ",", "to", "am", "0", "remind me"),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.sampled_from(_WORDS), max_size=10).map(" ".join) | st.text(max_size=80))
def test_any_text_is_a_schedule_or_a_question(text: str) -> None:
    try:
        schedule = parse_words(text, BERLIN, NOW)
        parse_sentence(text, BERLIN, NOW)
    except BadRequest as error:
        assert error.user_text
    else:
        assert schedule is None or next_shown(schedule, BERLIN, NOW - 86_400)
