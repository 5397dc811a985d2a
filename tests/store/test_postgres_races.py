"""Orders side by side on PostgreSQL, as two gateways give them: each is carried out as if it were alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

from contracts.store_orders import (
    CHAT,
    LEASE,
    ME,
    OTHER_CHAT,
    RIVAL,
    accepting,
    approved,
    begun,
    ending,
    parked,
    pinned,
    said,
)
from talaria.core.access import CodeHash, PairingLimits, Person, RequestOpened, RequestPairing, RequestsFull
from talaria.core.delivery import OutboxRow
from talaria.core.errors import LeaseHeld, NotFound, SessionOwes, TalariaError
from talaria.core.ids import ChatKey, JobId, SessionId
from talaria.core.jobs import AddJob, AdvanceJob, ClaimSlots, Every, JobOrigin, JobPlan, NewSlot
from talaria.core.ledger import Begin, Binding, Commit
from talaria.core.messages import AssistantMessage
from talaria.core.spending import Cap, Reserve, Scope, SpendingQuery
from talaria.core.turns import Sender
from talaria.store.postgres.store import PostgresStore
from talaria.testing.clock import FakeClock

T = TypeVar("T")
Stores = tuple[PostgresStore, PostgresStore]


@pytest.fixture
async def stores(postgres_url: str, clock: FakeClock) -> AsyncIterator[Stores]:
    """Two gateways on one database."""
    async with (
        await PostgresStore.open(postgres_url, clock, connections=6) as one,
        await PostgresStore.open(postgres_url, clock, connections=6) as two,
    ):
        yield one, two


async def at_once(*work: Awaitable[T]) -> list[T | TalariaError]:
    """The results and refusals. Anything else is an error of the test."""
    found = await asyncio.gather(*work, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, TalariaError):
            raise each
    return found  # type: ignore[return-value]


def kinds(found: Sequence[object]) -> Counter[str]:
    return Counter(type(each).__name__ for each in found)


async def test_messages_of_a_new_chat_make_one_session(stores: Stores) -> None:
    found = await asyncio.gather(*(stores[n % 2].accept(accepting(f"{n}")) for n in range(24)))
    assert len({accepted.turn.session_id for accepted in found}) == 1
    assert sum(accepted.is_new_session for accepted in found) == 1
    assert (await stores[0].stats()).sessions == 1


async def test_a_key_is_accepted_once_whatever_chat_it_comes_from(stores: Stores) -> None:
    chats = [CHAT, OTHER_CHAT, ChatKey("agent:main:http:api:third")]
    orders = [accepting(chat=chats[n % 3], key="k", scope="s") for n in range(18)]
    found = await asyncio.gather(*(stores[n % 2].accept(order) for n, order in enumerate(orders)))
    assert len({accepted.turn.id for accepted in found}) == 1
    assert sum(not accepted.is_duplicate for accepted in found) == 1


async def test_a_turn_is_begun_by_one_owner(stores: Stores) -> None:
    for n in range(8):
        turn = (await stores[0].accept(accepting(chat=ChatKey(f"agent:main:http:api:{n}")))).turn
        begins = [Begin(turn.id, owner, LEASE, said("x")) for owner in (ME, RIVAL)]
        found = await at_once(*(store.begin(order) for store, order in zip(stores, begins, strict=True)))
        assert kinds(found) == {"Began": 1, "IllegalMove": 1} or kinds(found) == {"Began": 1, "LeaseHeld": 1}


async def test_a_log_has_no_gap_and_no_number_twice(stores: Stores) -> None:
    turn, lease = await begun(stores[0])
    place = (turn.turn.session_id, lease.fence, turn.turn.id)
    commits = [Commit(*place, (AssistantMessage(f"{n}"),)) for n in range(24)]
    await asyncio.gather(*(stores[n % 2].commit(order) for n, order in enumerate(commits)))
    log = await stores[1].log(turn.turn.session_id, 0)
    assert [entry.seq for entry in log] == list(range(1, 26))


async def test_a_lost_lease_commits_nothing_however_close(stores: Stores, clock: FakeClock) -> None:
    """The holder commits at the moment in which another takes the lease: one order comes first."""
    for n in range(6):
        turn, lease = await begun(stores[0], accepting(chat=ChatKey(f"agent:main:http:api:{n}")))
        clock.advance(LEASE + 1)
        late = stores[0].commit(ending(turn, lease, AssistantMessage("old")))
        again = stores[1].begin(Begin(turn.turn.id, RIVAL, LEASE, said("x")))
        found = await at_once(late, again)
        assert kinds(found) in ({"StaleFence": 1, "Began": 1}, {"Committed": 1, "IllegalMove": 1})


async def test_reservations_at_once_stay_under_the_cap(stores: Stores, clock: FakeClock) -> None:
    turns = [await begun(stores[0], accepting(chat=ChatKey(f"agent:main:http:api:{n}"))) for n in range(12)]
    for caps in ((Cap(Scope.DAY, 50),), (Cap(Scope.USER, 90),), (Cap(Scope.DAY, 90), Cap(Scope.USER, 130))):
        orders = [
            Reserve(turn.turn.session_id, lease.fence, turn.turn.id, 1, "u", 10, 0.0, caps)
            for turn, lease in turns
        ]
        before = await _reserved(stores[0])
        found = await asyncio.gather(*(stores[n % 2].reserve(order) for n, order in enumerate(orders)))
        passed = sum(each is None for each in found)
        assert await _reserved(stores[1]) == before + 10 * passed
        assert before + 10 * passed == min(cap.limit for cap in caps)


async def _reserved(store: PostgresStore) -> int:
    return (await store.spending(SpendingQuery(SessionId("none"), "u", 0.0))).reserved


async def test_a_question_is_decided_once(stores: Stores) -> None:
    _, _, questions = await parked(stores[0])
    found = await at_once(*(stores[n % 2].decide(questions[0].id, approved()) for n in range(8)))
    assert kinds(found) == {"Turn": 1, "IllegalMove": 7}


async def test_a_reply_is_claimed_and_split_once(stores: Stores) -> None:
    turn, lease = await begun(stores[0], accepting(address="a"))
    await stores[0].commit(ending(turn, lease, reply="long"))
    (row,) = await stores[0].outbox.due("http", 9)
    split = await at_once(*(stores[n % 2].outbox.split(row.id, ("lo", "ng")) for n in range(6)))
    assert kinds(split)["NoneType"] >= 1
    record = await stores[0].turn_record(turn.turn.id)
    assert record is not None
    (row,) = await stores[0].outbox.due("http", 9)
    claims: list[OutboxRow | TalariaError | None] = await at_once(
        *(stores[n % 2].outbox.claim(row, 1e9) for n in range(6))
    )
    assert sum(isinstance(each, OutboxRow) for each in claims) == 1


async def test_no_turn_is_left_without_its_session(stores: Stores, clock: FakeClock) -> None:
    """Sessions are deleted, ended and pruned while messages for them come in."""
    for n in range(6):
        chat = ChatKey(f"agent:main:http:api:{n}")
        turn, lease = await begun(stores[0], accepting(chat=chat, spec=pinned()))
        await stores[0].commit(ending(turn, lease, AssistantMessage("hi")))
        clock.advance(10)
        found = await at_once(
            stores[0].accept(accepting(chat=chat)),
            stores[1].delete_session(turn.turn.session_id, 0.0),
            stores[0].accept(accepting(chat=chat, binding=Binding.NEW, spec=pinned())),
            stores[1].end_unused(clock.now() + 1),
            stores[1].retention.prune_ended(clock.now() + 1),
            stores[1].retention.prune_specs(),
        )
        assert not set(kinds(found)) & {"AssertionError", "StoreError"}
        for each in found:
            if isinstance(each, NotFound | SessionOwes | LeaseHeld):
                continue
            accepted = getattr(each, "turn", None)
            if accepted is not None and hasattr(each, "is_duplicate"):
                session = await stores[0].session(accepted.session_id)
                assert session is not None and session.ended_at is None
                assert session.spec_id is None or await stores[1].spec(session.spec_id) is not None


def _job(name: str, owner: str = "u", most: int = 100, next_at: float | None = None) -> AddJob:
    plan = JobPlan(name, Every(60, 0.0), "UTC")
    return AddJob(JobId(name), JobOrigin(owner, CHAT, Sender("u1")), plan, next_at, most)


async def test_a_person_has_no_more_jobs_than_allowed(stores: Stores) -> None:
    found = await at_once(*(stores[n % 2].jobs.add(_job(f"job_{n}", most=3)) for n in range(12)))
    assert kinds(found) == {"Job": 3, "LimitReached": 9}


async def test_a_slot_is_claimed_once_and_no_more_run_than_may(stores: Stores, clock: FakeClock) -> None:
    jobs = [await stores[0].jobs.add(_job(f"job_{n}", next_at=clock.now())) for n in range(9)]
    now = clock.now()
    moves = [AdvanceJob(job.id, job.version, now, now + 60, (NewSlot(now, now),)) for job in jobs]
    moved = await asyncio.gather(*(store.jobs.advance(moves) for store in stores))
    assert sum(moved) == len(jobs)
    claims = await asyncio.gather(
        *(stores[n % 2].jobs.claim(ClaimSlots((ME, RIVAL)[n % 2], 5, 9)) for n in range(6))
    )
    claimed = [each.slot.job_id for claim in claims for each in claim]
    assert len(claimed) == len(set(claimed)) == 5


async def test_strangers_get_no_more_codes_than_there_are(stores: Stores) -> None:
    limits = PairingLimits(per_channel=3)
    orders = [RequestPairing(Person("tg", f"{n}", "x"), CodeHash(f"code{n}"), limits) for n in range(12)]
    found: list[Any] = await at_once(*(stores[n % 2].pairings.ask(each) for n, each in enumerate(orders)))
    assert sum(isinstance(each, RequestOpened) for each in found) == 3
    assert sum(isinstance(each, RequestsFull) for each in found) == 9


async def test_orders_that_lock_each_other_are_run_again(stores: Stores) -> None:
    """Two orders take the same two sessions in opposite orders, many times over."""
    pair = [(await stores[0].accept(accepting(chat=chat))).turn.session_id for chat in (CHAT, OTHER_CHAT)]

    def both(tx: Any, ids: Sequence[SessionId]) -> int:
        for session_id in ids:
            tx.lock("SELECT 1 FROM sessions WHERE id = ? FOR UPDATE", (session_id,))
            tx.execute("SELECT pg_sleep(0.01)").fetchone()
        for session_id in ids:
            tx.execute("UPDATE sessions SET spent = spent + 1 WHERE id = ?", (session_id,))
        return 1

    orders = [store.threads.write(partial(both, ids=ids)) for store, ids in _crossed(stores, pair)]
    assert sum(await asyncio.gather(*orders)) == len(orders)
    spent = await stores[0].threads.read(
        lambda db: [row[0] for row in db.execute("SELECT spent FROM sessions ORDER BY id")]
    )
    assert spent == [len(orders), len(orders)]
    assert sum(link.reruns for store in stores for link in store.threads.links) > 0, "none was in the way"


def _crossed(stores: Stores, pair: list[SessionId]) -> list[tuple[PostgresStore, list[SessionId]]]:
    return [(stores[n % 2], pair if n % 2 else pair[::-1]) for n in range(8)]
