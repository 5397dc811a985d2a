"""The part of the store's contract about delegates: awaited by their parent's turn, or in the background."""

from __future__ import annotations

import pytest

from contracts.store_orders import START, accepting, begun, ending, step
from talaria.core.delegates import Delegate, DelegateOutcome, DelegateTask, Report
from talaria.core.errors import IllegalMove, StaleFence
from talaria.core.ids import DelegateId
from talaria.core.ledger import Accepted, Commit
from talaria.core.turns import StepState, TurnState
from talaria.store.store import Store

DONE = DelegateOutcome("done", "42")


def handed(turn: Accepted, n: int = 1, index: int = 1, report: Report = Report.RESULT) -> Delegate:
    key = DelegateId(f"{turn.turn.id}.{n}-{index}")
    task = DelegateTask("Look.", ("read_file",))
    return Delegate(key, turn.turn.id, n, f"call_{n}", task, START, START + 60, report=report)


class StoreDelegatesSuite:
    async def test_turn_that_waits_for_delegates_gives_its_lease_back_and_can_be_joined(
        self, store: Store
    ) -> None:
        turn, lease = await begun(store)
        row, pending = handed(turn), (step(1, StepState.PENDING),)
        order = Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=pending, delegates=(row,))
        await store.commit(order)
        with pytest.raises(StaleFence):
            await store.commit(ending(turn, lease))
        joined = await store.accept(accepting(steers=turn.turn.id))
        assert joined.turn.merged_into == turn.turn.id
        assert await store.settle_delegate(row.id, DONE)
        assert not await store.settle_delegate(row.id, DelegateOutcome("failed", "no"))
        found = await store.find_delegate(row.id)
        assert found is not None and found.outcome == DONE
        apart = await store.accept(accepting(steers=turn.turn.id))
        assert apart.turn.merged_into is None, "it resumes"

    async def test_delegates_in_the_background_do_not_park_and_are_owed_until_reported(
        self, store: Store
    ) -> None:
        turn, lease = await begun(store)
        rows = tuple(handed(turn, index=index, report=Report.OWED) for index in (1, 2))
        pending = (step(1, StepState.PENDING),)
        order = Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=pending, background=rows)
        await store.commit(order)
        assert tuple(await store.owed_delegates()) == rows
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, background=rows))
        ended = (step(1, StepState.ENDED),)
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=ended))
        with pytest.raises(IllegalMove):
            await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, background=rows))
        await store.commit(ending(turn, lease))
        assert await store.settle_delegate(rows[0].id, DONE)
        assert len(await store.owed_delegates()) == 2
        assert await store.report_delegate(rows[0].id)
        assert not await store.report_delegate(rows[0].id)
        assert tuple(await store.owed_delegates()) == rows[1:]
        record = await store.turn_record(turn.turn.id)
        assert record is not None and record.turn.state is TurnState.DONE
