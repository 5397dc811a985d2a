"""`EventLanes`: the events of a platform, in order for each chat and in parallel for different chats."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from talaria.channels.channel_loop import ChannelLoop, ChannelPhase
from talaria.channels.platform_api import PlatformError, PlatformRefused
from talaria.channels.reception import leaving_out_broken
from talaria.core.backoff import Backoff
from talaria.core.errors import Overloaded, StoreError
from talaria.core.tasks import Tasks, stop
from talaria.turns.intake import Draining

_log = logging.getLogger("talaria.channels")

_RETRIES = Backoff(first=1.0, longest=60.0)
_MAX_WAITING = 1000

Work = Callable[[], Awaitable[None]]


class EventLanes:
    """Does the work of events. Work that fails with an error that may pass is done again after a pause,
    before the later work of its chat; `on_recovered` is called when it was done. When the intake is closed,
    `is_draining` is set and `on_draining` is called."""

    def __init__(
        self, loop: ChannelLoop, on_recovered: Callable[[], None], on_draining: Callable[[], Awaitable[None]]
    ) -> None:
        self._loop = loop
        self._on_recovered = on_recovered
        self._on_draining = on_draining
        self._outcomes: set[asyncio.Future[None]] = set()
        self._lanes: dict[str, deque[tuple[Work, Callable[[], None]]]] = {}
        self._tasks = Tasks()
        self.is_draining = False

    def put(self, chat: str, work: Work, on_done: Callable[[], None] = lambda: None) -> None:
        """Let the work wait for the earlier work of its chat. `on_done` is called once it is done or left
        out."""
        if (lane := self._lanes.get(chat)) is not None:
            lane.append((work, on_done))
            return
        lane = self._lanes[chat] = deque([(work, on_done)])
        self._tasks.start(self._work(chat, lane), f"{self._loop.name} chat {chat}")

    async def do_once(self, chat: str, work: Work) -> None:
        """Do the work after the earlier work of its chat, for a platform that sends an event again if it is
        refused. Raises the errors that may pass, and `Draining` if the lanes are closed first. If the caller
        is cancelled, the work continues."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outcomes.add(outcome)
        outcome.add_done_callback(self._outcomes.discard)

        async def once() -> None:
            try:
                await work()
            except (StoreError, Draining, Overloaded, PlatformError) as error:
                if not outcome.done():
                    outcome.set_exception(error)

        self.put(chat, once, lambda: None if outcome.done() else outcome.set_result(None))
        await outcome

    @property
    def is_full(self) -> bool:
        return sum(map(len, self._lanes.values())) >= _MAX_WAITING

    async def room(self) -> None:
        """Wait while too much work waits."""
        while self._tasks and self.is_full:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Stop. Work that is not done must come again from the platform."""
        await stop(*self._tasks)
        for outcome in list(self._outcomes):
            if not outcome.done():
                outcome.set_exception(Draining("The channel is closed."))

    async def _work(self, chat: str, lane: deque[tuple[Work, Callable[[], None]]]) -> None:
        try:
            while lane:
                work, on_done = lane[0]
                await self._insist(work)
                on_done()
                lane.popleft()
        except Draining:
            self.is_draining = True
            await self._on_draining()
        finally:
            del self._lanes[chat]

    async def _insist(self, work: Work) -> None:
        loop = self._loop
        for pause in _RETRIES.pauses():
            try:
                with leaving_out_broken():
                    await work()
                break
            except PlatformRefused as refusal:
                if refusal.code != 429:
                    _log.warning("an event is left out: %s", refusal.user_text)
                    return
                await loop.clock.sleep(refusal.retry_after or pause)
            except (StoreError, Overloaded, PlatformError) as error:
                if loop.phase is ChannelPhase.READY:
                    loop.enter(ChannelPhase.WAITING, error.user_text)
                await loop.clock.sleep(pause)
        if loop.phase is ChannelPhase.WAITING:
            self._on_recovered()
