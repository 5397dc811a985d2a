"""Wake-ups of members: hints to look at the database now, which would be looked at in a second anyway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from talaria.core.cluster import Wake
from talaria.core.ids import OwnerId

Heard = Callable[[Wake], None]


class WakeLine(Protocol):
    """How wake-ups get to members; see `ClusterStore.wake` and `ClusterStore.listen`."""

    async def wake(self, what: Wake, owner: OwnerId | None) -> None: ...

    def listen(self, owner: OwnerId, heard: Heard) -> AbstractAsyncContextManager[None]: ...


class LocalWakes:
    """Wake-ups within this process, for a database that no other process serves."""

    def __init__(self) -> None:
        self._listeners: list[tuple[OwnerId, Heard]] = []

    async def wake(self, what: Wake, owner: OwnerId | None) -> None:
        loop = asyncio.get_running_loop()
        for listener, heard in self._listeners:
            if owner in (None, listener):
                loop.call_soon(heard, what)

    @asynccontextmanager
    async def listen(self, owner: OwnerId, heard: Heard) -> AsyncIterator[None]:
        entry = (owner, heard)
        self._listeners.append(entry)
        try:
            yield
        finally:
            self._listeners.remove(entry)
