"""The contract of `reserve`, `charge` and `spending`, and what `commit` and `reclaim` do to money.

A subclass gives the fixtures `clock`, a `FakeClock`, and `store`, an empty store that runs by it.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from contracts.store_orders import CHAT, LEASE, ME, RIVAL, START, accepting, begun, ending, record_of
from talaria.core.delegates import TreeCap
from talaria.core.errors import NotFound, StaleFence
from talaria.core.ids import Fence, SessionId
from talaria.core.ledger import Accepted, Began, Begin, Commit, SideCharge, TurnEnd, UsageWrite
from talaria.core.messages import TokenUsage
from talaria.core.spending import Cap, CapUsage, Overrun, Reserve, Scope, Spending, SpendingQuery, Spent
from talaria.core.turns import TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

MOST_COUNTED = 10**15

ADA, BOB = "test:ada", "test:bob"
DAY = Cap(Scope.DAY, 100)
USER = Cap(Scope.USER, 50)
SESSION = Cap(Scope.SESSION, 30)
TOKENS = TokenUsage(10, 5, 3, 1, 2)


class Paying:
    """A running turn and the orders it makes."""

    def __init__(self, turn: Accepted, lease: Began, user: str = ADA) -> None:
        self.session_id = turn.turn.session_id
        self.turn_id = turn.turn.id
        self.fence = lease.fence
        self.user = user
        self._ending = ending(turn, lease)

    def reserve(
        self,
        amount: int,
        *caps: Cap,
        n: int = 1,
        since: float = 0.0,
        attempt: int = 1,
        input: int = 0,
        output: int = 0,
    ) -> Reserve:
        whose = (self.session_id, self.fence, self.turn_id, n, self.user)
        return Reserve(*whose, amount, since, caps, attempt, "p", "m", input, output)

    def pay(self, cost: int | None, n: int = 1, *, ends: bool = False) -> Commit:
        usage = (UsageWrite(n, "p", "m", TOKENS, cost, self.user),)
        end = TurnEnd(TurnState.DONE, "hi") if ends else None
        return Commit(self.session_id, self.fence, self.turn_id, usage=usage, end=end)

    def end(self) -> Commit:
        return self._ending


async def paying(store: Store, user: str = ADA, session: str | None = None) -> Paying:
    """In a chat of its own, so that many can run at once."""
    order = accepting(ephemeral=True, session=session)
    return Paying(*await begun(store, order), user)


async def reserved(store: Store) -> int:
    return (await store.spending(SpendingQuery(SessionId(""), "", 0.0))).reserved


async def account(store: Store) -> tuple[int, int]:
    """What is spent and what is reserved by everyone."""
    spending = await store.spending(SpendingQuery(SessionId(""), "", 0.0))
    return spending.everyone.cost, spending.reserved


class SpendSuite:
    # -- reserving

    async def test_a_call_beside_turns_needs_no_lease_and_is_settled_by_itself(self, store: Store) -> None:
        turn, lease = await begun(store)
        paying = Paying(turn, lease)
        await store.commit(paying.end())
        order = msgspec.structs.replace(paying.reserve(20, DAY, n=0), fence=None, owner=ME)
        assert await store.reserve(order) is None
        over = await store.reserve(msgspec.structs.replace(order, attempt=2, amount=81))
        assert over is not None and over.usage.reserved == 20
        usage = UsageWrite(0, "p", "m", TOKENS, 7, ADA)
        await store.charge(SideCharge(paying.session_id, paying.turn_id, usage))
        spending = await store.spending(SpendingQuery(paying.session_id, ADA, 0.0))
        assert (spending.reserved, spending.session.cost, spending.user.cost) == (0, 7, 7)
        await store.reserve(order)
        await store.charge(SideCharge(paying.session_id, paying.turn_id, unsent=(0, 1)))
        assert (await store.spending(SpendingQuery(paying.session_id, ADA, 0.0))).reserved == 0
        with pytest.raises(NotFound):
            await store.charge(SideCharge(SessionId("ses_none"), paying.turn_id, usage))
        await store.reserve(order)
        await store.reclaim(RIVAL)
        left = await store.spending(SpendingQuery(paying.session_id, ADA, 0.0))
        assert (left.reserved, left.session.cost) == (0, 27), "the call of a dead process may have been sent"

    async def test_what_fits_every_cap_is_set_aside(self, store: Store) -> None:
        turn = await paying(store)
        assert await store.reserve(turn.reserve(30, DAY, USER, SESSION)) is None
        assert await reserved(store) == 30

    @pytest.mark.parametrize("cap", [DAY, USER, SESSION])
    async def test_one_nanodollar_over_a_cap_is_refused_and_leaves_nothing(
        self, store: Store, cap: Cap
    ) -> None:
        turn = await paying(store)
        refusal = await store.reserve(turn.reserve(cap.limit + 1, cap))
        assert refusal == Overrun(cap, CapUsage(0, 0))
        assert await reserved(store) == 0
        assert await store.reserve(turn.reserve(cap.limit, cap)) is None

    async def test_reservations_of_others_count_in_the_scopes_that_they_share(self, store: Store) -> None:
        ada, again, bob = await paying(store), await paying(store), await paying(store, BOB)
        assert await store.reserve(ada.reserve(30)) is None
        assert await store.reserve(bob.reserve(40)) is None
        assert await store.reserve(again.reserve(31, DAY)) == Overrun(DAY, CapUsage(0, 70))
        assert await store.reserve(again.reserve(21, USER)) == Overrun(USER, CapUsage(0, 30))
        assert await store.reserve(again.reserve(30, SESSION)) is None

    async def test_every_attempt_at_a_step_is_reserved(self, store: Store) -> None:
        turn = await paying(store)
        for attempt, amount in enumerate((20, 30, 40), 1):
            assert await store.reserve(turn.reserve(amount, DAY, attempt=attempt)) is None
        assert await reserved(store) == 90
        assert await store.reserve(turn.reserve(11, DAY, attempt=4)) == Overrun(DAY, CapUsage(0, 90))
        assert await store.reserve(turn.reserve(10, DAY, attempt=3)) is None
        assert await reserved(store) == 100

    async def test_a_lost_lease_reserves_nothing(self, store: Store, clock: FakeClock) -> None:
        turn = await paying(store)
        clock.advance(LEASE)
        await store.begin(Begin(turn.turn_id, RIVAL, LEASE))
        with pytest.raises(StaleFence):
            await store.reserve(turn.reserve(1, DAY))
        assert await reserved(store) == 0

    async def test_a_session_that_is_not_there_reserves_nothing(self, store: Store) -> None:
        turn = await paying(store)
        with pytest.raises(NotFound):
            await store.reserve(Reserve(SessionId("ses_no"), Fence(1), turn.turn_id, 1, ADA, 1, 0.0, (DAY,)))

    async def test_64_tasks_at_once_never_exceed_a_cap(self, store: Store) -> None:
        turns = [await paying(store) for _ in range(64)]

        async def spend(turn: Paying) -> int:
            if await store.reserve(turn.reserve(7, DAY)) is not None:
                return 0
            await store.commit(turn.pay(7))
            return 7

        assert sum(await asyncio.gather(*map(spend, turns))) == 98
        assert (await store.spending(SpendingQuery(SessionId(""), "", 0.0))).everyone.cost == 98

    # -- settling

    async def test_a_settled_call_is_spent_and_no_longer_reserved(self, store: Store) -> None:
        turn = await paying(store)
        await store.reserve(turn.reserve(30, DAY))
        await store.commit(turn.pay(12))
        spending = await store.spending(SpendingQuery(turn.session_id, ADA, 0.0))
        paid = Spent(1, TOKENS, 12)
        assert (spending.session, spending.user, spending.everyone) == (paid, paid, paid)
        assert spending.reserved == 0
        refusal = await store.reserve(turn.reserve(89, DAY, n=2))
        assert refusal == Overrun(DAY, CapUsage(12, 0))

    async def test_a_call_settles_its_own_attempt_only(self, store: Store) -> None:
        turn = await paying(store)
        for n, attempt, amount in ((1, 1, 10), (1, 2, 7), (2, 1, 5)):
            await store.reserve(turn.reserve(amount, n=n, attempt=attempt))
        await store.commit(turn.pay(1, n=1))
        assert (await account(store)) == (1, 12)
        await store.commit(Commit(turn.session_id, turn.fence, turn.turn_id, unsent=((2, 1),)))
        assert (await account(store)) == (1, 7)

    @pytest.mark.parametrize(("pays", "spent"), [(True, 1 + 10), (False, 20)])
    async def test_the_end_of_a_turn_spends_what_no_commit_has_settled(
        self, store: Store, pays: bool, spent: int
    ) -> None:
        turn, other = await paying(store), await paying(store)
        await store.reserve(other.reserve(4))
        for n in (1, 2, 3):
            await store.reserve(turn.reserve(10, n=n))
        end = turn.pay(1, n=1, ends=True) if pays else turn.end()
        await store.commit(msgspec.structs.replace(end, unsent=((3, 1),)))
        assert (await account(store)) == (spent, 4)

    async def test_the_cap_of_a_run_counts_its_turn_and_its_earlier_tries(self, store: Store) -> None:
        other, mine = await paying(store), Paying(*await begun(store, accepting(ephemeral=True)))
        await store.reserve(other.reserve(1_000))
        cap, tree = Cap(Scope.RUN, 50), TreeCap(mine.turn_id, mine.turn_id, 50, 15)
        await store.commit(mine.pay(20))
        order = msgspec.structs.replace(mine.reserve(10, n=2), trees=((tree, tree.within(CHAT)),))
        assert await store.reserve(order) is None
        refused = await store.reserve(msgspec.structs.replace(order, amount=6, n=3))
        assert refused == Overrun(cap, CapUsage(35, 10))
        await store.begin(Begin(mine.turn_id, ME, LEASE, is_forgiven=True))  # what was reserved is spent
        row = await record_of(store, mine.turn_id)
        assert row.spent.cost == 30

    async def test_what_dead_owners_had_reserved_is_spent_once(self, store: Store) -> None:
        dead = Paying(*await begun(store, accepting(ephemeral=True), RIVAL))
        mine = await paying(store)
        await store.reserve(dead.reserve(30, input=12, output=3))
        await store.reserve(mine.reserve(5))
        for _ in range(2):
            await store.reclaim(ME)
            assert (await account(store)) == (30, 5)
        await store.begin(Begin(dead.turn_id, ME, LEASE))
        spending = await store.spending(SpendingQuery(dead.session_id, ADA, 0.0))
        charged = Spent(1, TokenUsage(12, output=3), 30, estimated=1)
        assert spending == Spending(charged, charged, charged, 5)
        assert (await record_of(store, dead.turn_id)).spent == charged
        refusal = await store.reserve(mine.reserve(1, Cap(Scope.SESSION, 5), n=2))
        assert refusal is not None, "the own reservation still counts"

    async def test_an_owner_who_yields_its_turns_has_spent_what_it_had_reserved(self, store: Store) -> None:
        other = Paying(*await begun(store, accepting(ephemeral=True), RIVAL))
        mine = await paying(store)
        await store.reserve(other.reserve(30))
        await store.reserve(mine.reserve(5))
        await store.yield_turns(ME)
        assert (await account(store)) == (5, 30)

    async def test_a_turn_that_begins_again_has_spent_what_was_reserved(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn = await paying(store)
        await store.reserve(turn.reserve(60, DAY))
        clock.advance(LEASE)
        taken = await store.begin(Begin(turn.turn_id, RIVAL, LEASE))
        assert (await account(store)) == (60, 0)
        turn.fence = taken.fence
        assert await store.reserve(turn.reserve(41, DAY)) == Overrun(DAY, CapUsage(60, 0))
        assert await store.reserve(turn.reserve(40, DAY)) is None
        await store.commit(turn.pay(7))
        assert (await account(store)) == (67, 0)

    async def test_a_refused_commit_pays_nothing_and_releases_nothing(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn = await paying(store)
        await store.reserve(turn.reserve(30))
        clock.advance(LEASE)
        await store.begin(Begin(turn.turn_id, RIVAL, LEASE))
        with pytest.raises(StaleFence):
            await store.commit(turn.pay(12, ends=True))
        assert (await account(store)) == (30, 0)

    async def test_absurd_numbers_are_kept_within_bounds_and_harm_no_later_call(self, store: Store) -> None:
        turn, other = await paying(store), await paying(store)
        lie = TokenUsage(10**30, 10**19, 9 * 10**15, 2**63, -5)
        usage = (UsageWrite(1, "p", "m", lie, 10**30, BOB),)
        for _ in range(50):
            await store.commit(Commit(turn.session_id, turn.fence, turn.turn_id, usage=usage))
        spending = await store.spending(SpendingQuery(turn.session_id, BOB, 0.0))
        assert spending.session == spending.user == spending.everyone
        assert spending.everyone.cost == 50 * MOST_COUNTED
        assert spending.everyone.tokens.input == 50 * MOST_COUNTED
        assert spending.everyone.tokens.stored == 0
        assert await store.reserve(other.reserve(1, Cap(Scope.USER, 10))) is None

    # -- reading

    async def test_a_call_without_a_price_is_counted_as_such(self, store: Store) -> None:
        turn = await paying(store)
        await store.commit(turn.pay(7, n=1))
        await store.commit(turn.pay(None, n=2))
        spending = await store.spending(SpendingQuery(turn.session_id, ADA, 0.0))
        expected = Spent(2, TOKENS + TOKENS, 7, unpriced=1)
        assert (spending.session, spending.user, spending.everyone) == (expected, expected, expected)
        record = await record_of(store, turn.turn_id)
        assert record.spent == expected

    async def test_a_day_begins_where_it_is_said_to(self, store: Store, clock: FakeClock) -> None:
        turn = await paying(store)
        midnight = START + 1800 - START % 900
        await store.commit(turn.pay(30, n=1))
        clock.advance(midnight - START)
        await store.commit(turn.pay(12, n=2))
        today = await store.spending(SpendingQuery(turn.session_id, ADA, midnight))
        assert (today.session.cost, today.user.cost, today.everyone.cost) == (42, 12, 12)
        assert await store.reserve(turn.reserve(88, DAY, n=3, since=midnight)) is None
        assert await store.reserve(turn.reserve(1, SESSION, n=3, since=midnight)) is not None

    async def test_users_and_sessions_are_counted_apart(self, store: Store) -> None:
        ada, bob = await paying(store), await paying(store, BOB)
        await store.commit(ada.pay(3))
        await store.commit(bob.pay(4))
        spending = await store.spending(SpendingQuery(ada.session_id, BOB, 0.0))
        assert (spending.session.cost, spending.user.cost, spending.everyone.cost) == (3, 4, 7)

    async def test_pruning_forgets_the_session_and_not_the_money(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn = await paying(store)
        await store.commit(turn.pay(30, ends=True))
        clock.advance(60)
        assert await store.prune_ephemeral(clock.now()) == 1
        spending = await store.spending(SpendingQuery(turn.session_id, ADA, 0.0))
        assert (spending.session.cost, spending.user.cost, spending.everyone.cost) == (0, 30, 30)
