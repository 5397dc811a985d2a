"""`JoinedIdentities`: the identities that `/link` has joined, known to the people of this gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

from talaria.access.people import People
from talaria.cluster.membership import Membership
from talaria.core.cluster import Wake
from talaria.core.errors import StoreError
from talaria.core.tasks import run_loops, sleep_until_woken
from talaria.store.store import Store

_LOOK_SECONDS: Final = 10.0
_log = logging.getLogger("talaria.cluster")


class JoinedIdentities:
    """Keeps `people` equal to the store's links. `cluster` is None for a gateway without others."""

    def __init__(self, people: People, store: Store, cluster: Membership | None = None) -> None:
        self.people = people
        self._store = store
        self._cluster = cluster
        self._woken = asyncio.Event()
        if cluster is not None:
            cluster.on_wake(Wake.MEMBERS, self._woken.set)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Learn, and follow the other gateways while the context is open. Raises `StoreError`."""
        await self.learn()
        loops = {} if self._cluster is None else {"joined identities": self.run}
        async with run_loops(self._store.clock, loops):
            yield self

    async def learn(self) -> None:
        """Read the links. Raises `StoreError`."""
        self.people.join(dict(await self._store.pairings.links()))

    async def share(self) -> None:
        """Read the links after a change, and wake the other gateways to do the same. Raises `StoreError`."""
        await self.learn()
        if self._cluster is not None:
            self._cluster.wake(Wake.MEMBERS)

    async def run(self) -> None:
        """Learn what other gateways have joined, until cancelled. A lost wake-up delays it by seconds."""
        while True:
            await sleep_until_woken(self._store.clock, _LOOK_SECONDS, self._woken)
            self._woken.clear()
            try:
                await self.learn()
            except StoreError as error:
                _log.debug("joined identities were not read: %s", error)
