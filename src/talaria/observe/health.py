"""Whether the gateway is alive, and whether it accepts."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Phase(StrEnum):
    """A gateway's life, in this order; it never goes back."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Condition(msgspec.Struct, frozen=True):
    """What /healthz (`is_live`) and /readyz (`is_ready`) answer, and why not."""

    is_live: bool
    is_ready: bool
    phase: Phase
    reasons: tuple[str, ...] = ()


_ORDER = tuple(Phase)
_WHY = {Phase.STARTING: "recovery has not finished", Phase.DRAINING: "the gateway is shutting down"}


class Health:
    """Ready is the phase `ready` without any named trouble; live is everything but a failure for good."""

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._troubles: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        self._watched: dict[str, Callable[[], str | None]] = {}

    @property
    def phase(self) -> Phase:
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Go on to `phase`; an earlier one than now changes nothing, so a late start cannot undo a drain."""
        if _ORDER.index(phase) > _ORDER.index(self._phase):
            self._phase = phase

    def report(self, name: str, trouble: str | None) -> None:
        """Say that the check `name` is in trouble, or with None that it is well again."""
        if trouble is None:
            self._troubles.pop(name, None)
        else:
            self._troubles[name] = trouble

    def watch(self, name: str, ask: Callable[[], str | None]) -> None:
        """Ask the check `name` for its trouble whenever the condition is asked for."""
        self._watched[name] = ask

    def fail(self, name: str, why: str) -> None:
        """Say that only a restart helps: the process is no longer live."""
        self._failures.setdefault(name, why)

    def condition(self) -> Condition:
        reasons = [_WHY[self._phase]] if self._phase in _WHY else []
        seen = {name: why for name, ask in self._watched.items() if (why := ask()) is not None}
        found = {**seen, **self._troubles, **self._failures}
        reasons += [f"{name}: {why}" for name, why in sorted(found.items())]
        return Condition(not self._failures, not reasons, self._phase, tuple(reasons))


def read_rss() -> int:
    """Resident bytes of this process; 0 where the system does not say."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
