"""The audit log: one structured line, on the logger `talaria.audit`, for each act of an operator."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from talaria.core.bounded import BoundedDict
from talaria.core.clock import Clock
from talaria.observe.logs import AUDIT

_log = logging.getLogger(AUDIT)
_REMEMBERED: Final = 1024
_HOURLY_LINES: Final = 100  # of one caller, for acts that failed
_PAUSE_SECONDS: Final = 3600.0


class AuditLog:
    """Writes audit lines, whatever `log.level` is. A line holds names, never codes or tokens."""

    def __init__(self, clock: Clock) -> None:
        _log.setLevel(logging.INFO)
        self._clock = clock
        self._written: BoundedDict[tuple[str, ...], float] = BoundedDict(_REMEMBERED)
        self._callers: dict[str, _CallerHour] = {}

    def note(self, action: str, who: str, address: str, about: str, result: str) -> None:
        fields = {"who": who, "address": address, "about": about, "result": result}
        _log.info("%s", action, extra=fields)

    def note_hourly(self, action: str, who: str, address: str, about: str, result: str) -> None:
        """Write a line unless the same one was written within an hour: for acts that a page or a program
        repeats by itself. The oldest are forgotten when there are many, and written again.

        A caller gets 100 lines an hour for failed acts, because it can name chats that do not exist. More are
        counted. One line says that the limit is reached, and a later one how many were left out.
        """
        line, now = (action, who, address, about, result), self._clock.elapsed()
        if now - self._written.get(line, -_PAUSE_SECONDS) < _PAUSE_SECONDS:
            return
        self._written[line] = now
        if result == "done":
            self.note(*line)
            return
        hour = self._callers.get(who)
        if hour is None or now - hour.began >= _PAUSE_SECONDS:
            if hour is not None and hour.lines > _HOURLY_LINES:
                self.note("lines.left_out", who, address, str(hour.lines - _HOURLY_LINES), "counted")
            hour = self._callers[who] = _CallerHour(now)
        hour.lines += 1
        if hour.lines <= _HOURLY_LINES:
            self.note(*line)
        elif hour.lines == _HOURLY_LINES + 1:
            self.note("lines.limited", who, address, "", "counted")


@dataclass(slots=True)
class _CallerHour:
    """The failed acts of one caller since `began`. Callers are tokens and logins, so there are few."""

    began: float
    lines: int = 0
