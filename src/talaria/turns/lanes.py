"""Lanes: the turns of one chat run one at a time, in the order in which they were accepted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from talaria.core.events import Queued
from talaria.core.ids import ChatKey, TurnId
from talaria.core.tasks import Tasks
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.runner import Runner
from talaria.turns.slash import is_control
from talaria.turns.states import LiveState

if TYPE_CHECKING:
    from talaria.turns.turns_here import TurnsHere


class Lanes:
    """The lanes, one for each chat that has turns. A lane's task hands its turns to the runner one by one."""

    def __init__(
        self, runner: Runner, live: LiveTurns, is_control: Callable[[str], bool] = is_control
    ) -> None:
        """`is_control` returns whether a command passes its chat's lane."""
        self._runner = runner
        self._is_control = is_control
        self.live = live
        self._lanes: dict[ChatKey, deque[LiveTurn]] = {}
        self._tasks = Tasks()
        self._is_draining = False
        self._placing: TurnsHere

    def __iter__(self) -> Iterator[Sequence[LiveTurn]]:
        return iter(list(self._lanes.values()))

    def turns_of(self, key: ChatKey) -> Sequence[LiveTurn]:
        """Return the turns in a chat's lane: the running one, then those that wait."""
        return self._lanes.get(key, ())

    def use_placing(self, placing: TurnsHere) -> None:
        """Start no turn from now on before it is placed."""
        self._placing = placing

    @property
    def is_held(self) -> bool:
        return self._runner.is_held

    def hold(self) -> None:
        """Begin no turns until `release`. The first turn of each lane is STARTING meanwhile."""
        self._runner.hold()

    def release(self) -> None:
        """Begin the turns that wait, and those that come from now on."""
        self._runner.release()

    def claim(self, key: ChatKey) -> bool:
        """Reserve the lane of a chat without turns, for a turn that is being accepted.

        Return False if the chat has turns, or if lanes are held. After True, the caller calls `put` with
        `is_claimed`, or `unclaim`. Turns that are put meanwhile wait behind the claim.
        """
        if key in self._lanes or self._is_draining or self._runner.is_held:
            return False
        self._lanes[key] = deque()
        return True

    def unclaim(self, key: ChatKey) -> None:
        """The claimed turn was not accepted; the turns behind it run."""
        lane = self._lanes[key]
        if lane:
            self._tasks.start(self._work(key, lane), f"lane {key}")
        else:
            del self._lanes[key]

    def put(self, live: LiveTurn, *, is_claimed: bool = False) -> None:
        """Append the turn to its chat's lane, in front of scheduled turns that have not started. A control
        command runs at once. During a drain the turn is let go."""
        key = live.turn.chat_key
        if self._is_control(live.turn.command):
            self.put_beside(live)
            return
        if self._is_draining:
            if is_claimed:
                self._lanes.pop(key, None)
            self.live.let_go(live)
            return
        lane = self._lanes.get(key)
        if lane is not None and not is_claimed:
            place = _place(lane, live)
            live.emit(Queued(max(1, place), (lane and lane[0].waits_for()) or UNSET))
            lane.insert(place, live)
            return
        if lane is None:
            lane = self._lanes[key] = deque()
        lane.appendleft(live)
        self._tasks.start(self._work(key, lane), f"lane {key}")

    def put_beside(self, live: LiveTurn) -> None:
        """Run the turn at once, beside its chat's lane. During a drain it is let go."""
        if self._is_draining:
            self.live.let_go(live)
        else:
            self._tasks.start(self._run(live), f"control {live.turn.id}")

    def put_freed(self, live: LiveTurn) -> None:
        """Let a message that was to join a turn be a turn of its own, because that turn is over.

        It goes in front of all turns that were accepted later and have not started.
        """
        live.turn = msgspec.structs.replace(live.turn, merged_into=None)
        lane = self._lanes.get(live.turn.chat_key)
        if lane is None or self._is_draining:
            self.put(live)
            return
        later = (
            place
            for place, other in enumerate(lane)
            if other.state is LiveState.QUEUED and other.turn.accepted_at >= live.turn.accepted_at
        )
        lane.insert(next(later, len(lane)), live)

    def withdraw(self, live: LiveTurn) -> bool:
        """Take a turn that has not started out of its lane. Return False if it is not waiting there."""
        lane = self._lanes.get(live.turn.chat_key)
        if lane is None or live.state is not LiveState.QUEUED or live not in lane:
            return False
        lane.remove(live)
        return True

    def stop(self, live: LiveTurn) -> None:
        """Stop the turn because a person wants it. A turn that has not started is ended at once."""
        is_queued = not live.turn.attempts and self.withdraw(live)
        live.stop()
        if is_queued:
            self.put_beside(live)

    def arrange(self, order: Mapping[TurnId, int]) -> None:
        """Put the turns that have not started into the order of their acceptance, which `order` has for those
        that were accepted so far. Begun turns come first, scheduled ones last."""

        def place(live: LiveTurn) -> tuple[bool, bool, float]:
            turn = live.turn
            return not turn.attempts, turn.inbound.gives_way, order.get(turn.id, float("inf"))

        for lane in self._lanes.values():
            first = 1 if lane and (lane[0].state is not LiveState.QUEUED or lane[0].began) else 0
            if len(lane) > first + 1:
                waiting = sorted(list(lane)[first:], key=place)
                while len(lane) > first:
                    lane.pop()
                lane.extend(waiting)

    async def drain(self, deadline: float) -> int:
        """Start no more turns, let running ones finish for `deadline` seconds, then cancel them resumably.

        Parked turns are let go at once. Return how many lanes had to be cancelled.
        """
        self._is_draining = True
        for live in self.live:
            if live.state is LiveState.PARKED:
                self.live.let_go(live)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=deadline)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        return len(left)

    async def _work(self, key: ChatKey, lane: deque[LiveTurn]) -> None:
        try:
            while lane and not self._is_draining:
                if not self._placing.is_placed(lane[0]):
                    await self._placing.place(lane[0])
                    continue
                live = lane[0]
                await self._run(live)
                lane.popleft()
                if live.state is not LiveState.SETTLED:
                    self._placing.doubt(lane)
        finally:
            del self._lanes[key]

    async def _run(self, live: LiveTurn) -> None:
        try:
            await self._runner.run(live)
            while live.state is LiveState.PARKED and not self._is_draining:
                await live.unparked()  # the lane is kept meanwhile
                if not live.state.is_over:
                    await self._runner.run(live)
        finally:
            self.live.let_go(live)
            unread, live.steers = live.steers, []
            for steer in unread:
                if live.state is LiveState.SETTLED:
                    self.put_freed(steer)
                else:
                    self.live.let_go(steer)


def _place(lane: Sequence[LiveTurn], live: LiveTurn) -> int:
    """Return the place of a turn in its lane: the end, or for a person's turn the first scheduled one that
    has not started."""
    if live.turn.inbound.gives_way:
        return len(lane)
    passed = (
        place
        for place, other in enumerate(lane)
        if other.turn.inbound.gives_way and other.state is LiveState.QUEUED and other.began is None
    )
    return next(passed, len(lane))
