"""Ranking: which documents fit a query best.

Each candidate gets a score that is a sum of features with a weight for each. The weights were fitted on
conversations with known answers: `python -m bench.locomo` shows how, and what each feature is worth.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import NamedTuple

from talaria.search.side_file import SEQ_BITS, Document, NumberRange, SideFile
from talaria.search.words import MONTHS, Traits, plain_words, terms

_MOST_TERMS = 32
_MOST_POSTINGS = 20_000  # of a term, the newest; a more frequent term tells little
_MOST_SEEDS = 300  # documents with words of the query that are looked at, with their neighbours
_REACH = 2  # neighbours on each side whose words count
_LONG = 2000  # terms; in a longer document a term counts once
_SATURATION, _LENGTH_SHARE = 1.2, 0.75  # k1 and b of BM25
_CROWDING = 1.5  # that a hit costs each of its two neighbours, which are shown with it anyway

_QUOTED = re.compile(r'["“”]([^"“”]+)["“”]')
_ISO_DATE = re.compile(r"\b(?:19|20)\d\d-(\d\d)-(\d\d)\b")
_WHEN = re.compile(r"when\b|how long\b|(?:what|which) (?:year|month|date|day)\b")
_COUNTS = re.compile(r"how (?:many|much|old|long|often)\b")


class Query(NamedTuple):
    """A query, taken apart. `phrases` are terms that must stand together."""

    terms: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...]
    words: frozenset[str]
    months: frozenset[int]
    days: frozenset[int]
    asks_when: bool
    asks_number: bool


def parse_query(text: str) -> Query:
    low = text.lower().strip()
    words = plain_words(text)
    dates = [(int(month), int(day)) for month, day in _ISO_DATE.findall(text)]
    months = {MONTHS[word] for word in words if word in MONTHS and (word != "may" or "May" in text)}
    days = {int(word) for word in words if months and word.isdecimal() and len(word) < 3}
    return Query(
        tuple(dict.fromkeys(terms(text)))[:_MOST_TERMS],
        tuple(tuple(found) for phrase in _QUOTED.findall(text) if (found := terms(phrase))),
        frozenset(words),
        frozenset(months | {month for month, _ in dates}),
        frozenset(days | {day for _, day in dates}),
        _WHEN.match(low) is not None,
        _COUNTS.match(low) is not None,
    )


class Features(NamedTuple):
    """Reasons for a document to be a hit. `WEIGHTS` has the same fields."""

    own: float  # BM25 of its own words
    before: float  # of the document before it
    earlier: float  # of the one before that
    answers: float  # of the document before it, if that one asks something
    around: float  # share of the query's words in it and two neighbours on each side, by their rarity
    sitting: float  # the same for the documents without a long pause between them, as a sum
    speaker: float  # the query names its speaker
    date: float  # the query names its month, or its day and month: 1 or 2
    question: float  # it ends with a question
    personal: float  # its speaker tells of themselves
    time: float  # the query asks when, and it tells of times: up to 1
    number: float  # the query asks how many, and it has a number


WEIGHTS = Features(
    own=0.28,
    before=-0.08,
    earlier=0.09,
    answers=0.29,
    around=4.1,
    sitting=0.14,
    speaker=1.2,
    date=4.0,
    question=-0.77,
    personal=0.55,
    time=2.7,
    number=1.8,
)


class Extent(NamedTuple):
    """The documents that are looked through: those in `spans`, about `size`. With `sessions` only theirs. A
    document without words of the query can be a hit too, for its neighbours, unless it `needs_words`."""

    spans: Sequence[NumberRange]
    size: int
    sessions: Collection[int] | None = None
    needs_words: bool = False


class Ranked(NamedTuple):
    document: Document
    score: float


def rank(
    file: SideFile, query: Query, extent: Extent, limit: int, zone: tzinfo | None = None
) -> list[Ranked]:
    """Return the best documents, the best first."""
    candidates = gather(file, query, extent, zone)
    scores = {
        number: sum(map(float.__mul__, WEIGHTS, features)) for number, (_, features) in candidates.items()
    }
    return [Ranked(candidates[number][0], scores[number]) for number in pick(scores, limit)]


def pick(scores: Mapping[int, float], limit: int) -> list[int]:
    """Return the numbers with the best scores. A number beside one that was picked counts less."""
    left = dict(sorted(scores.items(), key=lambda item: -item[1])[: 4 * limit])
    picked: list[int] = []
    while left and len(picked) < limit:
        best = max(left, key=left.__getitem__)
        del left[best]
        picked.append(best)
        for beside in (best - 1, best + 1):
            if beside in left:
                left[beside] -= _CROWDING
    return picked


def gather(
    file: SideFile, query: Query, extent: Extent, zone: tzinfo | None = None
) -> dict[int, tuple[Document, Features]]:
    """Return the documents that may fit, with their features."""
    found = {term: _postings(file, term, extent) for term in query.terms}
    rarity = {term: _rarity(len(numbers), extent.size) for term, numbers in found.items()}
    seeds = _seeds(query, found, rarity)
    sittings = {number: file.sitting(number) for number in seeds}
    near = {
        number + offset: sitting
        for number, sitting in sittings.items()
        for offset in range(-_REACH, _REACH + 1)
        if sitting.first <= number + offset <= sitting.last
    }
    documents = file.documents(near)
    scores = _Scores(query, documents, found, rarity, near)
    return {
        number: (document, scores.features(document, zone))
        for number, document in documents.items()
        if _has_phrases(document, query) and not (extent.needs_words and not scores.own(number))
    }


def _rarity(found: int, count: int) -> float:
    """Return the inverse document frequency, as in BM25."""
    return math.log1p((max(count - found, 0) + 0.5) / (found + 0.5))


def _postings(file: SideFile, term: str, extent: Extent) -> list[int]:
    merged = [number for span in extent.spans for number in file.postings(term, span, _MOST_POSTINGS)]
    if extent.sessions is not None:
        merged = [number for number in merged if number >> SEQ_BITS in extent.sessions]
    return sorted(merged) if len(extent.spans) > 1 else merged


def _seeds(query: Query, found: dict[str, list[int]], rarity: dict[str, float]) -> list[int]:
    """Return the documents that have the most and rarest words of the query, the newest of equal ones."""
    sums: dict[int, float] = {}
    for term, numbers in found.items():
        weight = rarity[term]
        for number in numbers:
            sums[number] = sums.get(number, 0.0) + weight
    needed = {term for phrase in query.phrases for term in phrase}
    for term in needed:
        has = set(found.get(term, ()))
        sums = {number: weight for number, weight in sums.items() if number in has}
    return sorted(sums, key=lambda number: (sums[number], number), reverse=True)[:_MOST_SEEDS]


def _has_phrases(document: Document, query: Query) -> bool:
    return all(f" {' '.join(phrase)} " in f" {document.terms} " for phrase in query.phrases)


class _Scores:
    """The features of the documents that were found for a query."""

    def __init__(
        self,
        query: Query,
        documents: dict[int, Document],
        found: dict[str, list[int]],
        rarity: dict[str, float],
        sittings: dict[int, NumberRange],
    ) -> None:
        self._query = query
        self._documents = documents
        self._found = found
        self._sets = {term: set(numbers) for term, numbers in found.items()}
        self._rarity = rarity
        self._sittings = sittings
        self._total = sum(rarity.values()) or 1.0
        self._covered: dict[NumberRange, float] = {}
        sizes = [document.size for document in documents.values()]
        self._usual = sum(sizes) / len(sizes) if sizes else 1.0
        self._own = {number: self._bm25(document) for number, document in documents.items()}

    def own(self, number: int) -> float:
        return self._own[number]

    def features(self, document: Document, zone: tzinfo | None) -> Features:
        query, number, traits = self._query, document.number, Traits(document.traits)
        sitting = self._sittings[number]
        one, two = (
            self._own.get(each, 0.0) if each >= sitting.first else 0.0 for each in (number - 1, number - 2)
        )
        asked = one > 0 and bool(self._documents[number - 1].traits & Traits.ASKS)
        times = 1.0 if Traits.MUCH_TIME in traits else 0.5 if Traits.TIME in traits else 0.0
        return Features(
            own=self._own[number],
            before=one,
            earlier=two,
            answers=one if asked else 0.0,
            around=self._around(number, sitting),
            sitting=self._sitting(sitting),
            speaker=float(any(word in query.words for word in plain_words(document.speaker))),
            date=self._date(document.at, zone),
            question=float(Traits.IS_QUESTION in traits),
            personal=float(Traits.OWN in traits),
            time=times if query.asks_when else 0.0,
            number=float(query.asks_number and Traits.NUMBER in traits),
        )

    def _bm25(self, document: Document) -> float:
        score, words = 0.0, document.terms.split() if document.size <= _LONG else []
        length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * document.size / self._usual
        for term, numbers in self._sets.items():
            if document.number in numbers:
                often = words.count(term) or 1
                score += self._rarity[term] * often * (_SATURATION + 1) / (often + _SATURATION * length)
        return score

    def _around(self, number: int, sitting: NumberRange) -> float:
        places = range(max(number - _REACH, sitting.first), min(number + _REACH, sitting.last) + 1)
        covered = sum(
            self._rarity[term]
            for term, numbers in self._sets.items()
            if any(each in numbers for each in places)
        )
        return covered / self._total

    def _sitting(self, sitting: NumberRange) -> float:
        if sitting not in self._covered:
            self._covered[sitting] = sum(
                self._rarity[term] for term, numbers in self._found.items() if _has_some(numbers, sitting)
            )
        return self._covered[sitting]

    def _date(self, at: float, zone: tzinfo | None) -> float:
        if not self._query.months:
            return 0.0
        day = datetime.fromtimestamp(at, zone)
        has_month = day.month in self._query.months
        return float(has_month) + float(has_month and day.day in self._query.days)


def _has_some(numbers: list[int], span: NumberRange) -> bool:
    """Return whether one of the sorted numbers is in the span."""
    at = bisect_left(numbers, span.first)
    return at < len(numbers) and numbers[at] <= span.last
