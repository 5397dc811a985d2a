"""Keeping the keyboard from writing into the screen while a turn is drawn."""

from __future__ import annotations

import termios
from collections.abc import Iterator
from contextlib import contextmanager

_LOCAL_FLAGS = 3


@contextmanager
def quiet_keyboard(descriptor: int) -> Iterator[None]:
    """No echo until the end. Ctrl-C stays a signal, and what is typed meanwhile waits for the prompt, even
    across a Ctrl-C, which usually throws it away."""
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        yield
        return
    quiet = list(before)
    quiet[_LOCAL_FLAGS] = before[_LOCAL_FLAGS] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
