"""A running turn as a channel's outlet sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from talaria.core.events import Event
from talaria.core.ids import QuestionId
from talaria.core.store_ports import Store
from talaria.core.turns import Turn
from talaria.turns.live import LiveTurn


class ShownTurn:
    """Implements `core.ports.TurnFeed`."""

    def __init__(self, live: LiveTurn, store: Store, is_ours: Callable[[], bool]) -> None:
        self._live = live
        self._store = store
        self._is_ours = is_ours
        self._shown_id = live.turn.shown_id

    @property
    def turn(self) -> Turn:
        return self._live.turn

    @property
    def shown_id(self) -> str | None:
        return self._shown_id

    @property
    def is_ours(self) -> bool:
        return self._is_ours()

    async def events(self) -> AsyncIterator[Event]:
        async with aclosing(self._live.follow()) as events:
            async for _, event in events:
                yield event

    async def shown(self, platform_id: str) -> None:
        self._shown_id = platform_id
        await self._store.show(self._live.turn.id, platform_id)

    async def question_message(self, question_id: QuestionId) -> str | None:
        found = await self._store.find_question(question_id)
        return None if found is None else found.question.shown_id

    async def question_shown(self, question_id: QuestionId, platform_id: str) -> None:
        await self._store.show_question(question_id, platform_id)
