"""`MemoryStore`: the store without a disk, for tests and simulations."""

from __future__ import annotations

from talaria.core.clock import Clock
from talaria.store.sqlite.inline import Inline
from talaria.store.sqlite.port import SqlStore


class MemoryStore(SqlStore):
    """The orders and questions of the store on a database in memory, which is gone when it is closed.

    No method waits for anything, so it needs no event loop to be made and under none does it let others run.
    """

    def __init__(self, clock: Clock) -> None:
        self._inline = Inline(clock)
        super().__init__(self._inline, clock)

    async def close(self) -> None:
        self._inline.close()
