"""Logging: records are captured where they are made and written by a thread of their own.

A caller that logs never waits for the stream: the queue is bounded, and records that do not fit are counted
and dropped.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, TextIO

from talaria.observe.lines import Line, Redact, as_json, as_text, capture
from talaria.observe.settings import LogSettings

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

QUEUE_LIMIT = 4096
AUDIT = "talaria.audit"
_OURS = "talaria"
_log = logging.getLogger("talaria.crash")
_SILENCED = "uvicorn.access"  # the gateway counts requests itself


def configure(
    settings: LogSettings,
    redact: Redact,
    stream: TextIO,
    *,
    audit: TextIO | None = None,
    queue_limit: int = QUEUE_LIMIT,
) -> LogControl:
    """Send all logging of this process to `stream` until the returned control is closed.

    Audit lines are also written to `audit`, as JSON. They have their own queue and thread, so other records
    cannot push them out.

    `redact` takes the secrets out of every text that is written. Talaria's loggers follow `settings.level`;
    other libraries log from warnings up. Failures of threads and destructors, which Python writes to stderr,
    are logged too.
    """
    is_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())
    writer = _QueuedWriter(stream, redact, queue_limit, is_json=is_json)
    audit_writer = _QueuedWriter(audit, redact, queue_limit, is_json=True) if audit is not None else None
    return LogControl(writer, settings, audit_writer)


def write_queued(seconds: float) -> None:
    """Wait up to `seconds` until the records of this process are written, before it leaves at once."""
    for handler in (*logging.getLogger().handlers, *logging.getLogger(AUDIT).handlers):
        if isinstance(handler, _QueuedWriter):
            handler.drain(seconds)


class LogControl:
    """The running log. `close` writes queued records and restores the logging setup from before."""

    def __init__(
        self, writer: _QueuedWriter, settings: LogSettings, audit: _QueuedWriter | None = None
    ) -> None:
        self._writer = writer
        self._audit = audit
        if audit is not None:
            logging.getLogger(AUDIT).addHandler(audit)
        self._is_open = True
        self._root, self._ours = logging.getLogger(), logging.getLogger(_OURS)
        self._silenced = logging.getLogger(_SILENCED)
        self._before = (
            tuple(self._root.handlers),
            self._root.level,
            self._ours.level,
            self._silenced.disabled,
        )
        self._root.handlers[:] = [writer]
        self._hooks = threading.excepthook, sys.unraisablehook
        # They would write to stderr, past the redaction.
        threading.excepthook, sys.unraisablehook = _log_thread_failure, _log_unraisable
        self._silenced.disabled = True
        self.change_level(settings)

    def change_level(self, settings: LogSettings) -> None:
        if self._is_open:
            level = logging.getLevelNamesMapping()[settings.level.upper()]
            self._ours.setLevel(level)
            self._root.setLevel(max(level, logging.WARNING))

    @property
    def dropped(self) -> int:
        """The number of records that were not written: the queue was full or the stream broken."""
        return self._writer.dropped + self._writer.lost

    def flush(self) -> None:
        """Wait until all records that were logged before this call are written."""
        if self._is_open:
            for writer in filter(None, (self._writer, self._audit)):
                writer.drain()

    def close(self) -> None:
        """Write queued records and stop. Handlers that others added meanwhile stay. May be called again."""
        if not self._is_open:
            return
        self._is_open = False
        handlers, root_level, our_level, was_disabled = self._before
        threading.excepthook, sys.unraisablehook = self._hooks
        self._root.removeHandler(self._writer)
        for handler in handlers:
            self._root.addHandler(handler)
        self._root.setLevel(root_level)
        self._ours.setLevel(our_level)
        self._silenced.disabled = was_disabled
        self._writer.stop()
        if self._audit is not None:
            logging.getLogger(AUDIT).removeHandler(self._audit)
            self._audit.stop()

    def __enter__(self) -> LogControl:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _log_thread_failure(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit and args.exc_value is not None:
        name = args.thread.name if args.thread else "unknown"
        _log.error("the thread %s failed", name, exc_info=args.exc_value)


def _log_unraisable(args: UnraisableHookArgs) -> None:
    if args.exc_value is not None:
        _log.error("%s", args.err_msg or "an exception was ignored", exc_info=args.exc_value)


class _QueuedWriter(logging.Handler):
    """Captures records on the caller's thread, writes them on its own. A broken stream costs lines only."""

    def __init__(self, stream: TextIO, redact: Redact, queue_limit: int, *, is_json: bool) -> None:
        super().__init__()
        self._redact = redact
        self.dropped = 0  # records that met a full queue
        self.lost = 0  # records that the stream did not take
        self._stream = stream
        self._format = as_json if is_json else as_text
        self._limit = queue_limit
        self._queue: SimpleQueue[Line | threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() >= self._limit:
            self.dropped += 1  # safe: `handle` holds the handler's lock
        else:
            self._queue.put_nowait(capture(record))

    # Not `flush` and `close`: `logging.shutdown` calls those at exit, when the thread may be gone.
    def drain(self, seconds: float | None = None) -> None:
        written = threading.Event()
        self._queue.put_nowait(written)
        written.wait(seconds)

    def stop(self) -> None:
        self._queue.put_nowait(None)
        self._thread.join()

    def _run(self) -> None:
        reported = 0
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
            elif item is not None:
                self._write(item)
            if self.dropped != reported and self._queue.empty():
                more, reported = self.dropped - reported, self.dropped
                text = f"{more} log records were dropped: more came than could be written"
                self._write(Line(time.time(), "warning", __name__, text, {"dropped": reported}))
            if item is None:
                return

    def _write(self, line: Line) -> None:
        try:
            self._stream.write(self._format(line, self._redact) + "\n")
            self._stream.flush()
        except Exception:  # the last boundary: no log is left to report it to
            self.lost += 1
