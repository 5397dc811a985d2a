"""Logs of a gateway inside another command: a file in the home, because the terminal is in use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TextIO

from talaria.config.home import Home

NAME = "console.log"
LARGEST = 5 << 20


@contextlib.contextmanager
def open_log(home: Home) -> Iterator[TextIO]:
    """Appends to `logs/console.log`, begun anew when it is large. Nowhere when it cannot be written."""
    with _open(home) as stream:
        yield stream


def _open(home: Home) -> TextIO:
    path = home.logs / NAME
    try:
        home.logs.mkdir(mode=0o700, exist_ok=True)
        if path.exists() and path.stat().st_size > LARGEST:
            path.replace(path.with_suffix(".log.1"))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(handle, "w", encoding="utf-8")
    except OSError:
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123
