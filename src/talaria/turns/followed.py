"""Turns that another member of the cluster has, as live turns that this process feeds from there.

A channel uses such a turn like any other one. The turn is fed once somebody follows it or waits for it: from
the stream of the member that has it, and at the end from its row in the store. If the stream breaks, the row
is looked at again and again until the turn is over or has a member that can be reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from weakref import WeakValueDictionary

import msgspec

from talaria.cluster.following import PeerClient, PeerUnreachable
from talaria.cluster.signing import PassedEvent, StreamEnd, StreamHead
from talaria.core.clock import Clock
from talaria.core.cluster import Member, Wake
from talaria.core.errors import StoreError
from talaria.core.events import FINAL_EVENTS, Event, Reset
from talaria.core.ids import OwnerId, TurnId
from talaria.core.tasks import Tasks, sleep_until_woken, stop
from talaria.core.turns import Turn, TurnState
from talaria.store.store import ClusterStore, Store
from talaria.turns.live import LiveTurn, LiveTurns

_log = logging.getLogger("talaria.cluster")


class FollowedTurn(LiveTurn):
    """A turn that another member has. `begin` is called when somebody first follows it or waits for it.

    Nothing of it runs here, so it is in no lane, and stopping it is asked of its member: see
    `FollowedTurns.stop`.
    """

    def __init__(self, turn: Turn, clock: Clock, begin: Callable[[FollowedTurn], None]) -> None:
        self._begin: Callable[[FollowedTurn], None] | None = None
        super().__init__(turn, clock)
        self._begin = begin
        self._events.clear()
        self.is_resumed = False  # until the first `Reset`

    @property
    def settled(self) -> asyncio.Future[Turn]:
        if (begin := self._begin) is not None:
            self._begin = None
            begin(self)
        return self._settled

    @settled.setter
    def settled(self, future: asyncio.Future[Turn]) -> None:
        self._settled = future

    def see(self, state: TurnState, model: str) -> None:
        """Note what the turn's member tells of it."""
        self.model = model
        if not state.is_final:
            self.turn = msgspec.structs.replace(self.turn, state=state)

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def settle(self, turn: Turn) -> None:
        # Steps and costs are with the member that ran the turn, so channels read them from the store.
        self.is_resumed = True
        super().settle(turn)


