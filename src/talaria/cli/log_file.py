"""The log files of a home: bounded, turned over while they are written, for their owner only."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from talaria.config.home import Home

if TYPE_CHECKING:
    from talaria.gateway import Gateway
    from talaria.observe.logs import LogControl

GATEWAY, CONSOLE = "gateway.log", "console.log"
LARGEST = 5 << 20
KEPT = 3  # older files beside the one that is written


class RotatingLog(io.TextIOBase):
    """Appends to a file; one that has grown too large becomes NAME.1, that one NAME.2, and so on."""

    def __init__(self, path: Path, largest: int = LARGEST, kept: int = KEPT) -> None:
        """Raises `OSError` when it cannot be written."""
        self._path = path
        self._largest = largest
        self._kept = kept
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._open()

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "replace")
        if self._size and self._size + len(data) > self._largest:
            self._turn_over()
        self._size += os.write(self._handle, data)
        return len(text)

    def close(self) -> None:
        if not self.closed:
            os.close(self._handle)
        super().close()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._handle = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._handle).st_size

    def _turn_over(self) -> None:
        os.close(self._handle)
        for number in range(self._kept - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                older(self._path, number).replace(older(self._path, number + 1))
        self._path.replace(older(self._path, 1))
        self._open()


class _Both(io.TextIOBase):
    """What is written goes to two places. One that fails does not keep it from the other."""

    def __init__(self, first: TextIO, second: RotatingLog) -> None:
        self._first = first
        self._second = second

    def write(self, text: str) -> int:
        try:
            self._first.write(text)
        finally:
            self._second.write(text)
        return len(text)

    def flush(self) -> None:
        self._first.flush()


def older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


@contextlib.contextmanager
def open_log(home: Home, beside: TextIO | None = None) -> Iterator[TextIO]:
    """The log of a gateway inside another command, or, `beside` its stderr, of one that runs for itself.
    A file that cannot be written is done without."""
    try:
        log = RotatingLog(home.logs / (CONSOLE if beside is None else GATEWAY))
    except OSError:
        with contextlib.nullcontext(beside) if beside else open(os.devnull, "w", encoding="utf-8") as stream:  # noqa: PTH123
            yield stream
        return
    with log:
        yield log if beside is None else _Both(beside, log)  # type: ignore[misc]  # a TextIO in all that is used


def follow(gateway: Gateway, log: LogControl) -> None:
    """Let a running log hear of the level and of the secrets that change."""
    gateway.reloader.add_secrets = log.add_secrets
    gateway.reloader.live.on(("log", "level"), tell=lambda new: log.change_level(new.log))
