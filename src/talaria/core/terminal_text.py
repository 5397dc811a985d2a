"""Plain text out of what programs write for a terminal: without escape sequences and control characters."""

from __future__ import annotations

import re

# Sequences by their kind: control (colours, cursor), strings (titles, links, clipboard), all others.
_SEQUENCE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"
    rb"|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)"
    rb"|\x1b[PX^_][^\x1b]*+\x1b\\"
    rb"|\x1b(?![\]PX^_\[])[ -/]*[0-~]"
)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*+\x1b?|[PX^_][^\x1b]*+\x1b?|[ -/]*)\Z")
_EIGHT_BIT = re.compile(rb"\xc2[\x80-\x9f]")  # the control characters above 127, as UTF-8
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\r"})
_MAX_CARRIED = 4096
_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\n])")
_BROKEN = re.compile("\ufffd{4,}")


class EscapeFilter:
    """Removes escape sequences and control characters from bytes that come in pieces.

    Tabs, line ends and carriage returns stay; `\\r\\n` becomes `\\n`. Text of any length between the pieces
    is passed on at once, but for the beginning of a sequence, of which a bounded part is kept back.
    """

    __slots__ = ("_carried",)

    def __init__(self) -> None:
        self._carried = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the plain bytes of the next piece."""
        data = self._carried + piece if self._carried else piece
        self._carried = b""
        if b"\x1b" in data:
            data = _SEQUENCE.sub(b"", data)
            unfinished = _UNFINISHED.search(data, max(0, len(data) - _MAX_CARRIED))
            if unfinished is not None:
                data, self._carried = data[: unfinished.start()], unfinished[0]
        if not self._carried and data.endswith((b"\r", b"\xc2")):
            data, self._carried = data[:-1], data[-1:]
        return _clean(data)

    def end(self) -> bytes:
        """Return what was kept back and turned out to be text."""
        data, self._carried = self._carried, b""
        return _clean(data)


def _clean(data: bytes) -> bytes:
    if b"\xc2" in data:
        data = _EIGHT_BIT.sub(b"", data)
    return data.translate(None, _CONTROLS).replace(b"\r\n", b"\n")


def readable(text: str) -> str:
    """Return decoded output as a reader of a terminal would see it: a line that a program wrote over (a
    progress bar) is shown as it was last, and a run of bytes that are no text by their number."""
    if "\r" in text:
        text = _OVERWRITTEN.sub("", text).replace("\r", "")
    if "\ufffd" in text:
        text = _BROKEN.sub(lambda found: f"[{len(found[0])} bytes that are no text]", text)
    return text
