"""A log line: the values that are kept of a record, and their text without secrets or control characters.

Order matters: secrets are replaced in the raw text, before it is cut (a cut could leave half a secret) and
before it is escaped (an escape could hide a secret from the comparison).
"""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

import msgspec

from talaria.core.code_owners import CODE_OWNERS
from talaria.core.ids import SessionId, TurnId
from talaria.core.program import spoken_afar
from talaria.core.text import DIRECTION_MARKS, MISLEADING, NOT_IN_LINES, escape_match

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
