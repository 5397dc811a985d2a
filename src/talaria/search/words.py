"""The words of a text as the index keeps them: in lower case, without endings, without stop words.

A text in Chinese, Japanese, Korean or another script without spaces becomes pairs of neighbouring characters.
Pure. Text and query go through the same functions, so a rough rule does no harm as long as it is the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from enum import IntFlag
from functools import lru_cache

_STOPPED = (
    "a about above after again all also am an and any are as at be because been before being below "
    "between both but by can could did do does doing down during each few for from further get got had "
    "has have having he her here hers herself him himself his how i if in into is it its itself just let "
    "me more most my myself no nor not now of off on once only or other our ours out over own same she "
    "should so some such than that the their theirs them then there these they this those through to too "
    "under until up us very was we were what when where which while who whom why will with would you your "
    "yours yourself don didn doesn isn wasn weren ve re ll im t s d m"
)
STOP_WORDS = frozenset(_STOPPED.split())
_MONTHS = "january february march april may june july august september october november december"
MONTHS = {name: number for number, name in enumerate(_MONTHS.split(), 1)}
_MOST_CHARS = 40  # of a word; the rest of a longer one, such as a key, does not count
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+(?:['’][^\W_{_UNSPACED}]+)?")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_VOWEL = re.compile("[aeiouy]")
_TIME_WORDS = (
    "yesterday today tonight tomorrow ago last next week weeks weekend month months year years day "
    "days since recently monday tuesday wednesday thursday friday saturday sunday"
)
_TIMES = frozenset(_TIME_WORDS.split()) | frozenset(MONTHS)


# Forms that no rule finds: the first of each line stands for the others.
_FORMS = """
go went gone goes; buy bought; make made; take took taken; see saw seen; give gave given; find found
think thought; tell told; feel felt; leave left; meet met; run ran; write wrote written; win won; lose lost
teach taught; bring brought; begin began begun; choose chose chosen; come came; draw drew drawn
drive drove driven; eat ate eaten; fall fell fallen; fly flew flown; grow grew grown; hear heard; hold held
keep kept; know knew known; pay paid; ride rode ridden; say said; sell sold; send sent; sing sang sung
sit sat; sleep slept; speak spoke spoken; spend spent; stand stood; swim swam swum
understand understood; wear wore worn; build built; catch caught; break broke broken; child children
person people; woman women; man men; life lives; foot feet; mouse mice
"""
_IRREGULAR = {
    form: forms.split()[0]
    for line in _FORMS.splitlines()
    for forms in line.split(";")
    for form in forms.split()
}


def terms(text: str) -> list[str]:
    """Return the terms of a text, in order."""
    return _terms(_words(text))


def analyse(text: str) -> tuple[list[str], Traits]:
    """Return the terms and the traits of a text."""
    words = list(_words(text))
    return _terms(words), _traits(text, words)


def plain_words(text: str) -> list[str]:
    """Return the words of a text as they are written, in lower case."""
    return list(_words(text))


def _terms(words: Iterable[str]) -> list[str]:
    found: list[str] = []
    for word in words:
        if word not in STOP_WORDS:
            if word.isascii():
                found.append(stem(word))
            else:
                found += _terms_of(word)
    return found


def _words(text: str) -> Iterator[str]:
    if not text.isascii():
        # Accents do not count, and full-width letters are letters.
        text = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))
    for found in _WORD.findall(text.lower()):
        word = found.replace("’", "'").partition("'")[0]
        yield word if ord(word[0]) >= 0xE00 else word[:_MOST_CHARS]


def _terms_of(word: str) -> tuple[str, ...]:
    if word.isascii():
        return (stem(word),)
    if not _WORD.match(word) or ord(word[0]) < 0xE00:
        return (word,)
    # The last character alone, so that a search for one character finds it wherever it stands.
    return (*(word[at : at + 2] for at in range(len(word) - 1)), word[-1])


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """Return an English word without the commonest endings: plural, -ing, -ed, -ly."""
    word = _IRREGULAR.get(word, word)
    if len(word) < 4:
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith("sses") or (word.endswith("es") and len(word) > 4 and word[-3] in "sxzh"):
        word = word[:-2]
    elif word.endswith("s") and word[-2] not in "su":
        word = word[:-1]
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and _VOWEL.search(rest):
            is_doubled = rest[-1] == rest[-2] and rest[-1] not in "lsz"
            word = rest[:-1] if is_doubled else rest
            break
    else:
        if word.endswith("ly") and len(word) > 5:
            word = word[:-2]
    if word.endswith("e") and len(word) > 3:
        word = word[:-1]
    return word[:-1] + "i" if word.endswith("y") and len(word) > 2 else word


def placed_terms(text: str) -> Iterator[tuple[str, int]]:
    """Yield each term and where it stands in the text."""
    for found in _WORD.finditer(text.lower()):
        word = found.group().replace("’", "'").partition("'")[0]
        if word not in STOP_WORDS:
            yield from ((term, found.start() + at) for at, term in enumerate(_terms_of(word)))


class Traits(IntFlag):
    """Properties of a text beside its words: it asks, it tells of times."""

    ASKS = 1
    IS_QUESTION = 2  # it ends with a question
    TIME = 4
    MUCH_TIME = 8


def _traits(text: str, words: list[str]) -> Traits:
    found = 0
    if "?" in text or "？" in text:
        found |= Traits.ASKS.value
        if text.rstrip().endswith(("?", "？")):
            found |= Traits.IS_QUESTION.value
    if times := sum(word in _TIMES or word.isdigit() for word in words):
        found |= Traits.TIME.value | (Traits.MUCH_TIME.value if times > 1 else 0)
    return Traits(found)
