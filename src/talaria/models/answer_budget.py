"""The budget of one answer: how much of everything it may bring, checked while it is read.

Answers are read on the event loop in slices of `SLICE_BYTES`. One JSON document cannot be cut, so its cost is
bounded before it is decoded. Measured on hostile shapes, msgspec and the copies of its input need 2 to 5 ns
for a byte, 40 ns for an escape, 20 ns for a value that is skipped and up to 1 µs for an object that is built.
`is_costly` and `check_shape` count these bytes, which is cheap, and refuse a document that would take more
than about 10 ms. No real answer comes near: it would have 2 MB of text, or 200,000 escapes, in one event.
"""

from __future__ import annotations

import msgspec

from talaria.core.errors import AnswerMemoryFull, AnswerTooLarge, ModelError
from talaria.core.limits import Limits
from talaria.core.problems import Action, Do
from talaria.core.slots import LoopShare
from talaria.core.units import write_size
from talaria.models.failures import ProviderErrors

SLICE_BYTES = 8 << 10
"""Hostile bytes cost up to 0.2 µs each, so a slice takes less than 2 ms."""
MAX_DOCUMENT_BYTES = 2 << 20
MAX_NAME = 256
MAX_ID = 32 << 10
"""Some proxies hide the signature of a thought in the id of a call."""
MAX_DETAIL_VALUES = 20_000

SMALL_DOCUMENT = 64 << 10
SMALL_SHAPE = 8 << 10
_MAX_COST = 10_000_000
_MAX_OBJECTS = 10_000
_MAX_VALUES = 100_000
_MAX_QUOTES = 100_000  # around texts that are told apart from the rest, in about 10 ms
_PIECE_BYTES = 72  # of memory for a kept text beside its characters
_CHECK_BYTES = 4 << 10
_LINES = 4  # that a piece has in a stream


def is_costly(data: bytes) -> bool:
    """Return whether decoding this JSON could hold the loop for more than about 10 ms."""
    size = len(data)
    if size <= SMALL_DOCUMENT:
        return False
    if size > MAX_DOCUMENT_BYTES:
        return True
    cost = 2 * size + 20 * (data.count(b",") + data.count(b"[") + data.count(b"{"))
    backslashes = data.count(b"\\")
    if cost + 40 * backslashes <= _MAX_COST:
        return False
    # Two of them are one escape. JSON within JSON, as in the arguments of a call, is full of those.
    return cost + 40 * (backslashes - data.count(b"\\\\")) > _MAX_COST


def _outside_texts(data: bytes) -> bytes:
    """Return the JSON without the content of its texts."""
    return b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


class AnswerMemory:
    """The bytes of all answers that are being received by this process, and their share of the loop."""

    __slots__ = ("held", "limits", "share")

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.held = 0
        self.share = LoopShare()
        self.limits.watch("answer_memory", lambda: self.held)


