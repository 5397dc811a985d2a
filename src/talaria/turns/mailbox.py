"""Lanes: the turns of one chat run one at a time, in the order in which they were accepted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from talaria.core.events import Queued
from talaria.core.ids import ChatKey
from talaria.turns.live import LiveTurn


class Mailbox:
    """A lane per chat that has work. `run` is awaited for each turn and must not raise."""

    def __init__(self, run: Callable[[LiveTurn], Coroutine[Any, Any, None]]) -> None:
        self._run = run
        self._lanes: dict[ChatKey, deque[LiveTurn]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_draining = False

    def claim(self, key: ChatKey) -> bool:
        """Take the lane of a chat that has nothing running or waiting, for a turn that is being accepted.

        Whoever gets it calls `put` with `is_claimed`, or `unclaim`. What comes meanwhile waits behind.
        """
        if key in self._lanes or self._is_draining:
            return False
        self._lanes[key] = deque()
        return True

    def unclaim(self, key: ChatKey) -> None:
        """The claimed turn did not come to be; what waited behind it runs."""
        lane = self._lanes[key]
        if lane:
            self._spawn(self._work(key, lane), f"lane {key}")
        else:
            del self._lanes[key]

    def put(self, live: LiveTurn, *, is_claimed: bool = False) -> bool:
        """Behind everything its chat has waiting. False while draining: it stays a row for the next start."""
        key = live.turn.chat_key
        if self._is_draining:
            if is_claimed:
                self._lanes.pop(key, None)
            return False
        lane = self._lanes.get(key)
        if lane is not None and not is_claimed:
            live.emit(Queued(max(1, len(lane))))
            lane.append(live)
            return True
        if lane is None:
            lane = self._lanes[key] = deque()
        lane.appendleft(live)
        self._spawn(self._work(key, lane), f"lane {key}")
        return True

    def put_in_order(self, live: LiveTurn) -> bool:
        """For a turn that was accepted a while ago: in front of everything that came after it and has not
        begun. False while draining."""
        lane = self._lanes.get(live.turn.chat_key)
        if lane is None or self._is_draining:
            return self.put(live)
        later = (
            place
            for place, other in enumerate(lane)
            if not other.has_begun and other.turn.accepted_at >= live.turn.accepted_at
        )
        lane.insert(next(later, len(lane)), live)
        return True

    def put_past(self, live: LiveTurn) -> bool:
        """Control inputs: at once, beside the lane. False while draining."""
        if self._is_draining:
            return False
        self._spawn(self._run(live), f"control {live.turn.id}")
        return True

    def withdraw(self, live: LiveTurn) -> bool:
        """Take a turn that has not begun out of its lane; False when it is not waiting there."""
        lane = self._lanes.get(live.turn.chat_key)
        if lane is None or live.has_begun or live not in lane:
            return False
        lane.remove(live)
        return True

    def waiting(self, key: ChatKey) -> int:
        """How many wait behind the one that runs."""
        return max(0, len(self._lanes.get(key, ())) - 1)

    async def drain(self, deadline: float) -> int:
        """Begin nothing more; let what runs finish for `deadline` seconds, then stop it resumably.

        Answers how many were stopped.
        """
        self._is_draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=deadline)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        return len(left)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, key: ChatKey, lane: deque[LiveTurn]) -> None:
        try:
            while lane and not self._is_draining:
                await self._run(lane[0])
                lane.popleft()
        finally:
            del self._lanes[key]
