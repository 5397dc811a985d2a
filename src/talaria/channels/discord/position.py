"""`ReadPosition`: how far the events of Discord are handled, stored so that another process can continue."""

from __future__ import annotations

from itertools import count

import msgspec

from talaria.channels.discord.gateway import GatewaySession
from talaria.core.clock import Clock
from talaria.store.store import Store

_SAVE_SECONDS = 30.0  # between two writes of the session
_MAX_CHANNELS = 1000  # a channel whose last message is older than those of so many others is forgotten


class ChannelPosition(msgspec.Struct, frozen=True):
    """The last message of a channel that was handled, and the channel's server ("" in a private chat)."""

    last: int
    guild: str = ""


class ReadPosition:
    """The position of one bot. `channels` are those in which a message was accepted. A repeated event does no
    harm, since the intake knows its messages, so the stored position may be older than what was handled."""

    def __init__(self, store: Store, clock: Clock, bot: str) -> None:
        self._store = store
        self._clock = clock
        self._name = f"discord:{bot}:"
        self._numbers = count()
        self._pending: dict[
            int, int
        ] = {}  # sequence numbers of events that are not handled yet, oldest first
        self._saved_at = float("-inf")
        self._unsaved: set[str] = set()
        self.channels: dict[str, ChannelPosition] = {}
        self.behind: set[str] = set()  # channels whose missed messages are not fetched yet

    async def load(self) -> GatewaySession | None:
        """Read the stored position, and return the session to resume."""
        session = None
        for name, value in await self._store.cursors(self._name):
            if name == f"{self._name}session":
                session = msgspec.json.decode(value, type=GatewaySession) if value else None
            elif value:
                self.channels[name.removeprefix(self._name)] = msgspec.json.decode(
                    value, type=ChannelPosition
                )
        return session

    def begin(self, seq: int) -> int:
        """Note that an event waits; return a ticket for `end`."""
        ticket = next(self._numbers)
        self._pending[ticket] = seq
        return ticket

    def end(self, ticket: int) -> None:
        self._pending.pop(ticket, None)

    def restart(self) -> None:
        """A new session has begun: forget the numbers of the earlier one. All channels are behind."""
        self._pending.clear()
        self._saved_at = float("-inf")
        self.behind = set(self.channels)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def advance(self, channel: str, message: int) -> None:
        """Note that the messages of a known channel up to this one are handled. `save` stores it later."""
        known = self.channels.get(channel)
        if known is not None and message > known.last:
            self.channels[channel] = ChannelPosition(message, known.guild)
            self._unsaved.add(channel)

    async def save_channel(self, channel: str, message: int, guild: str) -> None:
        """Store that the messages of the channel up to this one are handled. Durable. Raises `StoreError`."""
        known = self.channels.get(channel)
        if known is not None and message <= known.last:
            return
        position = self.channels[channel] = ChannelPosition(message, guild)
        self._unsaved.add(channel)
        await self._store_channel(channel, position)
        if len(self.channels) > _MAX_CHANNELS:
            await self.forget_channel(min(self.channels, key=lambda each: self.channels[each].last))

    async def forget_channel(self, channel: str) -> None:
        self.channels.pop(channel, None)
        self._unsaved.discard(channel)
        self.behind.discard(channel)
        await self._store.set_cursor(self._name + channel, "")

    async def save(self, session: GatewaySession | None, *, is_last: bool = False) -> None:
        """Store the positions and the session with the number of the last event before which all are handled:
        now and then, or now if it `is_last`. Raises `StoreError`.

        A new session is not stored before the missed messages are fetched. The next process would resume it,
        and a resume brings no messages from before the session.
        """
        now = self._clock.elapsed()
        if session is None or self.behind or (now - self._saved_at < _SAVE_SECONDS and not is_last):
            return
        self._saved_at = now
        seq = min((*self._pending.values(), session.seq + 1)) - 1
        value = msgspec.json.encode(GatewaySession(session.id, session.url, seq)).decode()
        for channel in sorted(self._unsaved):
            await self._store_channel(channel, self.channels[channel])
        await self._store.set_cursor(f"{self._name}session", value)

    async def _store_channel(self, channel: str, position: ChannelPosition) -> None:
        await self._store.set_cursor(self._name + channel, msgspec.json.encode(position).decode())
        if self.channels.get(channel) == position:
            self._unsaved.discard(channel)
