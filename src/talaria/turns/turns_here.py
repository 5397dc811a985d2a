"""The turns that are for this member of a cluster: finds them, puts them into lanes, and takes up those of
dead members.

A turn may have been accepted by another member, which then sends a wake-up. The rows count, not the wake-up:
they are looked at each second too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

import msgspec

from talaria.cluster.membership import Membership
from talaria.core.cluster import Waiting, Wake
from talaria.core.errors import StoreError
from talaria.core.ids import TurnId
from talaria.core.tasks import sleep_until_woken
from talaria.core.turns import Turn, TurnState
from talaria.turns.command_turns import ANSWER
from talaria.turns.decisions import Decisions
from talaria.turns.intake import Intake, is_ephemeral
from talaria.turns.lanes import Lanes
from talaria.turns.live import LiveTurn
from talaria.turns.recovery import Recovery
from talaria.turns.states import LiveState

_log = logging.getLogger("talaria.turns")
LOOK_SECONDS = 1.0
_RETRY_SECONDS = 0.2


class TurnsHere:
    """The rows of the turns that are for this member, compared with the live turns again and again.

    - An unknown turn is opened and put into its lane, in the order of acceptance. A message that joined a
      turn joins it here; one that answers a parked turn's question is passed on as the answer.
    - A turn that a person wants stopped is stopped, and a parked turn goes on when its questions are decided.
    - A turn that waits here although it is for another member now is let go.

    Chats of dead members are adopted. Nothing is looked at while this member is out. While it drains, it
    takes up only messages that join turns that still run here.
    """

    def __init__(
        self,
        cluster: Membership,
        lanes: Lanes,
        intake: Intake,
        decisions: Decisions,
        recovery: Recovery,
    ) -> None:
        self._cluster = cluster
        self._lanes = lanes
        self._live = lanes.live
        self._intake = intake
        self._decisions = decisions
        self._recovery = recovery
        self._clock = lanes.live.clock
        self._looking = asyncio.Lock()
        self._woken = asyncio.Event()
        self._adopts_at = 0.0  # `Clock.elapsed`
        self._is_open = False
        self._opened: set[TurnId] = set()  # since the current look began
        self._unplaced: set[TurnId] = set()  # opened since the last look began, so older ones may be unknown
        self._live.observe(self._note_opened)
        cluster.on_wake(Wake.TURNS, self._woken.set)
        cluster.on_wake(Wake.MEMBERS, self._look_at_members)
        cluster.on_in(self._look_at_members)

    def _note_opened(self, live: LiveTurn) -> None:
        self._opened.add(live.turn.id)
        self._unplaced.add(live.turn.id)

    def _look_at_members(self) -> None:
        self._adopts_at = 0.0
        self._woken.set()

    # -- looking --------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to look."""
        self._is_open = True
        self._woken.set()

    async def run(self) -> None:
        """Look and adopt each second and when woken, until cancelled."""
        while True:
            self._woken.clear()
            if self._is_open and not self._cluster.is_out:
                try:
                    await self._adopt()
                    await self.look()
                except StoreError as error:
                    _log.debug("the turns for this member were not looked at: %s", error)
            await sleep_until_woken(self._clock, LOOK_SECONDS, self._woken)

    def is_placed(self, live: LiveTurn) -> bool:
        """Return whether all turns are known that were accepted before this one, so that it may begin."""
        return live.began is not None or live.turn.id not in self._unplaced or is_ephemeral(live.turn)

    def doubt(self, turns: Iterable[LiveTurn]) -> None:
        """Find the turns before these again, because one was let go, as while this member was out."""
        self._unplaced.update(live.turn.id for live in turns)

    async def place(self, live: LiveTurn) -> None:
        """Find the turns that were accepted before this one. Waits while the store fails."""
        while not self.is_placed(live):
            await self._cluster.wait_until_in()
            try:
                await self.look()
            except StoreError as error:
                _log.debug("turn %s waits for a look at the turns before it: %s", live.turn.id, error)
                await self._clock.sleep(_RETRY_SECONDS)

    async def look(self) -> int:
        """Compare the rows with the live turns, and return how many were taken up. Raises `StoreError`."""
        async with self._looking:
            known = {live.turn.id for live in self._live}
            self._opened, unplaced = set(), set(self._unplaced)
            rows = await self._cluster.store.waiting_here(self._cluster.owner)
            count = await self._compare(rows, known, unplaced)
            self._unplaced -= unplaced  # not before: a lane that is at work asks meanwhile
            return count

    async def _compare(self, rows: Sequence[Waiting], known: set[TurnId], unplaced: set[TurnId]) -> int:
        """`known` are the turns that were live before the rows were read, `unplaced` those of them that were
        opened since the last look."""
        self._let_go({row.turn.id for row in rows}, known)
        skipped = known | self._opened | self._intake.accepting
        fresh = [row.turn for row in rows if row.turn.id not in skipped and self._is_wanted(row.turn)]
        for turn in fresh:
            await self._take_up(turn)
        if fresh:
            _log.info("taken up turns that others accepted or left: %d", len(fresh))
        self._unplaced -= {turn.id for turn in fresh}
        self._lanes.arrange({row.turn.id: place for place, row in enumerate(rows)})
        old = {turn.id for turn in fresh}
        await self._pass_answers([row.turn for row in rows], old | unplaced)
        for row in rows:
            if (live := self._live.get(row.turn.id)) is not None:
                await self._heed(live, row, is_fresh=row.turn.id in old)
        return len(fresh)

    def _is_wanted(self, turn: Turn) -> bool:
        """Return whether to take the turn up. While it drains, only what joins a running one."""
        if not self._cluster.is_draining:
            return True
        return turn.merged_into is not None and self._live.get(turn.merged_into) is not None

    def _let_go(self, here: set[TurnId], known: set[TurnId]) -> None:
        """Let go of turns that wait here and are not for this member any more, or are over."""
        for turn_id in known - here:
            live = self._live.get(turn_id)
            if live is None or is_ephemeral(live.turn):
                continue
            if self._lanes.withdraw(live) or live.state is LiveState.PARKED:
                _log.info("turn %s is not for this member any more", turn_id)
                self._live.let_go(live)

    async def _take_up(self, turn: Turn) -> None:
        if is_ephemeral(turn):
            await self._cancel(turn)
            return
        if turn.merged_into is not None:
            live = self._live.open(turn)
            host = self._live.get(turn.merged_into)
            if host is not None and not host.state.is_over:
                host.steer(live)
            else:
                self._lanes.put_freed(live)
            return
        if not turn.command and not turn.attempts and self._intake.answers(turn.inbound):
            turn = msgspec.structs.replace(turn, command=ANSWER)
        ran_seconds = await self._recovery.ran_before(turn)
        live = self._live.open(turn)
        live.add_seconds(ran_seconds)
        self._lanes.put(live)

    async def _pass_answers(self, turns: Sequence[Turn], new: set[TurnId]) -> None:
        """Let the first new message of a chat that answers a waiting turn's question be the answer. It was
        not known as one when it came, because this process had not parked that turn yet."""
        asking = {turn.chat_key: turn for turn in turns if turn.state is TurnState.WAITING}
        for turn in turns:
            parked, live = asking.get(turn.chat_key), self._live.get(turn.id)
            if parked is None or live is None:
                continue
            if live.turn.command == ANSWER:  # it is on its way
                del asking[turn.chat_key]
            elif turn.id in new and not turn.command and await self._decisions.awaits(parked, turn):
                del asking[turn.chat_key]
                if self._lanes.withdraw(live):
                    live.turn = msgspec.structs.replace(live.turn, command=ANSWER)
                    self._lanes.put(live)

    async def _cancel(self, turn: Turn) -> None:
        """End a stateless call of a dead member. If that fails, the next look tries again."""
        try:
            await self._recovery.cancel(turn)
        except StoreError as error:
            _log.info("the stateless call %s is not ended yet: %s", turn.id, error)

    async def _heed(self, live: LiveTurn, row: Waiting, *, is_fresh: bool) -> None:
        """Stop the turn, or let it go on, as people want. Decisions that a turn brings along are old."""
        if row.stop_asked:
            self._lanes.stop(live)
        elif row.decided > live.decisions:
            await self._decisions.take_in(live, is_news=not is_fresh)

    # -- adopting -------------------------------------------------------------------------------------------

    async def _adopt(self) -> None:
        """Take the chats of dead members over, once a second and when one has left. Their turns are found by
        the next look."""
        now = self._clock.elapsed()
        if now < self._adopts_at or self._lanes.is_held or self._cluster.is_draining:
            return
        self._adopts_at = now + LOOK_SECONDS
        adopted = await self._cluster.store.adopt(self._cluster.here)
        for chat_key in adopted.lost:
            self._cluster.chats.note_lost(chat_key)
        await self._intake.requests.take_over(adopted.turns)
