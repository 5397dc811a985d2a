"""Schedules in plain words, read by rules: "every weekday at 9", "in 20 minutes", "tomorrow at 18:00".

The rules are few and exact. Words that are no schedule give None. Words that are one but leave something
open, such as "every day" without a time, raise `UnclearSchedule` with the question that is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, time, timedelta, tzinfo
from functools import cache
from typing import NamedTuple, NoReturn

from talaria.core.errors import BadRequest
from talaria.core.jobs import At, Cron, Every, Schedule
from talaria.jobs.schedules import local_instant


class UnclearSchedule(BadRequest):
    """The words leave something open. The text is the question to ask the person."""

    type = "unclear_schedule"


class WordedJob(NamedTuple):
    """A sentence that has both: when, and what to do. A reminder is for a person to read."""

    schedule: Schedule
    text: str
    is_reminder: bool = False


EXAMPLES = (
    '"every weekday at 9", "every 30 minutes", "every first monday of the month at 8", "in 20 minutes" or '
    '"tomorrow at 18:00"'
)
_MAX_WORDS = 16  # of a schedule within a sentence
_MAX_CHARS = 200


def read_when(text: str, zone: tzinfo, now: float) -> Schedule:
    """Return the schedule that the whole text names, also behind "remind me". Raise `UnclearSchedule`,
    `BadRequest`."""
    reminder = _REMINDER.fullmatch(text.strip())
    schedule = parse_words(reminder["rest"] if reminder else text, zone, now)
    if schedule is None:
        _ask(f"When is {text[:80]!r}?")
    return schedule


def suggest_reminder(text: str) -> str | None:
    """Return the text of the reminder that a text beginning with "remind me" asks for; None for others."""
    asked = _REMINDER.fullmatch(text.strip())
    return None if asked is None else _TO.sub("", asked["rest"].strip(" ,:")) or _NO_TEXT


def parse_words(text: str, zone: tzinfo, now: float) -> Schedule | None:
    """Return the schedule that the whole text names; None if it names none. Raise `UnclearSchedule`, and
    `BadRequest` for a date that does not exist."""
    if len(text) > _MAX_CHARS:
        return None
    phrase = _normal(text)
    for pattern, read in _rules():
        match = pattern.fullmatch(phrase)
        if match is not None:
            return read(_Found(match.groupdict(), zone, now))
    return None


def parse_sentence(text: str, zone: tzinfo, now: float) -> WordedJob | None:
    """Return the job in a sentence that begins or ends with a schedule; None if it does neither.

    Raise `UnclearSchedule` if it has one that leaves something open.
    """
    reminder = _REMINDER.fullmatch(text.strip())
    unclear: BadRequest | None = None
    for when, rest in _splits(reminder["rest"] if reminder else text):
        try:
            schedule = parse_words(when, zone, now)
        except BadRequest as error:
            unclear = unclear or error
            continue
        if schedule is not None:
            job = rest.strip(" ,:")
            if reminder is None:
                return WordedJob(schedule, job)
            return WordedJob(schedule, _TO.sub("", job) or _NO_TEXT, is_reminder=True)
    if unclear is not None:
        raise unclear
    if reminder is not None:
        _ask("When should I remind you?")
    return None


_REMINDER = re.compile(r"(?:please )?remind me\b[ ,]*(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_NO_TEXT = "The time has come."
_TO = re.compile(r"^(?:to|that|about|of)\s+", re.IGNORECASE)


def _splits(text: str) -> Iterator[tuple[str, str]]:
    """Yield the ways to take a schedule off the beginning or the end of a text, long schedules first."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    for count in range(min(len(starts), _MAX_WORDS), 0, -1):
        yield text[: ends[count - 1]], text[ends[count - 1] :]
    for count in range(min(len(starts) - 1, _MAX_WORDS), 0, -1):
        yield text[starts[-count] :], text[: starts[-count]]


