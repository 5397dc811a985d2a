"""Whether the gateway is ready, and the reasons why it is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from talaria.core.errors import StoreError

T = TypeVar("T")

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STORE_SECONDS: Final = 2.0  # to wait for the database
_STORE_SECONDS_IN_TROUBLE: Final = 0.25


class GatewayPhase(StrEnum):
    """The phases of a gateway, in order. A gateway never returns to an earlier phase."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Readiness(msgspec.Struct, frozen=True):
    """The answer of /readyz, with the reasons that only /api/status shows. `troubles` names the checks that
    report one."""

    is_ready: bool
    phase: GatewayPhase
    reasons: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


_ORDER = tuple(GatewayPhase)
_REASONS = {
    GatewayPhase.STARTING: "turns do not run yet",
    GatewayPhase.DRAINING: "the gateway is shutting down",
}


class Health:
    """The gateway is ready in the phase `ready` while no check reports trouble."""

    def __init__(self) -> None:
        self._phase = GatewayPhase.STARTING
        self._checks: dict[str, Callable[[], str | None]] = {}
        self._answers: dict[str, Any] = {}

    @property
    def phase(self) -> GatewayPhase:
        return self._phase

    def enter(self, phase: GatewayPhase) -> None:
        """Move on to `phase`. An earlier phase is ignored, so that a late start cannot undo a drain."""
        if _ORDER.index(phase) > _ORDER.index(self._phase):
            self._phase = phase

    def watch(self, name: str, check: Callable[[], str | None]) -> None:
        """Add a check. `readiness` calls it; it returns its trouble, or None."""
        self._checks[name] = check

    def readiness(self) -> Readiness:
        reasons = [_REASONS[self._phase]] if self._phase in _REASONS else []
        found = ((name, check()) for name, check in sorted(self._checks.items()))
        troubles = {name: trouble for name, trouble in found if trouble is not None}
        reasons += [f"{name}: {trouble}" for name, trouble in troubles.items()]
        return Readiness(not reasons, self._phase, tuple(reasons), tuple(troubles))

    async def ask_store(self, name: str, ask: Callable[[], Awaitable[T]], first: T) -> T:
        """Return the database's answer. If the database does not answer in time or fails, return its last
        answer under this name, or `first` if there is none. The wait is short while there is trouble."""
        seconds = _STORE_SECONDS if self.readiness().is_ready else _STORE_SECONDS_IN_TROUBLE
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(seconds):
                self._answers[name] = await ask()
        known: T = self._answers.get(name, first)
        return known


def read_rss() -> int:
    """Return the resident bytes of this process, or 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
