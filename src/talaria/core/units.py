"""Durations and sizes as people write them: `"90s"`, `"1h30m"`, `"256MiB"`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NewType

Size = NewType("Size", int)

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")

DURATION_FORMS = 'a duration such as "500ms", "30s", "1h30m" or "7d"'
SIZE_FORMS = 'a size such as 65536, "64KiB", "256MiB" or "1GB"'


def parse_duration(text: str) -> timedelta:
    """Raise ValueError that names the allowed forms."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"expected {DURATION_FORMS}")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError(f"expected {DURATION_FORMS}, and not that long") from None


def format_duration(duration: timedelta) -> str:
    """Return the form that `parse_duration` reads, such as "1h30m"."""
    rest = round(duration.total_seconds() * 1000)
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, round(_SECONDS[unit] * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> Size:
    """Raise ValueError that names the allowed forms."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"expected {SIZE_FORMS}")
    try:
        return Size(int(float(match[1]) * _BYTES[match[2]]))
    except OverflowError:
        raise ValueError(f"expected {SIZE_FORMS}, and not that large") from None


def write_size(size: Size) -> str | int:
    """Return the form that `parse_size` reads, such as "256MiB"; a number if no larger unit is exact."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size and size % _BYTES[unit] == 0), "")
    return f"{size // _BYTES[unit]}{unit}" if unit else int(size)


def format_size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def format_wait(seconds: float) -> str:
    """Return an estimated wait for people to read: "a moment", "42 s", "3 min"."""
    return "a moment" if seconds < 1.5 else format_age(seconds)


def format_age(seconds: float) -> str:
    """Return seconds in the largest unit that fits: "42 s", "3 min", "5 h", "2 days"."""
    for size, unit in ((2 * 86_400, "days"), (2 * 3600, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds / _SECONDS[unit[0]]:.0f} {unit}"
    return f"{seconds:.0f} s"