# -- normal form ------------------------------------------------------------------------------------------

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_SHORT = (
    {"s": "second", "sec": "second", "secs": "second", "m": "minute", "min": "minute", "mins": "minute"}
    | {"h": "hour", "hr": "hour", "hrs": "hour", "d": "day", "w": "week"}
    | {unit + "s": unit for unit in _UNITS}
)
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
_WORDS = (
    {word: str(number) for number, word in enumerate(_NUMBERS.split())}
    | {"twenty": "20", "thirty": "30", "forty": "40", "forty-five": "45", "sixty": "60", "ninety": "90"}
    | {"each": "every", "daily": "every day", "hourly": "every hour", "weekly": "every week"}
    | {"monthly": "every month", "yearly": "every year", "noon": "12:00", "midnight": "0:00", "o'clock": ""}
    | {"workday": "weekday", "weekdays": "every weekday", "weekends": "every weekend"}
    | {day + "s": f"every {day}" for day in _DAYS}
    | {day[:3]: day for day in _DAYS}
    | {month[:3]: month for month in _MONTHS if month != "may"}
)
_SPAN_OF_UNIT = re.compile(r"(\d+) ?([a-z]+)\b")


def _normal(text: str) -> str:
    """Return the text in small letters, with one word for each idea: digits, units and days in full."""
    words = " ".join(text.strip().rstrip(".,!:").lower().split())
    words = words.replace("half an hour", "30 minutes").replace("an hour and a half", "90 minutes")
    words = re.sub(r"(\d+h)(\d+m)\b", r"\1 \2", words)
    words = re.sub(r"\b(in|every) an? (?!few|couple|while|bit|moment)", r"\1 1 ", words)
    words = re.sub(r"[a-z]+(?:-five|'clock)?", lambda word: _WORDS.get(word[0], word[0]), words)
    words = re.sub(r"\b(?:on )?every ((?:\w+)(?:, | and |, and ))", r"every \1", words)
    words = re.sub(r"((?:, | and |, and ))every ", r"\1", words)
    words = _SPAN_OF_UNIT.sub(lambda span: f"{span[1]} {_SHORT.get(span[2], span[2])}", words)
    words = re.sub(r"\b(\d{1,2}) ([ap]m)\b", r"\1\2", words)
    words = re.sub(r"\b(\d{1,2}) (st|nd|rd|th)\b", r"\1", words)
    words = re.sub(r"(?<=at )(\d{1,2})\.(\d{2})\b", r"\1:\2", words)  # 9.30 as 9:30
    words = re.sub(r"^on (?:the )?", "", " ".join(words.split()))
    # "at 9 every weekday" as "every weekday at 9"
    return re.sub(r"^(at [\d:apm]+(?:(?:, | and |, and )(?:at )?[\d:apm]+)*) (.+)$", r"\2 \1", words)


# -- rules ------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """The parts of a phrase that a rule has matched."""

    parts: dict[str, str | None]
    zone: tzinfo
    now: float

    def __call__(self, name: str) -> str:
        return self.parts.get(name) or ""

    @property
    def local(self) -> datetime:
        return datetime.fromtimestamp(self.now, self.zone)

    def at(self, day: datetime) -> At:
        """Return the named time on a day."""
        moment = datetime.combine(day.date(), _time_of(self("time")))
        return At(local_instant(moment, self.zone), moment.isoformat())


_Reader = Callable[[_Found], Schedule]


def _ask(question: str, hint: str = "") -> NoReturn:
    raise UnclearSchedule(question, hint or f"Say it in words such as {EXAMPLES}.")


def _asks(question: str, hint: str = "") -> _Reader:
    def read(found: _Found) -> NoReturn:
        _ask(question, hint)

    return read


def _time_of(text: str) -> time:
    half = text[-2:] if text[-2:] in ("am", "pm") else ""
    hour, _, minute = text.removesuffix(half).strip().partition(":")
    number, minutes = int(hour), int(minute or 0)
    if (half and not 1 <= number <= 12) or number > 23 or minutes > 59:
        _ask(f"There is no time {text}. At what time?", 'Say it as "9", "9:30", "6pm" or "18:00".')
    if half:
        number = number % 12 + (12 if half == "pm" else 0)
    return time(number, minutes)


def _clock(text: str) -> str:
    """Return the minute and the hour of a cron expression for a list of times, such as "9 and 17"."""
    times = [_time_of(one) for one in re.findall(r"[\d:]+(?:[ap]m)?", text)]
    if len({moment.minute for moment in times}) > 1:
        _ask(
            "A job runs at the same minute of each hour. At which time?", "Make a job for each of the times."
        )
    return f"{times[0].minute} {','.join(str(hour) for hour in sorted({moment.hour for moment in times}))}"


def _weekdays(text: str) -> str:
    """Return the last field of a cron expression."""
    if text in ("weekday", "weekend", "weekend day"):
        return "1-5" if text == "weekday" else "6,0"
    return ",".join(str((_DAYS.index(name) + 1) % 7) for name in re.findall(r"[a-z]+day", text))


