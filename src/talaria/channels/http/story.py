"""A turn with its story, found by any of its names."""

from __future__ import annotations

import msgspec

from talaria.channels.http.views import StepView, ToldTurn
from talaria.core.errors import NotFound
from talaria.core.ids import TurnId
from talaria.core.ports import Histories
from talaria.turns.story import tell_story


class StoryDesk:
    """Reads the ledger only, so that it tells the same with a running gateway and without."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories

    async def tell(self, name: str) -> ToldTurn:
        """Of several turns that are called so, the newest. Raises `NotFound`."""
        first, *others = await self._histories.find(name) or [TurnId(name)]
        history = await self._histories.history(first)
        if history is None:
            raise NotFound(f"There is no turn {name}.", "Check the id; old turns may have been pruned.")
        found = history.record
        told = ToldTurn.of(found.turn, tuple(map(StepView.of, found.steps)), found.spent)
        return msgspec.structs.replace(told, story=tell_story(history), also=tuple(others))
