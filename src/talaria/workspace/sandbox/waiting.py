"""Finding a program that waits for someone to type on its terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_IS_X86 = os.uname().machine == "x86_64"
_READ = {0, 19} if _IS_X86 else {63, 65}  # read, readv
# A program that waits for several things at once; only a prompt tells that the terminal is one of them.
_POLL = {7, 23, 232, 270, 271, 281, 441} if _IS_X86 else {22, 72, 73, 441}
_MOST = 512


def find_reader(pid: int, *, has_prompt: bool) -> str | None:
    """Return the name of a process below `pid` that waits for input of its terminal; None if none is known
    to. `has_prompt` says that the last line of the output was not ended, as after a question. Blocks."""
    for process in _descendants(pid):
        with suppress(OSError, ValueError):
            words = Path(f"/proc/{process}/syscall").read_text().split()
            if not words[0].isdigit():
                continue  # it is running
            call, first = int(words[0]), int(words[1], 16)
            is_asking = call in _READ and _is_terminal(process, first)
            if is_asking or (has_prompt and call in _POLL and _is_terminal(process, 0)):
                return Path(f"/proc/{process}/comm").read_text().strip() or None
    return None


def _is_terminal(process: int, fd: int) -> bool:
    target = os.readlink(f"/proc/{process}/fd/{fd}")  # noqa: PTH115
    return target.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))


def _descendants(pid: int) -> Iterator[int]:
    pending, seen = [pid], 0
    while pending and seen < _MOST:
        parent = pending.pop()
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                children = [int(each) for each in (task / "children").read_text().split()]
                seen += len(children)
                pending += children
                yield from children
