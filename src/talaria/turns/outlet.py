"""`Outlet`: the sending side of a channel, and `ShownTurn`, a running turn as an outlet sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Protocol

from talaria.core.delivery import OutgoingMessage
from talaria.core.events import Event
from talaria.core.ids import QuestionId
from talaria.core.turns import Turn
from talaria.store.store import Store
from talaria.turns.live import LiveTurn


class ShownTurn:
    """A running turn, for the channel that shows it.

    `shown_id` is the platform's id of the message that already shows the turn, from this attempt or from one
    before a restart.
    """

    def __init__(self, live: LiveTurn, store: Store, is_ours: Callable[[], bool]) -> None:
        self._live = live
        self._store = store
        self._is_ours = is_ours
        self.shown_id = live.turn.shown_id

    @property
    def turn(self) -> Turn:
        return self._live.turn

    @property
    def is_ours(self) -> bool:
        """Whether this gateway still has the channel. False at once in a process that was stopped for so long
        that another one took the channel over; it must not draw over that one's messages."""
        return self._is_ours()

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events from first to final. Ends early if this process lets go of the turn."""
        async with aclosing(self._live.follow()) as events:
            async for _, event in events:
                yield event

    async def shown(self, platform_id: str) -> None:
        """Store the id of the message that shows the turn; the final reply will be an edit of it."""
        self.shown_id = platform_id
        await self._store.show(self._live.turn.id, platform_id)

    async def question_message(self, question_id: QuestionId) -> str | None:
        """Return the platform's id of the message that already shows the question, or None."""
        found = await self._store.find_question(question_id)
        return None if found is None else found.question.shown_id

    async def question_shown(self, question_id: QuestionId, platform_id: str) -> None:
        """Store the id of the message that shows the question."""
        await self._store.show_question(question_id, platform_id)


class Outlet(Protocol):
    """The sending side of a channel. An address is the one that the channel wrote into `Inbound`."""

    @property
    def takes_nonce(self) -> bool:
        """Whether the platform drops a second message with the same nonce."""
        ...

    def split(self, reply: str, address: str) -> Iterator[str]:
        """Yield the messages in which a reply is sent to the address, each within the limit there. Pure.

        Each step is short, whatever the length of the reply. It may yield an empty text, which is no message.
        """
        ...

    async def deliver(self, post: OutgoingMessage) -> str:
        """Send the message, or edit an earlier one, and return the platform's id of it. Raises the kind of
        `DeliveryError` that fits; any other exception counts as `DeliveryUnknown`."""
        ...

    async def show(self, view: ShownTurn) -> None:
        """Show a turn while it runs: that it types, its tool calls, and its text as it comes. The reply is
        delivered after this has ended or was cancelled. An error here ends only the showing."""
        ...
