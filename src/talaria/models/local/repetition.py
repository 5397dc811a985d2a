"""The end of an answer that repeats itself: a small model may say the same lines up to its token limit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from talaria.core.models import CallCut, ModelDelta, TextDelta

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