class AnswerBudget:
    """Counts what one answer brings. `close` gives its memory back, however the call ended.

    The reader adds to the counts, and gives every text that is kept to `keep`. `check` compares with the
    limits. `lines` are those of the stream, and `unread` the bytes that wait for the end of their event. A
    limit that is changed meanwhile counts for later answers.
    """

    def __init__(self, errors: ProviderErrors, memory: AnswerMemory | None = None) -> None:
        self._errors = errors
        self._memory = memory or AnswerMemory()
        self.share = self._memory.share
        self._limits = self._memory.limits
        self._now = self._limits.now
        self._kept: list[str] = []
        self.keep = self._kept.append
        self.received = self.pieces = self.lines = self.unread = self.check_at = self._text = self._calls = 0
        self.cpu = 0.0  # seconds
        self._held = self._reported = 0

    def text_bytes(self) -> int:
        """Return the bytes of text, thoughts and arguments so far."""
        if self._kept:
            self.count_texts(self._kept)
            self._kept.clear()
        return self._text

    def count_texts(self, texts: list[str]) -> None:
        """Count texts that are kept until the answer ends."""
        text = "".join(texts)
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        self._text += size
        self._held += size + _PIECE_BYTES * len(texts)

    def hold(self, size: int) -> None:
        """Count bytes that are kept but are no text of the answer."""
        self._held += size

    def keep_bytes(self, size: int) -> None:
        """Count a part that is kept as it came."""
        self._text += size
        self._held += size

    def add_call(self) -> None:
        """Count a tool call. Raises `AnswerTooLarge`."""
        self._calls += 1
        if self._calls > self._limits.now.answer_calls:
            raise self._over("answer_calls", f"has more than {self._limits.now.answer_calls} tool calls")

    def check(self) -> None:
        """Raises `AnswerTooLarge`, and `AnswerMemoryFull` if all answers together need too much memory.

        All that an answer brings is in bytes that it sent, so it is enough to look again at `check_at`.
        """
        self.check_at, now = self.received + _CHECK_BYTES, self._now
        if self.received > now.answer_bytes:
            raise self._over("answer_bytes", f"is longer than {write_size(now.answer_bytes)}")
        if self.pieces > now.answer_pieces or self.lines > _LINES * now.answer_pieces:
            raise self._over("answer_pieces", f"came in more than {now.answer_pieces} pieces")
        if self.text_bytes() > now.answer_text:
            raise self._over("answer_text", f"holds more than {write_size(now.answer_text)} of text")
        if self.cpu > (seconds := now.answer_cpu.total_seconds()):
            raise self._over("answer_cpu", f"took more than {seconds:g} seconds to read")
        if self._held + self.unread != self._reported:
            self._take_memory()

    def check_arguments(self, size: int) -> None:
        """Check the length of one call's arguments. Raises `AnswerTooLarge`."""
        if size > (limit := self._now.call_arguments):
            what = f"has a tool call with more than {write_size(limit)} of arguments"
            raise self._over("call_arguments", what)

    def check_name(self, name: str) -> None:
        """Check the name of a tool. Raises `AnswerTooLarge`."""
        if len(name) > MAX_NAME:
            raise self.refused(f"calls a tool with a name of {len(name)} characters; {MAX_NAME} are possible")

    def check_document(self, data: bytes) -> None:
        """Check one JSON document, before it is decoded. Raises `AnswerTooLarge`."""
        if is_costly(data):
            raise self.refused(f"has a single piece of {len(data)} bytes that would take too long to read")

    def check_shape(
        self, data: bytes | msgspec.Raw, max_objects: int = _MAX_OBJECTS, max_values: int = _MAX_VALUES
    ) -> None:
        """Check JSON whose objects are all built, before it is decoded. Raises `AnswerTooLarge`.

        Braces and commas within texts build nothing, and a long text has many of them.
        """
        if len(data) <= SMALL_SHAPE:
            return
        data = bytes(data)
        if data.count(b"{") <= max_objects and data.count(b",") <= max_values:
            return
        if data.count(b'"') - data.count(b'\\"') <= _MAX_QUOTES:
            data = _outside_texts(data)
        if data.count(b"{") > max_objects or data.count(b",") > max_values:
            raise self.refused("has a single piece with too many values")

    def close(self) -> None:
        """Give the memory back. The budget is of no use afterwards."""
        self._memory.held -= self._reported
        self._held = self._reported = 0

    def _take_memory(self) -> None:
        memory, more = self._memory, self._held + self.unread - self._reported
        limit = self._limits.now.answer_memory
        if more > 0 and memory.held + more > limit:
            raise AnswerMemoryFull(
                self._errors.say(
                    "was cut off: the answers that the gateway is receiving need more than "
                    f"{write_size(limit)} of memory together"
                ),
                f"Try again in a moment. {self._limits.refuse('answer_memory')}",
            )
        memory.held += more
        self._reported += more

    def _over(self, key: str, what: str) -> ModelError:
        return AnswerTooLarge(self._errors.say(f"was cut off: its answer {what}"), self._limits.refuse(key))

    def refused(self, what: str) -> ModelError:
        """Return the error for an answer over a bound that is not configurable."""
        action = Action(Do.USE_MODEL, "Choose another model")
        hint = f"{action}, and if it stays so, tell the operator of this provider."
        return AnswerTooLarge(self._errors.say(f"was cut off: its answer {what}"), hint, action=action)
