"""`[limits]`: the most that one answer, turn, chat, caller and the whole process may use.

`LimitSettings` are the limits as they are configured. `Limits` holds the ones in force and counts what they
refused. Code reads `limits.now.KEY` where it enforces a limit, so a change of config.toml counts at once.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Annotated, Final, TypeVar

import msgspec

from talaria.core.units import Size, format_duration, write_size

Count = Annotated[int, msgspec.Meta(ge=1)]


class LimitSettings(msgspec.Struct, frozen=True):
    """The defaults are far above what ordinary use needs."""

    # For each answer of a model.
    answer_bytes: Size = Size(64 << 20)  # received, with the framing of the stream
    answer_text: Size = Size(8 << 20)  # text, reasoning and arguments together
    answer_pieces: Count = 500_000
    answer_calls: Count = 128
    call_arguments: Size = Size(4 << 20)
    answer_cpu: timedelta = timedelta(seconds=20)
    # For each turn.
    turn_tools: Count = 8  # calls side by side
    turn_children: timedelta = timedelta(minutes=2)  # that child processes of its tools run, together
    # For each chat.
    chat_queue: Count = 100  # messages that wait
    chat_files: Size = Size(2 << 30)
    chat_file_count: Count = 100_000  # folders count too
    reply_messages: Count = 20  # messages of a chat platform that one reply is split into
    # For each session.
    session_processes: Count = 8  # in the background
    # For callers of the HTTP server.
    connections: Count = 1000
    connections_per_address: Count = 400
    client_memory: Size = Size(256 << 20)  # request bodies, and responses that clients do not read
    body_values: Count = 100_000  # in one JSON body
    completion_messages: Count = 5000  # in one stateless chat completion
    event_listeners: Count = 100  # streams of all turns
    request_head: timedelta = timedelta(seconds=10)
    request_body: timedelta = timedelta(seconds=60)
    slow_reader: timedelta = timedelta(seconds=60)
    # For the process.
    tools: Count = 64  # calls side by side
    tool_threads: Count = 8
    children: Count = 8
    commands: Count = 16  # of shells, side by side
    processes: Count = 64  # in the background
    answer_memory: Size = Size(256 << 20)  # answers that are being received, together
    loop_lag: timedelta = timedelta(seconds=2)  # from here on new turns are refused
    memory: Size = Size(1 << 30)  # of the gateway's own process; from here on scheduled work waits


class LimitReading(msgspec.Struct, frozen=True):
    """A limit at a moment. `used` is None where only single uses are bounded."""

    limit: float
    used: float | None
    refused: int


class Limits:
    """The limits in force, how much of each is in use, and how often each refused something."""

    def __init__(self, settings: LimitSettings | None = None) -> None:
        self.now = settings or LimitSettings()
        self._refused: Counter[str] = Counter()
        self._used: dict[str, Callable[[], float]] = {}

    def change(self, settings: LimitSettings) -> None:
        """Apply other limits from now on. What is in use already stays."""
        self.now = settings

    def watch(self, key: str, used: Callable[[], float]) -> None:
        """Read the use of a limit with `used`. It must be quick and must not raise."""
        self._check(key)
        self._used[key] = used

    def refuse(self, key: str) -> str:
        """Count a refusal and return its hint: which limit it was, and how to raise it."""
        self._check(key)
        self._refused[key] += 1
        return f"The limit is limits.{key} = {self.show(key)} in config.toml; the operator can raise it."

    def show(self, key: str) -> str:
        """Return the value of a limit as config.toml has it."""
        value = getattr(self.now, key)
        if isinstance(value, timedelta):
            return f'"{format_duration(value)}"'
        if LimitSettings.__annotations__[key] == "Size":
            written = write_size(value)
            return f'"{written}"' if isinstance(written, str) else str(written)
        return str(value)

    def readings(self) -> dict[str, LimitReading]:
        readings = {}
        for key in LimitSettings.__struct_fields__:
            value = getattr(self.now, key)
            limit = value.total_seconds() if isinstance(value, timedelta) else float(value)
            used = self._used.get(key)
            readings[key] = LimitReading(limit, None if used is None else float(used()), self._refused[key])
        return readings

    def _check(self, key: str) -> None:
        if key not in LimitSettings.__struct_fields__:
            raise KeyError(key)


# -- a mapping with a bounded number of items, for what is worth remembering but can be found out again ---


K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """At most `most` items. Setting an item makes it the newest one, and drops the oldest if there are too
    many. Reading an item leaves the order; use `move_to_end` where reading counts as use."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


# -- how many values a JSON text has, without decoding it: decoding takes time for each value -------------


_COUNTED: Final = 1 << 20  # bytes that are looked at in one go
_CLOSELY_COUNTED: Final = 32 << 10
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)


def count_marks(body: bytes | bytearray) -> Iterator[int]:
    """Yield the number of commas and opening brackets in each slice of a body."""
    for start in range(0, len(body), _COUNTED):
        part = body[start : start + _COUNTED]
        yield part.count(b",") + part.count(b"[") + part.count(b"{")


def count_values(body: bytes | bytearray) -> Iterator[int]:
    """Yield the number of commas and opening brackets outside texts, for each slice of a body."""
    start, is_text = 0, False
    while start < len(body):
        part = body[start : start + _CLOSELY_COUNTED]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # the slice ends within an escape
            part = body[start : start + _CLOSELY_COUNTED + 1]
        start += len(part)
        pieces = _ESCAPE.sub(b"", part).split(b'"')
        outside = b"".join(pieces[is_text::2])
        is_text ^= len(pieces) % 2 == 0
        yield outside.count(b",") + outside.count(b"[") + outside.count(b"{")


def has_more_values(body: bytes, most: int) -> bool:
    """Return whether a JSON text has more than `most` values. Stops counting there."""
    if len(body) <= most:
        return False
    for count in (count_marks, count_values):
        seen = 0
        for more in count(body):
            seen += more
            if seen > most:
                break
        else:
            return False
    return True
