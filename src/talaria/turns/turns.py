"""The turns of this process: one door for channels to bring messages, follow them and stop them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from talaria.agent.journal import Journal
from talaria.core.errors import NotFound
from talaria.core.events import Event
from talaria.core.ids import SessionId, TurnId
from talaria.core.ledger import Begin, TurnEnd
from talaria.core.turns import Inbound, Turn, TurnState
from talaria.turns.commanding import CommandRunner
from talaria.turns.intake import Intake, Receipt, StatelessCall, is_ephemeral
from talaria.turns.live import LiveTurn, StopReason
from talaria.turns.mailbox import Mailbox
from talaria.turns.parts import Parts
from talaria.turns.runner import Runner
from talaria.turns.settled import final_event

_log = logging.getLogger("talaria.turns")


class Turns:
    """Opened by `recover`, closed by `drain`. In between, what is accepted is answered."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._mailbox = Mailbox(self._run)
        self._runner = Runner(parts, CommandRunner(parts, self._mailbox.waiting))
        self._intake = Intake(parts, self._mailbox)

    async def recover(self) -> int:
        """Take up what earlier processes left unsettled, then open the intake.

        What had begun comes first, since its session's log is in the middle of it; the rest in its old order.
        Stateless calls are cancelled instead: whoever made them is gone. Answers how many were taken up.
        """
        count = 0
        unsettled = await self._parts.store.reclaim(self._parts.keeper.owner)
        for turn in sorted(unsettled, key=lambda turn: turn.attempts == 0):
            if is_ephemeral(turn):
                await self._cancel_orphan(turn)
            else:
                self._intake.readmit(turn)
                count += 1
        if count:
            _log.info("resuming what an earlier process left unsettled: %d", count)
        self._intake.open()
        return count

    async def drain(self, deadline: float) -> int:
        """Refuse what is new, let what runs finish until `deadline` seconds, leave the rest resumable."""
        self._intake.close()
        left = await self._mailbox.drain(deadline)
        if left:
            _log.warning("what did not finish in time is resumed by the next start: %d", left)
        for live in self._parts.live:
            live.abandon()
            self._parts.live.close(live)
        return left

    # -- what channels do -----------------------------------------------------------------------------------

    async def submit(self, inbound: Inbound) -> Receipt:
        """Durable when it returns: the message will be answered, or its failure told. See `Intake.submit`."""
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
        story = await self._parts.store.story(turn_id)
        if story is None:
            raise NotFound(f"There is no turn {turn_id}.", "Check the id; old turns may have been pruned.")
        return Receipt(story.turn, self._parts.live.get(turn_id))

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
        if receipt.live is None:
            return receipt.turn
        live = receipt.live
        live.stop(StopReason.USER)
        if not live.turn.attempts and self._mailbox.withdraw(live) and not self._mailbox.put_past(live):
            live.abandon()
        await asyncio.wait((live.settled,))
        return live.turn

    def is_owed(self, session_id: SessionId) -> bool:
        """Whether a turn of this session runs or waits here."""
        return any(live.turn.session_id == session_id for live in self._parts.live)

    async def _run(self, live: LiveTurn) -> None:
        await self._runner.run(live)

    async def _cancel_orphan(self, turn: Turn) -> None:
        end = TurnEnd(TurnState.CANCELLED)
        if turn.state is TurnState.ACCEPTED:
            await self._parts.store.settle(turn.id, end)
            return
        keeper = self._parts.keeper
        began = await self._parts.store.begin(Begin(turn.id, keeper.owner, keeper.lease_seconds))
        await Journal(self._parts.store, began.session.id, turn.id, began.fence).commit(end=end)
