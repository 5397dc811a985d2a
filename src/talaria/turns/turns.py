"""The turns of this process: one door for channels to bring messages, follow them and stop them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from talaria.agent.journal import Journal
from talaria.core.errors import NotFound, StoreError
from talaria.core.events import Event
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.ledger import Begin, TurnEnd
from talaria.core.sessions import Session
from talaria.core.turns import Inbound, Turn, TurnState
from talaria.turns.commanding import CommandRunner
from talaria.turns.ending import end_session
from talaria.turns.intake import Intake, Receipt, StatelessCall, is_ephemeral
from talaria.turns.live import LiveTurn, StopReason
from talaria.turns.mailbox import Mailbox
from talaria.turns.parts import Parts
from talaria.turns.runner import Runner
from talaria.turns.settled import final_event

_log = logging.getLogger("talaria.turns")
_WATCH_SECONDS = 5.0


class Turns:
    """Opened by `recover`, closed by `drain`. In between, what is accepted is answered."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._mailbox = Mailbox(self._run)
        self._runner = Runner(parts, CommandRunner(parts, self._mailbox.waiting))
        self._intake = Intake(parts, self._mailbox)
        self._left: dict[ChatKey, list[Turn]] = {}

    async def recover(self) -> int:
        """Take up what earlier processes left unsettled, then open the intake.

        What had begun comes first, since its session's log is in the middle of it; the rest in its old order.
        Stateless calls are cancelled instead: whoever made them is gone. What is not for this process to take
        up stays as it is until its chat is spoken to. Answers how many were taken up.
        """
        count = await self._take_up(await self._parts.store.reclaim(self._parts.keeper.owner))
        self._intake.open()
        return count

    async def adopt(self) -> int:
        """Take up what other processes on the same store have let go of; how many."""
        parts, keeper = self._parts, self._parts.keeper
        left = await parts.store.orphans(keeper.owner, parts.clock.now() - 2 * keeper.lease_seconds)
        known = {turn.id for turns in self._left.values() for turn in turns}
        return await self._take_up(
            [turn for turn in left if parts.live.get(turn.id) is None and turn.id not in known]
        )

    async def watch_orphans(self) -> None:
        """Adopts with the rhythm of leases, until cancelled."""
        while True:
            await self._parts.clock.sleep(self._parts.keeper.lease_seconds)
            await self.adopt()

    async def _take_up(self, unsettled: Sequence[Turn]) -> int:
        ours: list[Turn] = []
        for turn in unsettled:
            if is_ephemeral(turn):
                await self._cancel_orphan(turn)
            elif self._parts.takes_up(turn):
                ours.append(turn)
            else:
                self._left.setdefault(turn.chat_key, []).append(turn)
        return self._readmit(ours)

    def _readmit(self, unsettled: Sequence[Turn]) -> int:
        count = 0
        hosts = {turn.id for turn in unsettled if turn.merged_into is None}
        for turn in sorted(unsettled, key=lambda turn: turn.attempts == 0):
            if turn.merged_into not in hosts:
                self._intake.readmit(turn, [steer for steer in unsettled if steer.merged_into == turn.id])
                count += 1
        if count:
            _log.info("resuming what another process left unsettled: %d", count)
        return count

    async def drain(self, deadline: float) -> int:
        """Refuse what is new, let what runs finish until `deadline` seconds, leave the rest resumable."""
        self._intake.close()
        self._left.clear()
        self._parts.arrivals.let_go()
        left = await self._mailbox.drain(deadline)
        self._runner.drain()
        if left:
            _log.warning("what did not finish in time is resumed by the next start: %d", left)
            await self._yield()
        for live in self._parts.live:
            live.abandon()
            self._parts.live.close(live)
        return left

    # -- what channels do -----------------------------------------------------------------------------------

    async def submit(self, inbound: Inbound) -> Receipt:
        """Durable when it returns: the message will be answered, or its failure told. See `Intake.submit`."""
        self._readmit(self._left.pop(inbound.chat_key, ()))
        return await self._intake.submit(inbound)

    async def call(self, call: StatelessCall) -> Receipt:
        return await self._intake.call(call)

    async def wait(self, receipt: Receipt, seconds: float | None = None) -> Turn:
        """The turn when it is settled, or as it stands after `seconds`. Leaving early stops nothing."""
        live = receipt.live
        if live is None:
            return receipt.turn
        if not live.settled.done():
            await asyncio.wait((live.settled,), timeout=seconds)
        return live.turn

    async def find(self, turn_id: TurnId) -> Receipt:
        """Raises `NotFound`."""
        live = self._parts.live.get(turn_id)
        if live is not None:
            return Receipt(live.turn, live)
        record = await self._parts.store.turn_record(turn_id)
        if record is None:
            raise NotFound(f"There is no turn {turn_id}.", "Check the id; old turns may have been pruned.")
        return Receipt(record.turn, self._parts.live.get(turn_id))

    async def follow(self, receipt: Receipt, after: int = 0) -> AsyncGenerator[tuple[int, Event], None]:
        """Numbered events from `after` on, to the final one; of a settled turn only the final one, and of one
        that another process has none."""
        if receipt.live is None:
            if receipt.turn.state.is_final:
                yield after + 1, final_event(receipt.turn)
            return
        async with aclosing(receipt.live.follow(after)) as events:
            async for item in events:
                yield item

    async def cancel(self, receipt: Receipt) -> Turn:
        """Ask the turn to stop and wait until it has. A settled turn stays as it is."""
        self._readmit(self._left.pop(receipt.turn.chat_key, ()))
        live = receipt.live or self._parts.live.get(receipt.turn.id)
        if live is None:
            return receipt.turn
        live.stop(StopReason.USER)
        if not live.turn.attempts and self._mailbox.withdraw(live) and not self._mailbox.put_past(live):
            live.abandon()
        await asyncio.wait((live.settled,))
        return live.turn

    async def end(self, session_id: SessionId) -> Session:
        """End the session. Raises `LeaseHeld` while a turn of it runs or waits; see `ending.end_session`."""
        return await end_session(self._parts.store, session_id, self._parts.on_end)

    async def watch(self) -> None:
        """Stops what runs longer than it may, until cancelled; its sender is told."""
        parts = self._parts
        while parts.turn_seconds:
            await parts.clock.sleep(min(_WATCH_SECONDS, parts.turn_seconds / 4))
            latest = parts.clock.elapsed() - parts.turn_seconds
            for live in parts.live:
                if live.began_at is not None and live.began_at <= latest and live.reason is None:
                    _log.warning("turn %s takes too long and is stopped", live.turn.id)
                    live.stop(StopReason.DEADLINE)

    async def _run(self, live: LiveTurn) -> None:
        try:
            await self._runner.run(live)
        finally:
            left, live.steers = live.steers, []
            if live.turn.state.is_final:
                self._intake.free(left)
            else:
                for steer in left:
                    self._parts.live.close(steer)
                    steer.abandon()

    async def _yield(self) -> None:
        """So that the next process can go on at once, and does not take this end for a crash."""
        try:
            await self._parts.store.yield_turns(self._parts.keeper.owner)
        except StoreError as error:
            _log.error("the leases of this process could not be given back: %s", error)

    async def _cancel_orphan(self, turn: Turn) -> None:
        end = TurnEnd(TurnState.CANCELLED)
        if turn.state is TurnState.ACCEPTED:
            await self._parts.store.settle(turn.id, end)
            return
        keeper = self._parts.keeper
        began = await self._parts.store.begin(Begin(turn.id, keeper.owner, keeper.lease_seconds))
        await Journal(self._parts.store, began.session.id, turn.id, began.fence).commit(end=end)
