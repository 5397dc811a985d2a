"""Recovery: takes up the unsettled turns of processes that ended, at the start and while this one runs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from talaria.agent.journal import Journal
from talaria.cluster.leases import LeaseKeeper
from talaria.core.clock import Clock
from talaria.core.ids import ChatKey, TurnId
from talaria.core.ledger import Begin, TurnEnd
from talaria.core.questions import Question
from talaria.core.turns import Turn, TurnState
from talaria.store.store import Store
from talaria.turns.intake import is_ephemeral
from talaria.turns.lanes import Lanes

_log = logging.getLogger("talaria.turns")


def _any_turn(turn: Turn) -> bool:
    return True


class Recovery:
    """Puts unsettled turns back into their lanes.

    A turn that this process should not take up unasked is left alone until its chat is spoken to.
    """

    def __init__(self, store: Store, clock: Clock, keeper: LeaseKeeper, lanes: Lanes) -> None:
        self._store = store
        self._clock = clock
        self._keeper = keeper
        self._lanes = lanes
        self._takes_up: Callable[[Turn], bool] = _any_turn
        self._left: dict[ChatKey, list[Turn]] = {}
        self._ran: dict[TurnId, float] = {}  # seconds, of turns with a deadline of their own
        self._has_recovered = False

    async def recover(
        self,
        takes_up: Callable[[Turn], bool] = _any_turn,
        *,
        is_alone: bool,
    ) -> int:
        """Take up what earlier processes left unsettled and return how many turns that are.

        Turns for which `takes_up` is False are left alone. Only the holder of the home's lock may call this.
        With `is_alone` False other gateways may serve the same database, as on PostgreSQL, and nothing is
        taken up yet.
        """
        self._takes_up, count = takes_up, 0
        if is_alone:
            count = await self._take_up(await self._store.reclaim(self._keeper.owner))
        self._has_recovered = True
        return count

    async def adopt(self) -> int:
        """Take up what other processes on the same store have let go, and return how many turns that are."""
        lease_seconds = self._keeper.lease_seconds
        orphans = await self._store.orphans(self._keeper.owner, self._clock.now() - 2 * lease_seconds)
        known = {turn.id for turns in self._left.values() for turn in turns}
        return await self._take_up([turn for turn in orphans if turn.id not in known])

    async def run(self) -> None:
        """Adopt once in each lease's time, until cancelled. Nothing is adopted before `recover`."""
        while True:
            await self._clock.sleep(self._keeper.lease_seconds)
            if self._has_recovered:
                await self.adopt()

    def take_up_chat(self, chat_key: ChatKey) -> None:
        """Take up the chat's turns that were left alone, because the chat is spoken to."""
        if self._left:
            self._readmit(self._left.pop(chat_key, ()))

    def drain(self) -> None:
        self._left.clear()
        self._ran.clear()

    async def _take_up(self, unsettled: Sequence[Turn]) -> int:
        ours: list[Turn] = []
        for turn in unsettled:
            if self._lanes.live.get(turn.id) is not None:
                continue
            if is_ephemeral(turn):
                await self.cancel(turn)
                continue
            if seconds := await self.ran_before(turn):
                self._ran[turn.id] = seconds
            if self._takes_up(turn):
                ours.append(turn)
            else:
                self._left.setdefault(turn.chat_key, []).append(turn)
        return self._readmit(ours)

    def _readmit(self, unsettled: Sequence[Turn]) -> int:
        """Turns that had begun come first, because their session's log is in the middle of them. The others
        keep their order. A message that joined a turn is readmitted with it."""
        live, count = self._lanes.live, 0
        hosts = {turn.id for turn in unsettled if turn.merged_into is None}
        joined: defaultdict[TurnId | None, list[Turn]] = defaultdict(list)
        for turn in unsettled:
            joined[turn.merged_into].append(turn)
        for turn in sorted(unsettled, key=lambda turn: turn.attempts == 0):
            if turn.merged_into in hosts:
                continue
            resumed = live.open(turn)
            resumed.add_seconds(self._ran.pop(turn.id, 0.0))
            for steer in joined[turn.id]:
                resumed.steer(live.open(steer))
            self._lanes.put(resumed)
            count += 1
        if count:
            _log.info("resuming what another process left unsettled: %d", count)
        return count

    async def ran_before(self, turn: Turn) -> float:
        """Return for how many seconds a turn with a deadline of its own ran before; 0 for others."""
        if turn.inbound.order is None or not turn.inbound.order.deadline:
            return 0.0
        return ran_before(turn, await self._store.questions(turn.id), self._clock.now())

    async def cancel(self, turn: Turn) -> None:
        """Cancel a stateless call: its caller is gone."""
        end = TurnEnd(TurnState.CANCELLED)
        if turn.state is TurnState.ACCEPTED:
            await self._store.settle(turn.id, end)
            return
        began = await self._store.begin(Begin(turn.id, self._keeper.owner, self._keeper.lease_seconds))
        await Journal(self._store, began.session.id, turn.id, began.fence).commit(end=end)


def ran_before(turn: Turn, questions: Sequence[Question], now: float) -> float:
    """Return the seconds since a turn was begun, without those in which it waited for people. The time counts
    in which no process had it."""
    if turn.started_at is None:
        return 0.0
    seconds, at = 0.0, turn.started_at
    for question in sorted(questions, key=lambda each: each.asked_at):
        seconds += max(0.0, question.asked_at - at)
        until = min(now, question.expires_at)
        at = max(at, until if question.decision is None else question.decision.decided_at)
    return seconds + max(0.0, now - at)
