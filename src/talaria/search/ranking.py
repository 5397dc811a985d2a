"""Ranking: which documents fit a query best.

Each candidate gets a score that is a sum of features with a weight for each. The weights were fitted on
conversations with known answers: `python -m bench.locomo` shows how, and what each feature is worth.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import NamedTuple

from talaria.search.side_file import SEQ_BITS, Document, NumberRange, SideFile
from talaria.search.words import MONTHS, Traits, plain_words, terms

_MOST_TERMS = 32
_MOST_POSTINGS = 10_000  # of a term, the newest; a more frequent term tells little
_MOST_SEEDS = 200  # documents with words of the query that are looked at, with their neighbours
_REACH = 2  # neighbours on each side whose words count
_LONG = 2000  # terms; in a longer document a term counts once
_NEAR = 30  # terms, about three lines
_SATURATION, _LENGTH_SHARE = 1.2, 0.75  # k1 and b of BM25
_CROWDING = 2.0  # that a hit costs each of its two neighbours, which are shown with it anyway

# As plain numbers, because they are looked at a thousand times for a query.
_ASKS, _IS_QUESTION = Traits.ASKS.value, Traits.IS_QUESTION.value
_TIME, _MUCH_TIME = Traits.TIME.value, Traits.MUCH_TIME.value

_QUOTED = re.compile(r'["“”]([^"“”]+)["“”]')
_ISO_DATE = re.compile(r"\b(?:19|20)\d\d-(\d\d)-(\d\d)\b")
_WHEN = re.compile(r"when\b|how long\b|(?:what|which) (?:year|month|date|day)\b")


class Query(NamedTuple):
    """A query, taken apart. `phrases` are terms that must stand together."""

    terms: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...]
    words: frozenset[str]
    months: frozenset[int]
    days: frozenset[int]
    asks_when: bool


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
    )


class Features(NamedTuple):
    """Reasons for a document to be a hit. `WEIGHTS` has the same fields."""

    own: float  # BM25 of its own words
    share: float  # the share of the query's words that stand near each other in it, be they rare or not
    before: float  # BM25 of the document before it, here and below without the names of speakers
    earlier: float  # of the one before that
    after: float  # of the document after it
    answers: float  # of the document before it, if that one asks something
    around: float  # share of the query's words in it and two neighbours on each side, by their rarity
    sitting: float  # the same for the documents without a long pause between them, as a sum
    speaker: float  # the query names its speaker
    date: float  # the query names its month, or its day and month: 1 or 2
    question: float  # it ends with a question
    time: float  # the query asks when, and it tells of times: up to 1


WEIGHTS = Features(
    own=0.19,
    share=1.6,
    before=-0.07,
    earlier=0.10,
    after=0.04,
    answers=0.30,
    around=2.9,
    sitting=0.16,
    speaker=1.1,
    date=3.6,
    question=-0.67,
    time=2.5,
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
    found = _Found(file, query, extent)
    sittings = {number: file.sitting(number) for number in found.seeds(query)}
    near = {
        number + offset: sitting
        for number, sitting in sittings.items()
        for offset in range(-_REACH, _REACH + 1)
        if sitting.first <= number + offset <= sitting.last
    }
    documents = file.documents(near)
    scores = _Scores(query, documents, found, near)
    return {
        number: (document, scores.features(document, zone))
        for number, document in documents.items()
        if (number in found.masks or not extent.needs_words) and _has_phrases(document, query)
    }


def _has_phrases(document: Document, query: Query) -> bool:
    return all(f" {' '.join(phrase)} " in f" {document.terms} " for phrase in query.phrases)


class _Found:
    """The documents with terms of the query. A mask has a bit for each term, and its weight is the sum of the
    rarities of these terms."""

    def __init__(self, file: SideFile, query: Query, extent: Extent) -> None:
        self.postings = {term: _postings(file, term, extent) for term in query.terms}
        self.bits = {term: 1 << at for at, term in enumerate(query.terms)}
        self.rarity = {term: _rarity(len(each), extent.size) for term, each in self.postings.items()}
        self.masks: dict[int, int] = {}
        for term, numbers in self.postings.items():
            bit = self.bits[term]
            again = {number: self.masks[number] | bit for number in self.masks.keys() & numbers}
            self.masks |= dict.fromkeys(numbers, bit) | again
        self._weights: dict[int, float] = {}

    def weigh(self, mask: int) -> float:
        if mask not in self._weights:
            fitting = (self.rarity[term] for term, bit in self.bits.items() if mask & bit)
            self._weights[mask] = sum(fitting, 0.0)
        return self._weights[mask]

    def seeds(self, query: Query) -> list[int]:
        """Return the documents that have the most and rarest words, the newest of equal ones."""
        needed = sum({self.bits.get(term, 0) for phrase in query.phrases for term in phrase})
        counts = Counter(self.masks.values())
        weights = {mask: self.weigh(mask) for mask in counts if mask & needed == needed}
        # Documents with nothing but frequent words are compared only as long as there is room for them.
        left, least = _MOST_SEEDS, 0.0
        for mask in sorted(weights, key=weights.__getitem__, reverse=True):
            if left <= 0:
                break
            left, least = left - counts[mask], weights[mask]
        weights = {mask: weight for mask, weight in weights.items() if weight >= least}
        fitting = [(weights[mask], number) for number, mask in self.masks.items() if mask in weights]
        fitting.sort(reverse=True)
        return [number for _, number in fitting[:_MOST_SEEDS]]


def _rarity(found: int, count: int) -> float:
    """Return the inverse document frequency, as in BM25."""
    return math.log1p((max(count - found, 0) + 0.5) / (found + 0.5))


def _postings(file: SideFile, term: str, extent: Extent) -> list[int]:
    merged = [number for span in extent.spans for number in file.postings(term, span, _MOST_POSTINGS)]
    if extent.sessions is not None:
        merged = [number for number in merged if number >> SEQ_BITS in extent.sessions]
    return sorted(merged) if len(extent.spans) > 1 else merged


class _Scores:
    """The features of the documents that were found for a query."""

    def __init__(
        self, query: Query, documents: dict[int, Document], found: _Found, sittings: dict[int, NumberRange]
    ) -> None:
        self._query = query
        self._documents = documents
        self._found = found
        self._sittings = sittings
        self._covered: dict[NumberRange, float] = {}
        self._named: dict[str, bool] = {}
        # Speakers say each other's names, which tells little of what is said.
        names = {term for name in {each.speaker for each in documents.values()} for term in terms(name)}
        self._told = ~sum(found.bits[term] for term in names if term in found.bits)
        every = ((1 << len(found.bits)) - 1) & self._told
        self._count, self._total = every.bit_count() or 1, found.weigh(every) or 1.0
        sizes = [document.size for document in documents.values()]
        self._usual = sum(sizes) / max(1, len(sizes)) or 1.0
        self._own = {number: self._bm25(each, ~0) for number, each in documents.items()}
        self._beside = {number: self._bm25(each, self._told) for number, each in documents.items()}

    def features(self, document: Document, zone: tzinfo | None) -> Features:
        query, number, traits = self._query, document.number, document.traits
        sitting = self._sittings[number]
        one = self._beside.get(number - 1, 0.0) if number > sitting.first else 0.0
        two = self._beside.get(number - 2, 0.0) if number > sitting.first + 1 else 0.0
        is_asked = one > 0 and self._documents[number - 1].traits & _ASKS
        return Features(
            own=self._own[number],
            share=self._near(document) / self._count,
            before=one,
            earlier=two,
            after=self._beside.get(number + 1, 0.0) if number < sitting.last else 0.0,
            answers=one if is_asked else 0.0,
            around=self._around(number, sitting),
            sitting=self._sitting(sitting),
            speaker=self._speaker(document.speaker),
            date=self._date(document.at, zone) if query.months else 0.0,
            question=1.0 if traits & _IS_QUESTION else 0.0,
            time=_times(traits) if query.asks_when else 0.0,
        )

    def _bm25(self, document: Document, counted: int) -> float:
        """Return the score of the terms whose bits are counted."""
        mask = self._found.masks.get(document.number, 0) & counted
        if not mask:
            return 0.0
        words = document.terms.split() if document.size <= _LONG else []
        length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * document.size / self._usual
        score = 0.0
        for term, bit in self._found.bits.items():
            if mask & bit:
                often = words.count(term) or 1
                score += self._found.rarity[term] * often * (_SATURATION + 1) / (often + _SATURATION * length)
        return score

    def _near(self, document: Document) -> int:
        """Return the most terms of the query that stand within a few lines of the document."""
        mask = self._found.masks.get(document.number, 0) & self._told
        if not mask or document.size <= _NEAR or document.size > _LONG:
            return mask.bit_count()
        bits = self._found.bits
        places = [(at, bits[word]) for at, word in enumerate(document.terms.split()) if word in bits]
        most = 0
        for index, (at, _) in enumerate(places):
            near = 0
            for place, bit in places[index:]:
                if place > at + _NEAR:
                    break
                near |= bit
            most = max(most, (near & mask).bit_count())
            if most == mask.bit_count():
                break
        return most

    def _around(self, number: int, sitting: NumberRange) -> float:
        mask, masks = 0, self._found.masks
        for each in range(max(number - _REACH, sitting.first), min(number + _REACH, sitting.last) + 1):
            mask |= masks.get(each, 0)
        return self._found.weigh(mask & self._told) / self._total

    def _sitting(self, sitting: NumberRange) -> float:
        if sitting not in self._covered:
            found = self._found.postings.items()
            mask = sum(self._found.bits[term] for term, numbers in found if _has_some(numbers, sitting))
            self._covered[sitting] = self._found.weigh(mask & self._told)
        return self._covered[sitting]

    def _speaker(self, name: str) -> float:
        if name not in self._named:
            self._named[name] = not self._query.words.isdisjoint(plain_words(name))
        return float(self._named[name])

    def _date(self, at: float, zone: tzinfo | None) -> float:
        day = datetime.fromtimestamp(at, zone)
        has_month = day.month in self._query.months
        return float(has_month) + float(has_month and day.day in self._query.days)


def _times(traits: int) -> float:
    return 1.0 if traits & _MUCH_TIME else 0.5 if traits & _TIME else 0.0


def _has_some(numbers: list[int], span: NumberRange) -> bool:
    """Return whether one of the sorted numbers is in the span."""
    at = bisect_left(numbers, span.first)
    return at < len(numbers) and numbers[at] <= span.last
