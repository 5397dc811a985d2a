"""A chat platform in memory: an `Outlet` that records messages and fails on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from itertools import count

import msgspec

from talaria.core.delivery import DeliveryDelayed, DeliveryRefused, DeliveryUnknown, OutgoingMessage
from talaria.core.events import FINAL_EVENTS, Delta
from talaria.turns.delivery import ShownTurn

REPEATED = "(again) "
CURSOR = " ▌"


class OutletFault(Enum):
    """A failure of the platform for the next message."""

    DELAY = auto()
    REFUSE = auto()
    LOSE = auto()  # the message is not taken, and no answer comes
    SWALLOW_ANSWER = auto()  # the message is taken, and no answer comes
    CRASH = auto()  # the channel's code fails after the message was taken


class DeliveredMessage(msgspec.Struct):
    """A message as users see it now."""

    id: str
    address: str
    text: str
    edits: int = 0


class FakeOutlet:
    """Implements `turns.outlet.Outlet`.

    With `takes_nonce`, a second message with the same nonce is dropped. With `shows`, a running turn is shown
    as a live message. `posts` are all attempts; `taken` are those that changed what users see. `is_asking`
    tells that the store is asked, in real time, whether a turn may be shown.
    """

    def __init__(self, *, takes_nonce: bool = False, limit: int = 1000, shows: bool = False) -> None:
        self.takes_nonce = takes_nonce
        self.limit = limit
        self.shows = shows
        self.messages: dict[str, DeliveredMessage] = {}
        self.posts: list[OutgoingMessage] = []
        self.taken: list[OutgoingMessage] = []
        self.faults: deque[OutletFault] = deque()
        self.is_asking = False
        self._ids = count(1)
        self._by_nonce: dict[str, str] = {}

    def texts(self, address: str) -> list[str]:
        return [message.text for message in self.messages.values() if message.address == address]

    def split(self, reply: str, address: str) -> Iterator[str]:
        return (reply[start : start + self.limit] for start in range(0, len(reply), self.limit))

    async def deliver(self, post: OutgoingMessage) -> str:
        self.posts.append(post)
        fault = self.faults.popleft() if self.faults else None
        if fault is OutletFault.DELAY:
            raise DeliveryDelayed("Too many messages.", retry_after=7.0)
        if fault is OutletFault.REFUSE:
            raise DeliveryRefused("The bot was blocked.")
        if fault is OutletFault.LOSE:
            raise DeliveryUnknown("The connection broke.")
        message_id = self._take(post)
        if fault is OutletFault.SWALLOW_ANSWER:
            raise DeliveryUnknown("The connection broke.")
        if fault is OutletFault.CRASH:
            raise RuntimeError("a bug in the channel")
        return message_id

    async def show(self, view: ShownTurn) -> None:
        if not self.shows:
            return
        text, message_id = "", view.shown_id
        async for event in view.events():
            if isinstance(event, FINAL_EVENTS):
                return
            if isinstance(event, Delta):
                text += event.text
                if message_id is None:
                    self.is_asking = True
                    try:
                        is_next = await view.is_next()
                    finally:
                        self.is_asking = False
                    if not is_next:
                        continue
                    message_id = self._write(view.turn.inbound.address or "", text + CURSOR)
                    await view.shown(message_id)
                else:
                    self._edit(message_id, text + CURSOR)

    def _take(self, post: OutgoingMessage) -> str:
        known = self._by_nonce.get(post.nonce) if self.takes_nonce else None
        if known is not None:
            return known
        self.taken.append(post)
        if post.edits is not None and post.edits in self.messages:
            self._edit(post.edits, post.body)
            return post.edits
        message_id = self._write(post.address, (REPEATED if post.is_repeat else "") + post.body)
        self._by_nonce[post.nonce] = message_id
        return message_id

    def _write(self, address: str, text: str) -> str:
        message_id = f"m{next(self._ids)}"
        self.messages[message_id] = DeliveredMessage(message_id, address, text)
        return message_id

    def _edit(self, message_id: str, text: str) -> None:
        message = self.messages[message_id]
        message.text = text
        message.edits += 1