class FollowedTurns:
    """The turns that this process follows, until `close`."""

    def __init__(
        self, store: Store, cluster: ClusterStore, live: LiveTurns, peers: PeerClient, owner: OwnerId
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._live = live
        self._peers = peers
        self._owner = owner
        self._clock = live.clock
        self._followed: WeakValueDictionary[TurnId, FollowedTurn] = WeakValueDictionary()
        self._tasks = Tasks()
        self._pauses: dict[TurnId, asyncio.Event] = {}
        live.observe(self._opened)

    def __len__(self) -> int:
        return len(self._tasks)

    def find(self, turn: Turn) -> LiveTurn:
        """Return the turn as all its local followers share it."""
        if (live := self._followed.get(turn.id)) is None:
            live = self._followed[turn.id] = FollowedTurn(turn, self._clock, self._begin)
        return live

    async def close(self) -> None:
        """Let all followed turns go; their followers are told nothing more."""
        await stop(*self._tasks)
        await self._peers.close()

    def relay(self, live: LiveTurn) -> None:
        """Feed the followers of a turn that this process had from the member that has it now."""
        self._tasks.start(self._relay(live, self.find(live.turn)), f"relay {live.turn.id}")

    async def _relay(self, live: LiveTurn, heir: LiveTurn) -> None:
        is_void = bool(live.turn.attempts)  # what was streamed before
        try:
            async with aclosing(heir.follow()) as events:
                async for _, event in events:
                    if isinstance(event, FINAL_EVENTS):
                        break
                    if is_void and not isinstance(event, Reset):
                        live.emit(Reset())
                    is_void = False
                    live.is_resumed = True
                    live.repeat(event)
            await asyncio.wait((heir.settled,))
        finally:
            live.end(heir.turn)

    async def stop(self, turn_id: TurnId, by: str) -> None:
        """Ask the member that has the turn to stop it. Durable: a member that takes the turn over does it.

        Raises `NotFound`.
        """
        asked = await self._cluster.ask_stop(turn_id, by)
        if asked.owner and asked.owner != self._owner:
            await self._cluster.wake(Wake.TURNS, asked.owner)

    async def is_away(self, turn: Turn) -> bool:
        """Return whether another member has the turn, which is not over."""
        if turn.state.is_final or self._live.get(turn.id) is not None:
            return False
        return await self._other_member(turn.id) is not None

    async def nudge(self, turn_id: TurnId) -> None:
        """Have the member that has the turn, if it is another one, look at its turns now. A failure costs a
        second, because members look each second anyway."""
        try:
            if (member := await self._other_member(turn_id)) is not None:
                await self._cluster.wake(Wake.TURNS, member.owner)
        except StoreError as error:
            _log.info("the member that has turn %s is not told: %s", turn_id, error)

    async def _other_member(self, turn_id: TurnId) -> Member | None:
        member = await self._cluster.member_of_turn(turn_id)
        return None if member is None or member.owner == self._owner else member

    # -- feeding --------------------------------------------------------------------------------------------

    def _begin(self, live: FollowedTurn) -> None:
        self._tasks.start(self._run(live), f"follow {live.turn.id}")

    async def _run(self, live: FollowedTurn) -> None:
        try:
            await self._feed(live)
        except Exception:  # the task's boundary: followers would wait for ever
            _log.exception("turn %s cannot be followed", live.turn.id)
        finally:
            if self._followed.get(live.turn.id) is live:
                del self._followed[live.turn.id]
            if not live.state.is_over:
                live.let_go()

    async def _feed(self, live: FollowedTurn) -> None:
        """Feed the turn until it is over, or deleted."""
        place = _Place()
        while True:
            try:
                record = await self._store.turn_record(live.turn.id)
                if record is None:
                    return
                live.turn = record.turn
                if record.turn.state.is_final:
                    live.settle(record.turn)
                    return
                is_told = await self._follow_member(live, place)
            except StoreError as error:
                _log.info("turn %s is not followed for now: %s", live.turn.id, error)
                is_told = False
            if not is_told:
                await self._pause(live.turn.id)

    async def _pause(self, turn_id: TurnId) -> None:
        """Wait for the next look, or until this process has the turn."""
        opened = self._pauses[turn_id] = asyncio.Event()
        try:
            if self._live.get(turn_id) is None:
                await sleep_until_woken(self._clock, self._peers.timing.look_seconds, opened)
        finally:
            del self._pauses[turn_id]

    def _opened(self, live: LiveTurn) -> None:
        if (pause := self._pauses.get(live.turn.id)) is not None:
            pause.set()

    async def _follow_member(self, live: FollowedTurn, place: _Place) -> bool:
        """Feed the turn from the member that has it, as long as that goes. Return whether there may be more
        to learn at once."""
        if (here := self._live.get(live.turn.id)) is not None:
            await self._follow_here(live, here, place)
            return True
        if (member := await self._other_member(live.turn.id)) is None:
            return False
        try:
            return await self._follow_there(live, member, place)
        except PeerUnreachable as error:
            _log.info("turn %s: %s", live.turn.id, error.user_text)
            return False

    async def _follow_here(self, live: FollowedTurn, here: LiveTurn, place: _Place) -> None:
        """Feed the turn from this process, which has taken it over."""
        place.enter(live, f"{self._owner}.{here.stream}")
        async with aclosing(here.follow(place.number)) as events:
            async for number, event in events:
                live.model = here.model
                place.take(live, number, event)

    async def _follow_there(self, live: FollowedTurn, member: Member, place: _Place) -> bool:
        """Return whether the turn is over."""
        lines = self._peers.turn_events(member, live.turn.id, place.stream, place.number)
        async with aclosing(lines) as stream:
            async for line in stream:
                match line:
                    case StreamHead():
                        place.enter(live, line.stream)
                        live.see(line.state, line.model)
                    case PassedEvent():
                        place.take(live, line.number, line.decode())
                    case StreamEnd():
                        return True
        return False


class _Place:
    """How far a turn was followed: up to the event `number` of a stream."""

    def __init__(self) -> None:
        self.stream = ""
        self.number = 0
        self._voids = False  # the events that followers have are of another stream

    def enter(self, live: FollowedTurn, stream: str) -> None:
        if stream != self.stream:
            self.stream, self.number, self._voids = stream, 0, live.has_events

    def take(self, live: FollowedTurn, number: int, event: Event | None) -> None:
        """Pass an event on, once, except for the last one. It comes with the turn's row. The first event of
        another stream makes those before it void."""
        if number <= self.number:
            return
        self.number = number
        if event is None or isinstance(event, FINAL_EVENTS):
            return
        if isinstance(event, Reset):
            live.is_resumed = True
        elif self._voids:
            live.is_resumed = True
            live.emit(Reset())
        self._voids = False
        live.repeat(event)
