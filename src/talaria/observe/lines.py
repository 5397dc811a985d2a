"""One log line: what is kept of a record, and how it is written, without secrets or control characters.

Order matters: secrets are replaced in the raw text, before it is cut (a cut could leave half a secret) and
before it is escaped (an escape could hide one from the comparison).
"""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

Scalar = str | int | float | bool | None
Redact = Callable[[str], str]

LONGEST = 8 << 10
_LONGEST_RAW = 64 << 10  # what a queued line may hold; the rest of the cut is made after redaction
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class Line(msgspec.Struct, frozen=True):
    """A record as it waits in the queue: text and scalars only, so that nothing changes behind its back."""

    created: float
    level: str
    logger: str
    message: str
    fields: Mapping[str, Scalar] = {}
    exception: str = ""


def capture(record: logging.LogRecord, context: Mapping[str, str]) -> Line:
    """What a record says now, on the thread that says it. Never raises."""
    fields: dict[str, Scalar] = dict(context)
    for name, value in record.__dict__.items():
        if name not in _STANDARD:
            fields[name] = _scalar(value)
    return Line(
        record.created,
        record.levelname.lower(),
        record.name,
        _message(record)[:_LONGEST_RAW],
        fields,
        _exception(record)[-_LONGEST_RAW:],
    )


def as_json(line: Line, redact: Redact) -> str:
    """One line of ASCII: JSON's own escapes leave no control character, whatever was logged."""
    moment = datetime.fromtimestamp(line.created, UTC).isoformat(timespec="milliseconds")
    written: dict[str, Scalar] = {
        "ts": moment.replace("+00:00", "Z"),
        "level": line.level,
        "logger": _whole(redact(line.logger)),
        "message": _whole(_cut(redact(line.message))),
    }
    for name, value in line.fields.items():
        key = _whole(redact(name))
        written[f"{key}_" if key in written else key] = _written(value, redact)
    if line.exception:
        written["exception"] = _whole(_cut_front(redact(line.exception)))
    return json.dumps(written, allow_nan=False)


def as_text(line: Line, redact: Redact) -> str:
    """For a person at a terminal: local time, visible escapes, a traceback on lines of its own."""
    moment = time.strftime("%H:%M:%S", time.localtime(line.created))
    head = f"{moment} {line.level:<7} {escape(redact(line.logger))}: {escape(_cut(redact(line.message)))}"
    fields = "".join(
        f" {escape(redact(name))}={escape(str(_written(value, redact)))}"
        for name, value in line.fields.items()
    )
    trace = "".join(
        "\n  " + escape(row) for row in _cut_front(redact(line.exception)).split("\n") if line.exception
    )
    return head + fields + trace


def escape(text: str) -> str:
    """Control characters, line breaks and direction marks as visible text: a log cannot forge lines."""
    return _UNPRINTABLE.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    character = match[0]
    short = _SHORT_ESCAPES.get(character)
    if short is not None:
        return short
    return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"


def _whole(text: str) -> str:
    """Without lone surrogates, which strict JSON readers refuse."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST} more characters)"


def _cut_front(text: str) -> str:
    """Of a traceback the end is what one needs."""
    return text if len(text) <= LONGEST else f"({len(text) - LONGEST} characters before) …{text[-LONGEST:]}"


def _written(value: Scalar, redact: Redact) -> Scalar:
    return _whole(_cut(redact(value))) if isinstance(value, str) else value


def _scalar(value: object) -> Scalar:
    """JSON has neither NaN nor infinity, so a float may become text as well."""
    if value is None or type(value) in (bool, int):
        return value  # type: ignore[return-value]  # narrowed by exact type: an IntEnum is written by name
    if type(value) is float:
        return value if value - value == 0.0 else str(value)
    try:
        return str(value)[:_LONGEST_RAW]
    except Exception:  # a broken __str__ must not break the one who logs it
        return f"<unprintable {type(value).__name__}>"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # arguments that do not fit their text: say what can be said
        return f"{_scalar(record.msg)} [bad log arguments: {type(error).__name__}]"


def _exception(record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)
