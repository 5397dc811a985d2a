"""Messages that join a running turn."""

from __future__ import annotations

from collections.abc import Sequence

from talaria.agent.context import Steer
from talaria.core.turns import TurnState
from talaria.turns.live import LiveTurn
from talaria.turns.parts import Parts


class LiveSteering:
    """Implements `agent.context.Steering` over a live turn."""

    def __init__(self, live: LiveTurn, parts: Parts) -> None:
        self._live = live
        self._parts = parts
        self._seen = 0

    def waiting(self) -> Sequence[Steer]:
        steers = self._live.steers
        self._seen = len(steers)
        return [self._steer(steer) for steer in steers if steer.turn.state is TurnState.ACCEPTED]

    async def arrival(self) -> None:
        while len(self._live.steers) == self._seen:
            await self._live.steered()

    def _steer(self, steer: LiveTurn) -> Steer:
        turn = steer.turn
        message = self._parts.user_message(turn.inbound.parts, turn.accepted_at)
        assert message is not None, "a message without parts never steers"
        return Steer(turn.id, message)
