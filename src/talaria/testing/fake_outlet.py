"""A platform in memory, for everything that sends replies: what it shows, and how it misbehaves."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from itertools import count

import msgspec

from talaria.core.delivery import DeliveryDelayed, DeliveryRefused, DeliveryUnknown, OutgoingMessage
from talaria.core.events import FINAL_EVENTS, Delta
from talaria.core.ports import TurnFeed

REPEATED = "(again) "
CURSOR = " ▌"


class Fault(Enum):
    """What the platform does with the next message."""

    DELAY = auto()
    REFUSE = auto()
    LOSE = auto()  # takes nothing and gives no answer
    SWALLOW_ANSWER = auto()  # takes it and gives no answer
    CRASH = auto()  # the channel's own code fails after it was taken


class Shown(msgspec.Struct):
    """A message as the people of the chat see it now."""

    id: str
    address: str
    text: str
    edits: int = 0


class FakeOutlet:
    """Implements `core.ports.Outlet`. With `takes_nonce` a second message of the same nonce is dropped."""

    def __init__(self, *, takes_nonce: bool = False, limit: int = 1000, shows: bool = False) -> None:
        self.takes_nonce = takes_nonce
        self.limit = limit
        self.shows = shows
        self.messages: dict[str, Shown] = {}
        self.posts: list[OutgoingMessage] = []
        self.taken: list[OutgoingMessage] = []
        self.faults: deque[Fault] = deque()
        self._ids = count(1)
        self._by_nonce: dict[str, str] = {}

    def texts(self, address: str) -> list[str]:
        return [message.text for message in self.messages.values() if message.address == address]

    def split(self, reply: str) -> tuple[str, ...]:
        return tuple(reply[start : start + self.limit] for start in range(0, len(reply), self.limit)) or ("",)

    async def deliver(self, post: OutgoingMessage) -> str:
        self.posts.append(post)
        fault = self.faults.popleft() if self.faults else None
        if fault is Fault.DELAY:
            raise DeliveryDelayed("Too many messages.", retry_after=7.0)
        if fault is Fault.REFUSE:
            raise DeliveryRefused("The bot was blocked.")
        if fault is Fault.LOSE:
            raise DeliveryUnknown("The connection broke.")
        message_id = self._take(post)
        if fault is Fault.SWALLOW_ANSWER:
            raise DeliveryUnknown("The connection broke.")
        if fault is Fault.CRASH:
            raise RuntimeError("a bug in the channel")
        return message_id

    async def show(self, view: TurnFeed) -> None:
        if not self.shows:
            return
        text, message_id = "", view.shown_id
        async for event in view.events():
            if isinstance(event, FINAL_EVENTS):
                return
            if isinstance(event, Delta):
                text += event.text
                if message_id is None:
                    message_id = self._write(view.turn.inbound.address or "", text + CURSOR)
                    await view.shown(message_id)
                else:
                    self._edit(message_id, text + CURSOR)

    def _take(self, post: OutgoingMessage) -> str:
        """`taken` are the posts that changed what people see."""
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
        self.messages[message_id] = Shown(message_id, address, text)
        return message_id

    def _edit(self, message_id: str, text: str) -> None:
        message = self.messages[message_id]
        message.text = text
        message.edits += 1
