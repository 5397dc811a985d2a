"""Logging: records are captured where they are made and written by a thread of their own.

A caller that logs never waits for the stream: the queue is bounded, and records that do not fit are counted
and dropped.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import msgspec

from talaria.core.extensions import CODE_OWNERS
from talaria.core.ids import SessionId, TurnId
from talaria.core.program import spoken_afar
from talaria.core.settings import Mark
from talaria.core.text import DIRECTION_MARKS, MISLEADING, NOT_IN_LINES, escape_match

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


# -- `[log]`: what is written to stderr -------------------------------------------------------------------


class LogSettings(msgspec.Struct, frozen=True):
    """`auto` is text on a terminal and JSON lines otherwise."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Mark.LIVE] = "info"
    format: Literal["auto", "json", "text"] = "auto"


# -- a log line: the values that are kept of a record, and their text without secrets or control ----------
# Order matters: secrets are replaced in the raw text, before it is cut (a cut could leave half a secret)
# and before it is escaped (an escape could hide a secret from the comparison).


Scalar = str | int | float | bool | None
Redact = Callable[[str], str]

_MAX_TEXT = 8 << 10
_MAX_QUEUED = 64 << 10  # the first cut, made when a record is queued; redaction comes before the second
_UNPRINTABLE = re.compile(f"[{NOT_IN_LINES}{MISLEADING}{DIRECTION_MARKS}]")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_turn: ContextVar[Mapping[str, Scalar]] = ContextVar("talaria_turn")
_plugin: ContextVar[str] = ContextVar("talaria_plugin", default="")


def log_turn(turn_id: TurnId, session_id: SessionId) -> None:
    """Add these ids to every record that the current task, and each task that it starts, logs from now on."""
    _turn.set({"turn_id": turn_id, "session_id": session_id})


@contextmanager
def log_plugin(name: str) -> Iterator[None]:
    """Add the name of the plug-in to every record that is logged inside the block, whoever logs it."""
    token = _plugin.set(name)
    try:
        yield
    finally:
        _plugin.reset(token)


class Line(msgspec.Struct, frozen=True):
    """A record as it waits in the queue. It holds text and scalars only, so that it cannot change there."""

    created: float
    level: str
    logger: str
    message: str
    fields: Mapping[str, Scalar] = {}
    exception: str = ""


def capture(record: logging.LogRecord) -> Line:
    """Return the record's present values. Called on the thread that logs; never raises."""
    fields = dict(_turn.get({}))
    if CODE_OWNERS and (plugin := _plugin.get() or CODE_OWNERS.find(record.pathname)):
        fields["plugin"] = plugin
    for name, value in record.__dict__.items():
        if name not in _STANDARD:
            fields[name] = _scalar(value)
    try:
        message = record.getMessage()
    except Exception as error:  # the arguments do not fit the text: log what can be logged
        message = f"{_scalar(record.msg)} [bad log arguments: {type(error).__name__}]"
    exception = []
    if record.exc_info and record.exc_info[0] is not None:
        exception.append("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
    elif record.exc_text:
        exception.append(record.exc_text)
    if record.stack_info:
        exception.append(record.stack_info)
    return Line(
        record.created,
        record.levelname.lower(),
        record.name,
        message[:_MAX_QUEUED],
        fields,
        "\n".join(exception)[-_MAX_QUEUED:],
    )


def as_json(line: Line, redact: Redact) -> str:
    """Return one line of ASCII: JSON's own escapes leave no control character in it."""
    moment = datetime.fromtimestamp(line.created, UTC).isoformat(timespec="milliseconds")
    written: dict[str, Scalar] = {
        "ts": moment.replace("+00:00", "Z"),
        "level": line.level,
        "logger": _without_surrogates(redact(line.logger)),
        "message": _without_surrogates(_cut_end(spoken_afar(redact(line.message)))),
    }
    for name, value in line.fields.items():
        key = _without_surrogates(redact(name))
        written[f"{key}_" if key in written else key] = _written(value, redact)
    if line.exception:
        written["exception"] = _without_surrogates(_cut_start(redact(line.exception)))
    return json.dumps(written, allow_nan=False)


def as_text(line: Line, redact: Redact) -> str:
    """Return text for a terminal: local time, visible escapes, a traceback on lines of its own."""
    moment = time.strftime("%H:%M:%S", time.localtime(line.created))
    message = escape(_cut_end(spoken_afar(redact(line.message))))
    head = f"{moment} {line.level:<7} {escape(redact(line.logger))}: {message}"
    fields = "".join(
        f" {escape(redact(name))}={escape(str(_written(value, redact)))}"
        for name, value in line.fields.items()
    )
    rows = _cut_start(redact(line.exception)).split("\n") if line.exception else ()
    return head + fields + "".join("\n  " + escape(row) for row in rows)


def escape(text: str) -> str:
    """Make control characters, line breaks and direction marks visible: text cannot forge log lines."""
    return _UNPRINTABLE.sub(escape_match, text)


def _without_surrogates(text: str) -> str:
    """Escape lone surrogates, which strict JSON readers refuse."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cut_end(text: str) -> str:
    more = len(text) - _MAX_TEXT
    return text if more <= 0 else f"{text[:_MAX_TEXT]}… ({more} more characters)"


def _cut_start(text: str) -> str:
    """Cut a traceback, whose end says the most."""
    more = len(text) - _MAX_TEXT
    return text if more <= 0 else f"({more} characters before) …{text[-_MAX_TEXT:]}"


def _written(value: Scalar, redact: Redact) -> Scalar:
    return _without_surrogates(_cut_end(redact(value))) if isinstance(value, str) else value


def _scalar(value: object) -> Scalar:
    """Return the value itself if JSON has it (neither NaN nor infinity), else its text."""
    if value is None or type(value) in (bool, int):
        return value  # type: ignore[return-value]  # narrowed by exact type: an IntEnum is written by name
    if type(value) is float:
        return value if value - value == 0.0 else str(value)
    try:
        return str(value)[:_MAX_QUEUED]
    except Exception:  # a broken __str__ must not break the code that logs
        return f"<unprintable {type(value).__name__}>"


# -- logging: records are captured where they are made and written by a thread of their own ---------------


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
