"""What a model sees of a long result: its head and its tail, and where the rest is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from talaria.core.errors import ToolError
from talaria.core.units import format_size

_TAIL_SHARE = 4
_LEAST_BYTES = 64


@dataclass(frozen=True, slots=True)
class Cut:
    """The ends of a long text. `next_line` is the first line that is not whole in `head`, `lines` how many
    there are, `size` how many bytes."""

    head: str
    tail: str
    next_line: int
    lines: int
    size: int


def cut(text: str, max_bytes: int) -> Cut | None:
    """The head and the tail of `text`, together at most `max_bytes` of UTF-8; None when it fits.

    Cuts stand at line ends where there is one not too far away, and never inside a character.
    """
    data = text.encode()
    if len(data) <= max_bytes:
        return None
    room = max(max_bytes, _LEAST_BYTES)
    tail_room = room // _TAIL_SHARE
    head = data[: room - tail_room]
    at = head.rfind(b"\n") + 1
    if at > len(head) // 2:
        head = head[:at]
    tail = data[-tail_room:]
    at = tail.find(b"\n") + 1
    if 0 < at < len(tail) // 2:
        tail = tail[at:]
    # `head` may end, and `tail` may begin, inside a character: what is left of it is dropped.
    return Cut(
        head=head.decode(errors="ignore"),
        tail=tail.decode(errors="ignore"),
        next_line=head.count(b"\n") + 1,
        lines=data.count(b"\n") + (not data.endswith(b"\n")),
        size=len(data),
    )


def cap_result(text: str, max_bytes: int, save: Callable[[str], str] | None) -> str:
    """`text`, or when it is longer than `max_bytes` its ends around a note that says where all of it is.

    `save` keeps the whole text and answers with its path; None when the model could not read it anyway.
    """
    if len(text.encode()) <= max_bytes:
        return text
    path = _saved(text, save)
    note_room = 300 + len(path.encode())
    ends = cut(text, max_bytes - note_room)
    assert ends is not None
    return f"{_ended(ends.head)}{_note(ends, path)}\n{ends.tail}"


def _saved(text: str, save: Callable[[str], str] | None) -> str:
    if save is None:
        return ""
    try:
        return save(text)
    except ToolError:
        return ""  # a full disk costs the middle of this result, not the result


def _note(ends: Cut, path: str) -> str:
    size = f"{format_size(ends.size)} in {ends.lines} {'line' if ends.lines == 1 else 'lines'}"
    if not path:
        return f"[The middle was left out. The whole result had {size} and was not kept.]"
    return (
        f"[The middle was left out. The whole result has {size} and is in {path}: "
        f'read_file("{path}", offset={ends.next_line}) goes on from here.]'
    )


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else text + "\n"