def _later(found: _Found) -> Schedule:
    spans = re.findall(r"(\d+) (second|minute|hour|day|week)", found("span"))
    seconds = sum(int(number) * _UNITS[unit] for number, unit in spans)
    if not 0 < seconds < 5 * 366 * 86_400:
        _ask("In how many minutes?")
    return At(float(round(found.now + seconds)))


def _at_time(found: _Found) -> Schedule:
    """Today or tomorrow, as it is said; without a day, whichever comes first."""
    tomorrow = found.local + timedelta(days=1)
    once = found.at(tomorrow if found("when") == "tomorrow" else found.local)
    has_passed = once.instant <= found.now and not found("when")
    return found.at(tomorrow) if has_passed else once


def _on_day(found: _Found) -> Schedule:
    ahead = (_DAYS.index(found("name")) - found.local.weekday()) % 7
    once = found.at(found.local + timedelta(days=ahead))
    if once.instant <= found.now or (ahead == 0 and found("next")):
        return found.at(found.local + timedelta(days=ahead + 7))
    return once


def _on_date(found: _Found) -> Schedule:
    month = _MONTHS.index(found("month")) + 1 if found("month") in _MONTHS else int(found("month"))
    this_year = found.local.year
    for year in [int(found("year"))] if found("year") else range(this_year, this_year + 9):
        try:
            once = found.at(datetime(year, month, int(found("day"))))
        except ValueError:
            continue
        if once.instant > found.now or found("year"):
            return once
    raise BadRequest(
        f"There is no {found('day')} {found('month').title()}.", "Look at the day and the month."
    )


def _every(found: _Found) -> Schedule:
    number, unit = int(found("number") or 1), found("unit")
    if number == 1 and unit == "hour":
        return Cron("0 * * * *")
    if number == 1 and unit in ("day", "week"):
        _ask("At what time?" if unit == "day" else "On which day of the week, and at what time?")
    if not number:
        _ask(f"Every how many {unit}s?")
    return Every(min(number * _UNITS[unit], 10**9), float(round(found.now)))


def _between(found: _Found) -> Schedule:
    first, last = _time_of(found("first")), _time_of(found("last"))
    step = int(found("number") or 1) * (60 if found("unit") == "hour" else 1)
    is_even = step and (step % 60 == 0 or 60 % step == 0)
    if first.minute or last.minute or first >= last or not is_even:
        _ask("Between which full hours, and how often?", 'An example: "every 30 minutes between 9 and 17".')
    days = _weekdays(found("days")) if found("days") else "*"
    if step < 60:
        return Cron(f"*/{step} {first.hour}-{last.hour - 1} * * {days}")
    return Cron(f"0 {first.hour}-{last.hour}{f'/{step // 60}' if step > 60 else ''} * * {days}")


def _monthly(found: _Found) -> Schedule:
    day = int(found("day") or 1)
    if not 1 <= day <= 31:
        _ask(f"No month has a day {day}. On which day?")
    return Cron(f"{_clock(found('times'))} {day if found('day') else 'L'} * *")


def _nth_day(found: _Found) -> Schedule:
    day = (_DAYS.index(found("name")) + 1) % 7
    nth = {"first": "#1", "second": "#2", "third": "#3", "fourth": "#4", "last": "L"}[found("nth")]
    return Cron(f"{_clock(found('times'))} * * {day}{nth}")


def _yearly(found: _Found) -> Schedule:
    return Cron(f"{_clock(found('times'))} {found('day')} {_MONTHS.index(found('month')) + 1} *")


def _daily(found: _Found) -> Schedule:
    return Cron(f"{_clock(found('times'))} * * *")


def _weekly(found: _Found) -> Schedule:
    return Cron(f"{_clock(found('times'))} * * {_weekdays(found('days'))}")


