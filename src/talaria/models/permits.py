"""Permits of one endpoint: how many calls run at once, and whose turn it is when all are taken."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Permits:
    """Sessions that wait take turns, one call each, however many calls any of them has waiting."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def busy(self) -> int:
        return self._count - self._free

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def held(self, session: str) -> AsyncIterator[None]:
        """`take` for the time of a block."""
        await self.take(session)
        try:
            yield
        finally:
            self.give_back()

    async def take(self, session: str) -> None:
        """Who is cancelled while waiting leaves no trace; a permit that was just given goes to the next."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(session)

    async def _wait(self, session: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session, deque()).append(place)
        try:
            await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.give_back()
            else:
                self._withdraw(session, place)
            raise

    def _withdraw(self, session: str, place: asyncio.Future[None]) -> None:
        queue = self._waiting[session]
        queue.remove(place)
        if not queue:
            del self._waiting[session]

    def give_back(self) -> None:
        """To the session whose turn it is; a place that was cancelled and not yet withdrawn is passed by."""
        for session, queue in self._waiting.items():
            place = next((place for place in queue if not place.done()), None)
            if place is not None:
                place.set_result(None)
                self._pass_turn(session, place)
                return
        self._free += 1

    def _pass_turn(self, session: str, place: asyncio.Future[None]) -> None:
        self._withdraw(session, place)
        if session in self._waiting:
            self._waiting.move_to_end(session)
