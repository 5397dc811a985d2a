"""The words of a text as the index keeps them: in lower case, without endings, without stop words.

A text in Chinese, Japanese, Korean or another script without spaces becomes pairs of neighbouring characters.
Pure. Text and query go through the same functions, so a rough rule does no harm as long as it is the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from enum import IntFlag
from functools import lru_cache

from talaria.core.entries import Announcement, Entry, Note
from talaria.core.messages import (
    AssistantMessage,
    File,
    SystemMessage,
    ToolResults,
    UserMessage,
    spoken_part,
)
from talaria.core.tools import inner_call

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


# -- excerpts: the part of a text around the words that a query looks for ---------------------------------
# Pure.


EXCERPT_CHARS = 240
_MOST_EXCERPTED = 64 << 10  # of a text that are looked through


def excerpt(text: str, wanted: Collection[str], width: int = EXCERPT_CHARS) -> str:
    """Return about `width` characters of the text in one line, where the most of the wanted terms stand."""
    places = [(at, term) for term, at in placed_terms(text[:_MOST_EXCERPTED]) if term in wanted]
    best, most = 0, 0
    for index, (at, _) in enumerate(places):
        near = {term for place, term in places[index : index + 20] if place < at + width * 3 // 4}
        if len(near) > most:
            best, most = at, len(near)
    start = max(0, min(best - width // 5, len(text) - width))
    if start:
        start = text.find(" ", start, start + 20) + 1 or start
    shown = " ".join(text[start : start + width].split())
    return f"{'… ' if start else ''}{shown}{' …' if start + width < len(text) else ''}"


# -- the text of an entry: who speaks, and what is said ---------------------------------------------------
# Pure.


RESULT_CHARS = 4096  # of each result, and of the arguments of a call, that are indexed
_MESSAGE_CHARS = 256 << 10
# Searches repeat what the log has in its place, so they would only find themselves.
_SEARCHES = frozenset({"recall_search", "recall_describe", "recall_expand", "session_search"})


def speaker_of(entry: Entry) -> str:
    """Return the name of a sender, or the kind of the entry, such as `assistant`; for results the names of
    their tools."""
    match entry.body:
        case UserMessage(name=name):
            return name or "user"
        case ToolResults(results=results):
            return ", ".join(dict.fromkeys(result.name for result in results))
        case body:
            return str(body.__struct_config__.tag)


def full_text(entry: Entry) -> str:
    """Return everything that the entry says, as text; empty for an entry that says nothing."""
    return "\n".join(_pieces(entry, None))


def indexed_text(entry: Entry) -> str:
    """Return the text that is indexed: long results and arguments are cut, and searches are left out."""
    return "\n".join(_pieces(entry, RESULT_CHARS))[:_MESSAGE_CHARS]


def _pieces(entry: Entry, cap: int | None) -> Iterator[str]:
    match entry.body:
        case UserMessage(parts=parts):
            for part in parts:
                yield spoken_part(part)
                if isinstance(part, File) and part.text:
                    yield part.text
        case AssistantMessage() as answer:
            if cap is None:
                yield from (f"[thinking] {each.text}" for each in answer.reasoning if each.text)
            if answer.text:
                yield answer.text
            for call in map(inner_call, answer.tool_calls):
                if cap is None or call.name not in _SEARCHES:
                    yield f"[call] {call.name} {call.arguments[:cap]}"
        case ToolResults(results=results):
            yield from (each.text[:cap] for each in results if cap is None or each.name not in _SEARCHES)
        case Note(text=text) | SystemMessage(text=text) | Announcement(text=text):
            yield text
