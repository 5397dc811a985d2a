"""What is forgotten when: the loop that keeps weeks of turns from filling the disk.

Each order is small and the turns' own orders come in between. What is unsettled or unsent stays.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from talaria.core import ports
from talaria.core.clock import Clock
from talaria.turns.settings import RetentionSettings

_log = logging.getLogger("talaria.retention")
_SWEEP_SECONDS = 600.0

# A repeated message is known by its key for at least a day, whatever the ledger's time.
KEY_SECONDS = 86_400.0


class RetentionStore(Protocol):
    @property
    def retention(self) -> ports.Retention: ...

    async def prune_ephemeral(self, older_than: float) -> int: ...


class Retention:
    """`drop_results` deletes what tools left in chats' folders before a moment; it answers how many files."""

    def __init__(
        self,
        store: RetentionStore,
        clock: Clock,
        settings: RetentionSettings,
        drop_results: Callable[[float], Awaitable[int]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._drop_results = drop_results
        self._position = 0

    async def run(self) -> None:
        while True:
            await self.sweep()
            await self._clock.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        settings, now = self._settings, self._clock.now()
        ledger = now - max(settings.ledger.total_seconds(), KEY_SECONDS)
        ephemeral = await self._store.prune_ephemeral(now - settings.ephemeral.total_seconds())
        ended = 0
        if (kept := settings.ended_sessions_kept) is not None:
            ended = await _exhaust(lambda: self._store.retention.prune_ended(now - kept.total_seconds()))
        counts = {
            "ephemeral sessions": ephemeral,
            "ended sessions": ended,
            "turns": await self._forget_turns(ledger),
            "specs": await _exhaust(self._store.retention.prune_specs),
            "results of tools": await self._drop_results(ledger),
        }
        if any(counts.values()):
            _log.info("forgot %s", ", ".join(f"{count} {what}" for what, count in counts.items() if count))

    async def _forget_turns(self, before: float) -> int:
        """Goes on where the last sweep ended; the start of the process looks at everything once."""
        total = 0
        while True:
            forgotten = await self._store.retention.forget_turns(self._position, before)
            total += forgotten.turns
            if forgotten.position is None:
                return total
            self._position = forgotten.position


async def _exhaust(order: Callable[[], Awaitable[int]]) -> int:
    total = 0
    while count := await order():
        total += count
    return total
