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

    def put(self, live: LiveTurn) -> None:
        """Behind everything its chat has waiting. While draining it stays a row for the next start."""
        if self._is_draining:
            return
        key = live.turn.chat_key
        lane = self._lanes.get(key)
        if lane is not None:
            live.emit(Queued(len(lane)))
            lane.append(live)
            return
        lane = self._lanes[key] = deque((live,))
        self._spawn(self._work(key, lane), f"lane {key}")

    def put_past(self, live: LiveTurn) -> None:
        """Control inputs: at once, beside the lane."""
        if not self._is_draining:
            self._spawn(self._run(live), f"control {live.turn.id}")

    def waiting(self, key: ChatKey) -> int:
        """How many wait behind the one that runs."""
        return max(0, len(self._lanes.get(key, ())) - 1)

    async def drain(self, deadline: float) -> int:
        """Begin nothing more; let what runs finish for `deadline` seconds, then stop it resumably.

        Answers how many were stopped.
        """
        self._is_draining = True
        for lane in self._lanes.values():
            while len(lane) > 1:
                lane.pop()
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
            while lane:
                await self._run(lane[0])
                lane.popleft()
        finally:
            del self._lanes[key]
