"""The audit log: one structured line, on the logger `talaria.audit`, for each act of an operator."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

from talaria.core.clock import Clock

_log = logging.getLogger("talaria.audit")
_REMEMBERED: Final = 1024
_PAUSE_SECONDS: Final = 3600.0


class AuditLog:
    """Writes audit lines, whatever `log.level` is. A line holds names, never codes or tokens."""

    def __init__(self, clock: Clock) -> None:
        _log.setLevel(logging.INFO)
        self._clock = clock
        self._written: OrderedDict[tuple[str, ...], float] = OrderedDict()

    def note(self, action: str, who: str, address: str, about: str, result: str) -> None:
        fields = {"who": who, "address": address, "about": about, "result": result}
        _log.info("%s", action, extra=fields)

    def note_hourly(self, action: str, who: str, address: str, about: str, result: str) -> None:
        """Write a line unless the same one was written within an hour: for acts that a page or a program
        repeats by itself. The oldest are forgotten when there are many, and written again."""
        line, now = (action, who, address, about, result), self._clock.elapsed()
        if now - self._written.get(line, -_PAUSE_SECONDS) < _PAUSE_SECONDS:
            return
        self._written[line] = now
        self._written.move_to_end(line)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        self.note(*line)
