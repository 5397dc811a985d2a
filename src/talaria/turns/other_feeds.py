"""The states of the turns of other members of the cluster, for those who listen to all turns here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import aclosing
from typing import Final

import msgspec

from talaria.cluster.following import PeerClient, PeerUnreachable
from talaria.cluster.passed_events import BrokenStream
from talaria.core.clock import Clock
from talaria.core.cluster import Member
from talaria.core.errors import StoreError
from talaria.core.ids import OwnerId, TurnId
from talaria.core.tasks import Tasks, stop
from talaria.store.store import Store
from talaria.turns.feed import StateFeed, TurnChange

_log = logging.getLogger("talaria.cluster")
_LOOK_SECONDS: Final = 3.0  # between two looks at who is a member
PATH: Final = "/cluster/events"


class OpenTurns(msgspec.Struct, frozen=True, tag="open"):
    """The turns that a member has. Those that it had before and that are not among these are not its any
    more."""

    turns: tuple[TurnChange, ...]


class ChangedTurn(msgspec.Struct, frozen=True, tag="changed"):
    change: TurnChange


FeedLine = OpenTurns | ChangedTurn
_lines: msgspec.json.Decoder[FeedLine] = msgspec.json.Decoder(FeedLine)


def _decode(line: bytes) -> FeedLine:
    try:
        return _lines.decode(line)
    except msgspec.MsgspecError as error:
        raise BrokenStream(str(error)) from None


class OtherFeeds:
    """Reads the feeds of all other members while somebody listens here, and only then.

    A listener is told the turns that members have, then their changes. If a member cannot be reached, its
    last changes stand until it can be, or until another member has its turns.
    """

    def __init__(self, store: Store, feed: StateFeed, peers: PeerClient, owner: OwnerId) -> None:
        self._store = store
        self._cluster = store.cluster
        self._feed = feed
        self._peers = peers
        self._owner = owner
        self._clock: Clock = store.clock
        self._open: dict[OwnerId, dict[TurnId, TurnChange]] = {}
        self._task: asyncio.Task[None] | None = None
        self._tasks = Tasks()  # with those that are ending
        feed.on_listen, feed.elsewhere, feed.has_others = self._look_for_listeners, self, True

    def __iter__(self) -> Iterator[TurnChange]:
        """The turns of other members that are not over, as far as they are known now."""
        return iter([change for turns in self._open.values() for change in turns.values()])

    async def close(self) -> None:
        self._feed.on_listen = lambda: None
        await stop(*self._tasks)

    def _look_for_listeners(self) -> None:
        is_wanted = self._feed.has_own_listeners
        if is_wanted and self._task is None:
            self._task = self._tasks.start(self._run(), "feeds of other members")
        elif not is_wanted and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        """Read the feed of each living member, until cancelled."""
        readers: dict[OwnerId, asyncio.Task[None]] = {}
        try:
            while True:
                try:
                    members, now = await self._cluster.members(), self._clock.now()
                except StoreError as error:
                    _log.info("the members are not known for now: %s", error)
                else:
                    living = {each.owner: each for each in members if each.url and each.is_alive(now)}
                    living.pop(self._owner, None)
                    for owner in readers.keys() - living.keys():
                        readers.pop(owner).cancel()
                        self._open.pop(owner, None)
                    for owner in living.keys() - readers.keys():
                        readers[owner] = asyncio.create_task(self._read(living[owner]), name=f"feed {owner}")
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await stop(*readers.values())
            self._open.clear()

    async def _read(self, member: Member) -> None:
        while True:
            try:
                async with aclosing(self._peers.lines(member, PATH, _decode)) as lines:
                    async for line in lines:
                        await self._take(member.owner, line)
            except (PeerUnreachable, StoreError) as error:
                _log.info("the feed of %s is not read for now: %s", member.host, error)
            await asyncio.sleep(self._peers.timing.look_seconds)

    async def _take(self, owner: OwnerId, line: FeedLine) -> None:
        known = self._open.setdefault(owner, {})
        match line:
            case OpenTurns(turns=turns):
                gone = known.keys() - {change.id for change in turns}
                known.clear()
                for change in turns:
                    known[change.id] = change
                    self._feed.pass_on(change)
                for turn_id in gone:
                    await self._tell_end(turn_id)
            case ChangedTurn(change=change):
                known.pop(change.id, None)
                if not change.state.is_final:
                    known[change.id] = change
                self._feed.pass_on(change)

    async def _tell_end(self, turn_id: TurnId) -> None:
        """Tell that a turn is over, if it is, whose last change was missed."""
        record = await self._store.turn_record(turn_id)
        if record is not None and record.turn.state.is_final:
            at = record.turn.ended_at or self._clock.now()
            self._feed.pass_on(TurnChange.of(record.turn, at, "", record.spent))
