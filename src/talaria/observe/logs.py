"""Logging: records are captured where they are made and written by a thread of their own.

Whoever logs never waits for the stream: the queue is bounded, and what does not fit is counted, not kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TextIO

from talaria.core.redaction import Redactor
from talaria.observe.context import current_fields
from talaria.observe.lines import Line, as_json, as_text, capture
from talaria.observe.settings import LogSettings

QUEUE_LIMIT = 4096
_OURS = "talaria"
_SILENT = ("uvicorn.access",)  # the gateway writes its own line per request
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(
    settings: LogSettings, redactor: Redactor, stream: TextIO, *, queue_limit: int = QUEUE_LIMIT
) -> LogControl:
    """Send all logging of this process to `stream`, until the control is closed.

    Our own loggers follow `settings.level`; other libraries are heard from warnings up.
    """
    is_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())
    control = LogControl(_Sink(stream, redactor, is_json=is_json), queue_limit)
    control.open(_LEVELS[settings.level])
    return control


class LogControl:
    """The running log. `close` writes what is queued and leaves logging as it was found."""

    def __init__(self, sink: _Sink, queue_limit: int) -> None:
        self._sink = sink
        self._door = _Door(queue_limit)
        self._listener = _Listener(self._door, sink)
        self._before: _Before | None = None

    def open(self, level: int) -> None:
        root, ours = logging.getLogger(), logging.getLogger(_OURS)
        self._before = _Before(root, ours)
        root.handlers[:] = [self._door]
        self._hear(level)
        for name in _SILENT:
            logging.getLogger(name).disabled = True
        self._listener.start()

    def _hear(self, level: int) -> None:
        logging.getLogger().setLevel(max(level, logging.WARNING))
        logging.getLogger(_OURS).setLevel(level)

    def change_level(self, settings: LogSettings) -> None:
        """Hear more or less from now on."""
        if self._before is not None:
            self._hear(_LEVELS[settings.level])

    @property
    def dropped(self) -> int:
        """Records that were not written, because the queue was full or the stream broken."""
        return self._door.dropped + self._sink.lost

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Keep further secrets out, from the next line written on; also from those already queued."""
        self._sink.redactor = self._sink.redactor.with_secrets(secrets)

    def flush(self) -> None:
        """Wait until everything logged so far is written."""
        if self._before is None:
            return
        written = threading.Event()
        self._door.queue.put_nowait(written)
        written.wait()

    def close(self) -> None:
        """Closing twice is closing once."""
        if self._before is None:
            return
        self._before.restore(self._door)
        self._before = None
        self._listener.stop()
        self._listener.report_drops()

    def __enter__(self) -> LogControl:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Before:
    """How logging was set up before us."""

    def __init__(self, root: logging.Logger, ours: logging.Logger) -> None:
        self._handlers = tuple(root.handlers)
        self._levels = ((root, root.level), (ours, ours.level))
        self._disabled = tuple((name, logging.getLogger(name).disabled) for name in _SILENT)

    def restore(self, ours: logging.Handler) -> None:
        """Handlers that others added since then stay."""
        root = logging.getLogger()
        root.removeHandler(ours)
        for handler in self._handlers:
            root.addHandler(handler)
        for logger, level in self._levels:
            logger.setLevel(level)
        for name, was_disabled in self._disabled:
            logging.getLogger(name).disabled = was_disabled


class _Door(QueueHandler):
    """The caller's side: a record becomes a line of plain values and is queued, or counted as dropped."""

    queue: SimpleQueue[Any]

    def __init__(self, limit: int) -> None:
        super().__init__(SimpleQueue())
        self._limit = limit
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> Line:
        return capture(record, current_fields())

    def emit(self, record: logging.LogRecord) -> None:
        if self.queue.qsize() >= self._limit:
            self.dropped += 1  # under the handler's lock, which `handle` holds
        else:
            self.queue.put_nowait(self.prepare(record))


class _Listener(QueueListener):
    """The thread's side."""

    def __init__(self, door: _Door, sink: _Sink) -> None:
        super().__init__(door.queue)
        self._door = door
        self._sink = sink
        self._reported = 0

    def handle(self, record: Any) -> None:
        if isinstance(record, threading.Event):
            record.set()
            return
        self._sink.write(record)
        if self._door.queue.empty():
            self.report_drops()

    def report_drops(self) -> None:
        """Once per episode: called when the queue has been emptied."""
        dropped = self._door.dropped
        if dropped == self._reported:
            return
        text = f"{dropped - self._reported} log records were dropped: more came than could be written"
        self._sink.write(Line(time.time(), "warning", __name__, text, {"dropped": dropped}))
        self._reported = dropped


class _Sink:
    """Writes lines. A broken stream costs lines, never the thread."""

    def __init__(self, stream: TextIO, redactor: Redactor, *, is_json: bool) -> None:
        self._stream = stream
        self._format = as_json if is_json else as_text
        self.redactor = redactor
        self.lost = 0

    def write(self, line: Line) -> None:
        try:
            self._stream.write(self._format(line, self.redactor) + "\n")
            self._stream.flush()
        except Exception:  # the last boundary: there is no log to tell it to
            self.lost += 1