_PIECES = {
    "T": r"\d{1,2}(?::\d{2})?(?:[ap]m)?",
    "UNIT": r"(?P<unit>second|minute|hour|day|week)",
    "SPAN": r"(?P<span>\d+ (?:{U})(?:(?:,| and)? \d+ (?:{U}))*)".replace("{U}", "|".join(_UNITS)),
    "DAY": "|".join(_DAYS),
    "DAYS": r"(?P<days>weekday|weekend day|weekend|(?:{D})(?:(?:, | and |, and )(?:{D}))*)".replace(
        "{D}", "|".join(_DAYS)
    ),
    "DATE": r"(?:(?P<day>\d{1,2}) (?:of )?(?P<month>{M}))".replace("{M}", "|".join(_MONTHS)),
    "ETAD": r"(?:(?P<month>{M}) (?:the )?(?P<day>\d{1,2}))".replace("{M}", "|".join(_MONTHS)),
    "NTH": "(?P<nth>first|second|third|fourth|last)",
}
_PIECES["TIME"] = rf"(?:,? at|,)? (?P<time>{_PIECES['T']})"
_PIECES["TIMES"] = r"(?:,? at|,)? (?P<times>{T}(?:(?:, | and |, and )(?:at )?{T})*)".replace(
    "{T}", _PIECES["T"]
)
_WHICH_TIME = "At what time?"

# A piece in angle brackets stands for its pattern. The first rule that matches counts.
_RULES: tuple[tuple[str, _Reader], ...] = (
    ("in <SPAN>|<SPAN> from now", _later),
    ("soon|later|in (?:1 )?(?:a )?(?:few|couple|while|bit|moment).*", _asks("In how many minutes?")),
    ("(?P<when>today|tomorrow)<TIME>", _at_time),
    ("at (?P<time><T>)", _at_time),
    ("(?P<next>next )?(?P<name><DAY>)<TIME>", _on_day),
    (r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})(?: ?t ?)?(?<!t)<TIME>", _on_date),
    (r"<DATE>(?:,? (?P<year>\d{4}))?<TIME>", _on_date),
    (r"<ETAD>(?:,? (?P<year>\d{4}))?<TIME>", _on_date),
    (
        r"\d{1,2}[/.]\d{1,2}\b.*",
        _asks("Which day and which month?", 'Write "24 december".'),
    ),
    ("tonight|(?:tomorrow |this )?(?:morning|afternoon|evening)|today|tomorrow", _asks(_WHICH_TIME)),
    ("(?:next )?(?:<DAY>)|<DATE>|<ETAD>", _asks(_WHICH_TIME)),
    (r"every (?:(?P<number>\d+) )?<UNIT>", _every),
    (
        "every (?:other|second) .*",
        _asks(
            "A job cannot run on every other day or week of the calendar. When then?",
            'Say "every 48 hours", or name the days: "every monday and thursday at 9".',
        ),
    ),
    (
        r"every (?:(?P<number>\d+) )?(?P<unit>minute|hour) (?:between|from) (?P<first><T>) (?:and|to|until) "
        "(?P<last><T>)(?:,? (?:on )?(?:every )?<DAYS>)?",
        _between,
    ),
    ("every day<TIMES>", _daily),
    ("every <DAYS><TIMES>", _weekly),
    ("(?:every |the )?<NTH> (?P<name><DAY>) (?:of|in) (?:the|every) month<TIMES>", _nth_day),
    (r"every month on (?:the )?(?P<day>\d{1,2})<TIMES>", _monthly),
    (r"(?:the )?(?P<day>\d{1,2}) of (?:the|every) month<TIMES>", _monthly),
    ("(?:every|the)? ?last day of (?:the|every) month<TIMES>", _monthly),
    ("every (?:year on )?(?:the )?<DATE><TIMES>", _yearly),
    ("every (?:year on )?<ETAD><TIMES>", _yearly),
    ("every (?:morning|afternoon|evening|night)(?: .*)?", _asks(_WHICH_TIME)),
    ("every <DAYS>|(?:every |the )?<NTH> (?:<DAY>) (?:of|in) (?:the|every) month", _asks(_WHICH_TIME)),
    ("every month|every year", _asks("On which day, and at what time?")),
    (r"(?:\w+ times|twice|once) (?:a|per) (?:day|week|month|hour)", _asks("At which times?")),
)


@cache
def _rules() -> tuple[tuple[re.Pattern[str], _Reader], ...]:
    """Return the rules with compiled patterns."""
    return tuple((re.compile(piece), read) for template, read in _RULES for piece in _fill(template))


def _fill(template: str) -> Iterator[str]:
    """Yield the patterns of a rule: one for each alternative at its top, so that group names are unique."""
    depth, start = 0, 0
    for i, character in enumerate(template + "|"):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            yield re.sub("<([A-Z]+)>", lambda piece: f"(?:{_PIECES[piece[1]]})", template[start:i])
            start = i + 1
