"""What `talaria why` tells: the story of a turn from the ledger, found by each of its names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.store_orders import (
    LEASE,
    ME,
    RIVAL,
    accepting,
    answered,
    approved,
    begun,
    ending,
    new_clock,
    parked,
    said,
    step,
)
from talaria.core.delivery import DeliveryResult, OutboxState
from talaria.core.errors import ErrorInfo, NotFound
from talaria.core.ids import ChatKey
from talaria.core.ledger import Begin, Commit, TurnEnd, UsageWrite
from talaria.core.messages import TokenUsage
from talaria.core.turns import StepKind, StepState, TurnState
from talaria.operations.turns import ExplainedTurn, explain_turn
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return new_clock()


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    async with await SqliteStore.open(tmp_path / "talaria.db", clock) as store:
        yield store


async def tell(store: SqliteStore, name: str) -> ExplainedTurn:
    return await explain_turn(store.histories, name)


def kinds(told: ExplainedTurn) -> list[str]:
    return [chapter.kind for chapter in told.story]


async def test_a_turn_is_told_from_its_message_to_its_delivered_reply(
    store: SqliteStore, clock: FakeClock
) -> None:
    first, first_lease = await begun(store)
    turn = await store.accept(accepting(key="chat-1:4711", address="room"))
    clock.advance(5)
    await store.commit(ending(first, first_lease))
    lease = await store.begin(Begin(turn.turn.id, ME, LEASE, said("hello")))
    session_id, turn_id = turn.turn.session_id, turn.turn.id
    clock.advance(1)
    await store.commit(
        Commit(
            session_id,
            lease.fence,
            turn_id,
            steps=(step(1, StepState.ENDED, StepKind.MODEL), step(2, StepState.PENDING)),
            usage=(UsageWrite(1, "p", "m", TokenUsage(100, 90, 7, 0)),),
        )
    )
    await store.commit(Commit(session_id, lease.fence, turn_id, steps=(step(2, StepState.STARTED),)))
    clock.advance(2)
    await store.commit(Commit(session_id, lease.fence, turn_id, steps=(step(2, StepState.ENDED),)))
    await store.commit(ending(turn, lease, reply="the answer"))
    (row,) = await store.outbox.due("http", 9)
    assert await store.outbox.claim(row, clock.now() + 30) is not None
    clock.advance(1)
    await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.SENT, platform_id="chat-1:4712"))

    told = await tell(store, turn_id)
    assert kinds(told) == [
        "accepted",
        "queued",
        "begun",
        "model",
        "tool",
        "tool",
        "cost",
        "done",
        "delivered",
    ]
    times = [chapter.at for chapter in told.story]
    assert times == sorted(times, key=lambda at: at or 0.0)
    texts = "\n".join(chapter.text for chapter in told.story)
    for part in (
        "Ada (u1)",
        "chat-1:4711",
        "behind 1 turn",
        str(ME),
        "100 tokens in",
        "the answer",
        "chat-1:4712",
    ):
        assert part in texts, part
    for name in ("chat-1:4711", "4711", "chat-1:4712", "4712", f"reply:{row.id}"):
        assert (await tell(store, name)).id == turn_id, name
    assert (told.state, told.reply, len(told.steps)) == (TurnState.DONE, "the answer", 2)


async def test_a_turn_that_was_taken_up_again_says_so(store: SqliteStore, clock: FakeClock) -> None:
    turn, _ = await begun(store)
    await store.reclaim(RIVAL)
    clock.advance(60)
    await store.begin(Begin(turn.turn.id, RIVAL, LEASE))
    told = await tell(store, turn.turn.id)
    assert kinds(told) == ["accepted", "begun", "interrupted", "begun", "running"]
    again = told.story[3]
    assert again.at == clock.now()
    assert "attempt 2" in again.text and RIVAL in again.text
    assert "without a word" in told.story[2].text


async def test_a_failure_and_a_reply_given_up_say_why(store: SqliteStore, clock: FakeClock) -> None:
    turn, lease = await begun(store, accepting(address="room"))
    error = ErrorInfo("model", "The model is gone.", "Choose another.")
    failed = TurnEnd(TurnState.FAILED, error.sentence(), error)
    await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=failed))
    (row,) = await store.outbox.due("http", 9)
    assert await store.outbox.claim(row, clock.now() + 30) is not None
    await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.FAILED, error="The bot was blocked."))
    told = await tell(store, turn.turn.id)
    assert kinds(told) == ["accepted", "begun", "failed", "undelivered"]
    assert "The model is gone. Choose another." in told.story[2].text
    assert "1 attempt" in told.story[3].text and "The bot was blocked." in told.story[3].text


async def test_of_several_turns_with_one_number_the_newest_is_told(store: SqliteStore) -> None:
    old = await store.accept(accepting(key="chat-1:7"))
    new = await store.accept(accepting(key="chat-2:7"))
    told = await tell(store, "7")
    assert (told.id, told.also) == (new.turn.id, (old.turn.id,))
    assert kinds(told)[-1] == "waiting"


async def test_a_message_and_its_edits_are_found_by_the_platforms_number(store: SqliteStore) -> None:
    said_first = await store.accept(accepting(key="m4711"))
    await store.accept(accepting(key="m47110"))
    edited = await store.accept(accepting(key="m4711e1700000000"))
    told = await tell(store, "4711")
    assert (told.id, told.also) == (edited.turn.id, (said_first.turn.id,))


@pytest.mark.parametrize("name", ["turn_nothing", "reply:99", "reply:x", "", "%", "':"])
async def test_a_name_of_nothing_is_not_found(store: SqliteStore, name: str) -> None:
    await store.accept(accepting(key="chat-1:7"))
    with pytest.raises(NotFound):
        await tell(store, name)


async def test_a_forgotten_turn_is_not_found(store: SqliteStore, clock: FakeClock) -> None:
    turn, lease = await begun(store, accepting(key="k:1"))
    await store.commit(ending(turn, lease))
    await store.retention.forget_turns(0, clock.now() + 1)
    for name in (turn.turn.id, "k:1", "1"):
        with pytest.raises(NotFound):
            await tell(store, name)


async def test_a_parked_turn_is_told_with_its_question_and_the_decision(
    store: SqliteStore, clock: FakeClock
) -> None:
    turn, _, (question,) = await parked(store)
    told = await tell(store, turn.turn.id)
    assert [line.text for line in told.story if line.kind in ("asked", "waiting")] == [
        "Step 1: Asked a person whether it may run: “Run `rm -r build`?”",
        "Parked: waits for a person to decide.",
    ]
    clock.advance(60)
    await store.decide(question.id, approved(clock.now()))
    told = await tell(store, turn.turn.id)
    (line,) = (line for line in told.story if line.kind == "decided")
    assert (line.at, line.text) == (clock.now(), "Step 1: u1 approved it.")


async def test_recent_turns_are_listed_newest_first_and_forgotten_ones_are_not(
    store: SqliteStore, clock: FakeClock
) -> None:
    turns = [
        (await answered(store, accepting(chat=ChatKey(f"agent:main:test:dm:{n}")))).turn
        for n in ("a", "b", "bb")
    ]
    ids = [turn.id for turn in turns]
    assert [turn.id for turn in await store.histories.recent(10)] == ids[::-1]
    assert [turn.id for turn in await store.histories.recent(2)] == ids[:0:-1]
    assert [turn.id for turn in await store.histories.recent(10, "agent:main:test:dm:b")] == ids[:0:-1]
    assert [turn.id for turn in await store.recent_of_session(turns[1].session_id, 10)] == [ids[1]]
    await store.retention.forget_turns(0, clock.now() + 1)
    assert await store.histories.recent(10) == []


async def test_what_is_an_estimate_is_called_one(store: SqliteStore) -> None:
    turn, lease = await begun(store)
    session_id, turn_id = turn.turn.session_id, turn.turn.id
    usage = (
        UsageWrite(1, "p", "m", TokenUsage(100, 0, 7), 3_000_000, attempt=1, is_estimate=True),
        UsageWrite(1, "p", "m", TokenUsage(90, 0, 5), 2_000_000, attempt=2),
    )
    await store.commit(Commit(session_id, lease.fence, turn_id, usage=usage))
    await store.commit(ending(turn, lease))
    told = await tell(store, turn_id)
    (line,) = (chapter.text for chapter in told.story if chapter.kind == "estimate")
    assert line == (
        "Step 1: 1 of 2 calls to p/m broke off or reported no usage. That part of what is counted "
        "(190 tokens in, 12 out, $0.005) is an estimate."
    )
    record = await store.turn_record(turn_id)
    assert record is not None and (record.spent.calls, record.spent.estimated) == (2, 1)
