"""Finding the matching lines of a text, also as a program of its own for a child process.

Only the standard library is used: `python -I -S matcher.py` starts in 15 ms and knows neither files nor
secrets. The program reads frames (4 bytes of length, then that many bytes): first the pattern, then one text
after another. It answers each frame with one line of JSON: `{"error": …}` or `{"hits": [[line, text], …]}`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import select
import sys
from contextlib import suppress
from typing import BinaryIO

SHOWN_CHARS = 200
_CPU_SECONDS = 20
_MEMORY_BYTES = 512 << 20

_ESCAPED = re.compile(r"\\[xuUN0-7]")  # a character by its number or name
_SEPARATORS = (b"\x1c", b"\x1d", b"\x1e", b"\x1f")

Hit = tuple[int, str]


def find_hits(pattern: re.Pattern[str], data: bytes, limit: int) -> list[Hit]:
    """Return the first `limit` matching lines with their numbers, each cut to the text around its match."""
    hits: list[Hit] = []
    for number, line in enumerate(data.decode(errors="replace").split("\n"), start=1):
        found = pattern.search(line)
        if found:
            hits.append((number, excerpt(line.rstrip("\r"), found.start())))
            if len(hits) == limit:
                break
    return hits


def compile_plain(text: str) -> re.Pattern[str] | None:
    """Return the pattern as `re` searches for it in plain data, which takes half the time; None if it might
    find something else there: letters of other scripts can be equal to plain ones."""
    if not text.isascii() or _ESCAPED.search(text):
        return None
    try:
        return re.compile(text, re.ASCII)
    except (re.error, ValueError):  # the pattern itself says how letters are compared
        return None


def is_plain(data: bytes) -> bool:
    """Return whether a class such as `\\s` means the same characters of the data in both ways."""
    return data.isascii() and not any(mark in data for mark in _SEPARATORS)


def excerpt(line: str, at: int) -> str:
    """Return `line`, or if it is long the part of it around `at`."""
    if len(line) <= SHOWN_CHARS:
        return line
    start = max(0, min(at - SHOWN_CHARS // 4, len(line) - SHOWN_CHARS))
    end = start + SHOWN_CHARS
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"


def _read_frame(source: BinaryIO) -> bytes | None:
    head = source.read(4)
    return source.read(int.from_bytes(head, "big")) if len(head) == 4 else None


def _answer(sink: BinaryIO, answer: dict[str, object]) -> None:
    sink.write(json.dumps(answer).encode() + b"\n")
    sink.flush()


def _serve(source: BinaryIO, sink: BinaryIO, limit: int) -> None:
    text = _read_frame(source) or b""
    try:
        pattern = re.compile(text.decode())
    except (re.error, RecursionError, OverflowError) as error:
        _answer(sink, {"error": str(error)})
        return
    _answer(sink, {"hits": []})
    plain = compile_plain(text.decode())
    while (data := _read_frame(source)) is not None:
        used = plain if plain is not None and is_plain(data) else pattern
        _answer(sink, {"hits": find_hits(used, data, limit)})


if __name__ == "__main__":
    # Bounds for a pattern that burns, even if its gateway is killed: SIGIO, whose default action is to end
    # the process, comes when the other end of stderr's pipe is closed.
    with suppress(OSError):  # not every system sends signals for pipes
        fcntl.fcntl(2, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([2], [], [], 0)[0]:
        sys.exit(1)  # the gateway is gone already
    os.nice(19)  # it yields to the gateway and to whatever else runs here
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    with suppress(OSError, ValueError):  # macOS refuses a limit below what is mapped already
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    _serve(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]))
