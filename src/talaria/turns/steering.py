"""The messages that join a live turn, as the loop of its agent reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from talaria.agent.context import Steer
from talaria.core.messages import UserMessage
from talaria.core.turns import Turn, TurnState
from talaria.turns.live import LiveTurn


class LiveSteering:
    """The messages that join a live turn, for its loop. Implements `agent.context.Steering`."""

    def __init__(self, live: LiveTurn, message_of: Callable[[Turn], UserMessage]) -> None:
        self._live = live
        self._message_of = message_of
        self._seen = 0

    def waiting(self) -> Sequence[Steer]:
        steers = self._live.steers
        self._seen = len(steers)
        if not steers:
            return []
        waiting = [steer.turn for steer in steers if steer.turn.state is TurnState.ACCEPTED]
        return [Steer(turn.id, self._message_of(turn)) for turn in waiting]

    async def arrival(self) -> None:
        while len(self._live.steers) == self._seen:
            await self._live.steered()
