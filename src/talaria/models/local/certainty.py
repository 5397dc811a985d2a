"""Whether a tiny model is sure of its answer, by the probabilities that it gives its own words.

A tiny model states a wrong capital as fluently as a right one, but it finds the wrong name less probable. The
beginning of an answer is held back until it is judged:

- A number, or a name that the question does not have, carries the fact, so it must be probable. Several
  names may be right (William Shakespeare, Shakespeare), so a number must be more probable than a name.
- Another word may be one of several good ones, so only a very improbable one is a sign of guessing, and only
  in a short answer.
- A short answer that has no word of its own says nothing, and neither does a list that repeats an item.

Code is not judged: its names are free.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from talaria.core.specs import CallCut, ModelDelta, ScoredTextDelta, TextDelta

JUDGED_PIECES = 40  # tokens from the beginning of an answer
_MOST_JUDGED = 2_000  # characters
# docs/local-model.md tells with which questions these were chosen.
NUMBER_LIMIT = 0.5
NAME_LIMIT = 0.42
WORD_LIMIT = 0.12
_CODE = "`"
_QUOTES = tuple('"“„«‘')
_WORD = re.compile(r"\w+")
_MARKER = re.compile(r"\s*(?:\d+[.)]|[-*•])\s*\Z")  # of an item in a list
_ITEM = re.compile(r"^\s*(?:\d+[.)]|[-*•])\s*(.*\w)", re.MULTILINE)
_NUMBER = re.compile(
    r"\d|(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|fifty|hundred|thousand)\Z",
    re.IGNORECASE,
)


class HeldAnswer:
    """A sink that holds the beginning of an answer back, and passes it on when it is found sure.

    Call `end` after the answer. `is_unsure` tells whether the answer was kept back, all of it.
    """

    def __init__(self, question: str, sink: Callable[[ModelDelta], None]) -> None:
        self._known = frozenset(word.casefold() for word in _WORD.findall(question[:_MOST_JUDGED]))
        self._sink = sink
        self._held: list[TextDelta] = []
        self._is_judged = False
        self.is_unsure = False

    def __call__(self, delta: ModelDelta) -> None:
        if not isinstance(delta, TextDelta):
            self._sink(delta)
        elif self._is_judged:
            if not self.is_unsure:
                self._sink(delta)
        else:
            self._held.append(delta)
            if len(self._held) >= JUDGED_PIECES or _CODE in delta.text:
                self.end()

    def end(self) -> None:
        if self._is_judged:
            return
        self._is_judged = True
        is_short = len(self._held) < JUDGED_PIECES and not any(_CODE in held.text for held in self._held)
        self.is_unsure = is_unsure(self._held, self._known, is_short=is_short)
        held, self._held = self._held, []
        for delta in held if not self.is_unsure else ():
            self._sink(delta)


def is_unsure(pieces: Sequence[TextDelta], known: frozenset[str], *, is_short: bool) -> bool:
    """Return whether the model guesses. `known` are the words of the question, in lower case. `is_short`: the
    pieces are the whole answer. A piece without a probability is sure."""
    text, scores = "", list[float]()
    for piece in pieces:
        taken = piece.text[: _MOST_JUDGED - len(text)]
        probability = piece.probability if isinstance(piece, ScoredTextDelta) else 1.0
        text, scores = text + taken, scores + [probability] * len(taken)
    text = text.partition(_CODE)[0]
    has_own = False
    for word in _WORD.finditer(text):
        is_known = word[0].casefold() in known
        has_own = has_own or not is_known or word[0].isupper()
        probability, begins = min(scores[word.start() : word.end()]), _begins(text, word)
        is_number = _NUMBER.match(word[0]) is not None and not (begins and is_known)
        is_name = word[0][0].isupper() and not begins and not is_known
        if is_number or is_name:
            limit = NUMBER_LIMIT if is_number else NAME_LIMIT
            if probability < limit and not _is_marker(text, word):
                return True
        elif is_short and not is_known and probability < WORD_LIMIT:
            return True
    is_echo = is_short and not has_own and len(pieces) > 1
    items = [item.casefold() for item in _ITEM.findall(text)]
    return is_echo or len(items) > len(set(items))


def _is_marker(text: str, word: re.Match[str]) -> bool:
    """Return whether the word is the number of an item in a list."""
    return _MARKER.match(text[_line_start(text, word) : word.end() + 1]) is not None


def _begins(text: str, word: re.Match[str]) -> bool:
    """Return whether a sentence, an item of a list or a quotation begins with the word."""
    before = text[_line_start(text, word) : word.start()]
    opened = before.rstrip(" *")
    return not opened or opened[-1] in ".!?:¿¡" or before[-1:] in _QUOTES or _MARKER.match(before) is not None


def _line_start(text: str, word: re.Match[str]) -> int:
    return text.rfind("\n", 0, word.start()) + 1


# -- the end of an answer that repeats itself -------------------------------------------------------------


MOST_TIMES = 3
_SHORTEST = 12  # characters of a line or sentence that counts
_END = re.compile(r"\n|(?<=[.!?])\s")
_FENCE = "```"


class Repeats(Exception):
    """The answer has said the same line or sentence for the third time. Raised into the call, which ends."""


class RepetitionGuard:
    """A sink that passes everything on, and ends a call whose answer repeats itself. Code may repeat lines.

    `text` and `pieces` are the answer so far.
    """

    def __init__(self, sink: Callable[[ModelDelta], None]) -> None:
        self._sink = sink
        self._said = Counter[str]()
        self._unfinished = ""
        self._is_code = False
        self._has_ended = False
        self.text = ""
        self.pieces = 0

    def __call__(self, delta: ModelDelta) -> None:
        """Raises `Repeats`."""
        if self._has_ended and isinstance(delta, CallCut):
            return  # the guard itself has cut it
        self._sink(delta)
        if not isinstance(delta, TextDelta):
            return
        self.text += delta.text
        self.pieces += 1
        *ended, self._unfinished = _END.split(self._unfinished + delta.text)
        for passage in ended:
            if passage.lstrip().startswith(_FENCE):
                self._is_code = not self._is_code
            self._note(" ".join(passage.split()).casefold())

    def _note(self, passage: str) -> None:
        if self._is_code or len(passage) < _SHORTEST:
            return
        self._said[passage] += 1
        if self._said[passage] >= MOST_TIMES:
            self._has_ended = True
            raise Repeats
