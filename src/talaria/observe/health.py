"""Whether the gateway accepts, and why not."""

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
    """What /readyz answers, and why not."""

    is_ready: bool
    phase: Phase
    reasons: tuple[str, ...] = ()


_ORDER = tuple(Phase)
_WHY = {Phase.STARTING: "recovery has not finished", Phase.DRAINING: "the gateway is shutting down"}


class Health:
    """Ready is the phase `ready` without any named trouble."""

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._watched: dict[str, Callable[[], str | None]] = {}

    @property
    def phase(self) -> Phase:
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Go on to `phase`; an earlier one than now changes nothing, so a late start cannot undo a drain."""
        if _ORDER.index(phase) > _ORDER.index(self._phase):
            self._phase = phase

    def watch(self, name: str, ask: Callable[[], str | None]) -> None:
        """Ask the check `name` for its trouble whenever the condition is asked for."""
        self._watched[name] = ask

    def condition(self) -> Condition:
        reasons = [_WHY[self._phase]] if self._phase in _WHY else []
        troubles = ((name, ask()) for name, ask in sorted(self._watched.items()))
        reasons += [f"{name}: {why}" for name, why in troubles if why is not None]
        return Condition(not reasons, self._phase, tuple(reasons))


def read_rss() -> int:
    """Resident bytes of this process; 0 where the system does not say."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
