"""The turns that this process is to run: finds them in the store, and puts them into lanes.

At the start these are the turns that earlier processes left unsettled. Later they are turns that another
member of the cluster accepted for this one, or that a dead one left. Wake-ups only hasten a look: the rows of
the store decide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from talaria.agent.journal import Journal
from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.membership import LOOK_SECONDS, LoneGateway, Membership
from talaria.core.cluster import Waiting, Wake
from talaria.core.errors import StoreError
from talaria.core.ids import ChatKey, TurnId
from talaria.core.ledger import Begin, TurnEnd
from talaria.core.questions import Question
from talaria.core.tasks import sleep_until_woken
from talaria.core.turns import Turn, TurnState
from talaria.store.store import Store
from talaria.turns.command_turns import ANSWER
from talaria.turns.intake import Intake, is_ephemeral
from talaria.turns.lanes import Lanes
from talaria.turns.live import LiveTurn
from talaria.turns.questions import Decisions
from talaria.turns.states import LiveState

_log = logging.getLogger("talaria.turns")
_RETRY_SECONDS = 0.2
_Found: TypeAlias = tuple[Turn, float]  # with the seconds for which it ran before, if it has a deadline


class TurnsHere:
    """The rows of the turns that are for this process, compared with the live turns again and again.

    - An unknown turn is opened and put into its lane: turns that have begun first, because their session's
      log is in the middle of them, then in the order of acceptance. A message that joined a turn joins it
      here; a message that answers a parked turn's question is passed on as the answer. A stateless call is
      cancelled, because its caller is gone.
    - A turn that a person wants stopped is stopped, and a parked turn continues when its questions are
      decided.
    - A turn that waits here although it is for another member now is let go.

    `cluster` says which rows these are. Nothing is looked at before `open`, or while this member is out.
    While it drains, it takes up only messages that join turns that still run here.
    """

    def __init__(
        self,
        store: Store,
        keeper: LeaseKeeper,
        cluster: Membership | LoneGateway,
        lanes: Lanes,
        *,
        intake: Intake,
        decisions: Decisions,
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._cluster = cluster
        self._lanes = lanes
        self._live = lanes.live
        self._intake = intake
        self._decisions = decisions
        self._clock = lanes.live.clock
        self._looking = asyncio.Lock()
        self._woken = asyncio.Event()
        self._adopts_at = 0.0  # `Clock.elapsed`
        self._is_open = False
        self._takes_up: Callable[[Turn], bool] = lambda turn: True
        self._left: dict[ChatKey, list[_Found]] = {}  # turns that are not taken up unasked
        self._opened: set[TurnId] = set()  # since the current look began
        self._unplaced: set[TurnId] = set()  # opened since the last look began, so older ones may be unknown
        if isinstance(cluster, Membership):
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

    async def open(self, takes_up: Callable[[Turn], bool]) -> int:
        """Begin to look, and return how many turns were taken up at once.

        Turns for which `takes_up` is False are left alone until their chat is spoken to. Raises `StoreError`.
        """
        self._takes_up, self._is_open = takes_up, True
        if not self._cluster.has_others:
            return await self.look()
        self._woken.set()
        return 0

    async def run(self) -> None:
        """Look and adopt regularly and when woken, until cancelled."""
        while True:
            await sleep_until_woken(self._clock, self._cluster.look_seconds, self._woken)
            self._woken.clear()
            if self._is_open and not self._cluster.is_out:
                try:
                    await self._adopt()
                    await self.look()
                except StoreError as error:
                    _log.debug("the turns for this gateway were not looked at: %s", error)

    def take_up_chat(self, chat_key: ChatKey) -> None:
        """Take up the chat's turns that were left alone, because the chat is spoken to."""
        if self._left:
            self._put(self._left.pop(chat_key, ()))

    def drain(self) -> None:
        self._left.clear()

    def is_placed(self, live: LiveTurn) -> bool:
        """Return whether all turns are known that were accepted before this one, so that it may begin."""
        return live.began is not None or live.turn.id not in self._unplaced or is_ephemeral(live.turn)

    def doubt(self, turns: Iterable[LiveTurn]) -> None:
        """Find the turns before these again, because one was let go, as while this member was out."""
        if self._cluster.has_others:
            self._unplaced.update(live.turn.id for live in turns)

    async def place(self, live: LiveTurn) -> None:
        """Find the turns that were accepted before this one. Waits while the store fails."""
        while not self.is_placed(live):
            await self._keeper.wait_until_in()
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
            rows = await self._cluster.find_turns()
            count = await self._compare(rows, known, unplaced)
            self._unplaced -= unplaced  # not before: a lane that is at work asks meanwhile
            return count

    async def _compare(self, rows: Sequence[Waiting], known: set[TurnId], unplaced: set[TurnId]) -> int:
        """`known` are the turns that were live before the rows were read, `unplaced` those of them that were
        opened since the last look."""
        if self._cluster.has_others:
            self._let_go({row.turn.id for row in rows}, known)
        elif not rows:
            return 0
        fresh = await self._take_up([row.turn for row in rows], known)
        self._unplaced -= fresh
        self._lanes.arrange({row.turn.id: place for place, row in enumerate(rows)})
        await self._pass_answers([row.turn for row in rows], fresh | unplaced)
        for row in rows:
            if (live := self._live.get(row.turn.id)) is not None:
                await self._heed(live, row, is_fresh=row.turn.id in fresh)
        return len(fresh)

    def _let_go(self, here: set[TurnId], known: set[TurnId]) -> None:
        """Let go of turns that wait here and are not for this member any more, or are over."""
        for turn_id in known - here:
            live = self._live.get(turn_id)
            if live is None or is_ephemeral(live.turn):
                continue
            if self._lanes.withdraw(live) or live.state is LiveState.PARKED:
                _log.info("turn %s is not for this member any more", turn_id)
                self._live.let_go(live)

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

    async def _heed(self, live: LiveTurn, row: Waiting, *, is_fresh: bool) -> None:
        """Stop the turn, or let it go on, as people want. Decisions that a turn brings along are old."""
        if row.stop_asked:
            self._lanes.stop(live)
        elif row.decided > live.decisions:
            await self._decisions.take_in(live, is_news=not is_fresh)

    # -- taking up ------------------------------------------------------------------------------------------

    async def _take_up(self, turns: Sequence[Turn], known: set[TurnId]) -> set[TurnId]:
        """Open the turns that are not known, and return which these were."""
        skipped = known | self._opened | self._intake.accepting
        skipped |= {turn.id for left in self._left.values() for turn, _ in left}
        fresh = list[_Found]()
        for turn in turns:
            if turn.id in skipped or not self._is_wanted(turn):
                continue
            if is_ephemeral(turn):
                await self._cancel(turn)
                continue
            found = (turn, await self._ran_before(turn))
            if self._takes_up(turn):
                fresh.append(found)
            else:
                self._left.setdefault(turn.chat_key, []).append(found)
        self._put(fresh)
        if fresh:
            _log.info("resuming turns that other processes left or accepted: %d", len(fresh))
        return {turn.id for turn, _ in fresh}

    def _is_wanted(self, turn: Turn) -> bool:
        """Return whether to take the turn up. While this member drains, only messages that join a running
        turn are."""
        if not self._cluster.is_draining:
            return True
        return turn.merged_into is not None and self._live.get(turn.merged_into) is not None

    def _put(self, turns: Sequence[_Found]) -> None:
        parked = {live.turn.chat_key for live in self._live if live.state is LiveState.PARKED}
        for turn, ran_seconds in sorted(turns, key=lambda found: found[0].attempts == 0):
            if turn.merged_into is None:
                is_new = turn.chat_key in parked and not turn.command and not turn.attempts
                is_answer = is_new and self._intake.answers(turn.inbound)
                live = self._live.open(msgspec.structs.replace(turn, command=ANSWER) if is_answer else turn)
                live.add_seconds(ran_seconds)
                self._lanes.put(live)
        for turn, _ in turns:
            if turn.merged_into is not None:
                live, host = self._live.open(turn), self._live.get(turn.merged_into)
                if host is not None and not host.state.is_over:
                    host.steer(live)
                else:
                    self._lanes.put_freed(live)

    async def _ran_before(self, turn: Turn) -> float:
        """Return for how many seconds a turn with a deadline of its own ran before; 0 for others."""
        if turn.inbound.order is None or not turn.inbound.order.deadline:
            return 0.0
        return ran_before(turn, await self._store.questions(turn.id), self._clock.now())

    async def _cancel(self, turn: Turn) -> None:
        """End a stateless call of a dead process. If that fails, the next look tries again."""
        end = TurnEnd(TurnState.CANCELLED)
        try:
            if turn.state is TurnState.ACCEPTED:
                await self._store.settle(turn.id, end)
                return
            began = await self._store.begin(Begin(turn.id, self._keeper.owner, self._keeper.lease_seconds))
            await Journal(self._store, began.session.id, turn.id, began.fence).commit(end=end)
        except StoreError as error:
            _log.info("the stateless call %s is not ended yet: %s", turn.id, error)

    async def _adopt(self) -> None:
        """Take over the chats of dead members, once a second and when one has left. Their turns are found by
        the next look."""
        now, cluster = self._clock.elapsed(), self._cluster
        if isinstance(cluster, LoneGateway) or now < self._adopts_at:
            return
        if not self._lanes.is_held and not cluster.is_draining:
            self._adopts_at = now + LOOK_SECONDS
            await self._intake.requests.take_over(await cluster.adopt())


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
