"""Money over whole turns: caps that hold, calls that are not made, and sums that survive restarts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.rig import Rig, start
from support.scripted_model import ScriptedModel
from support.waiting import until
from talaria.access.settings import BudgetSettings
from talaria.core.ids import SessionId, new_owner_id
from talaria.core.messages import TokenUsage
from talaria.core.spending import Overrun, Reserve, Spending, SpendingQuery, Spent
from talaria.core.turns import Turn, TurnState
from talaria.models.known import Abilities, PriceSettings
from talaria.models.limiter import CallLimiter
from talaria.models.settings import ModelSettings
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.testing.clock import FakeClock, HastyClock

# A dollar for a million tokens in, a tenth of it from the cache, ten for those that come out.
PRICES = {"scripted/*": PriceSettings(input=1, cached=0.1, output=10, max_output=1000)}
USED = "[[usage 1000 800 20 5]] hello"
USED_COST = 200 * 1000 + 800 * 100 + 20 * 10_000
PLAIN = {"scripted/scripted": Abilities(reasoning=False)}
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()


async def spending(rig: Rig, turn: Turn | None = None) -> Spending:
    session_id = SessionId("") if turn is None else turn.session_id
    return await rig.store.spending(SpendingQuery(session_id, "test:tester", 0.0))


@pytest.mark.parametrize(
    ("budgets", "words"),
    [
        (BudgetSettings(per_day_usd=0.001), ("the gateway's budget for today", "budgets.per_day_usd")),
        (BudgetSettings(per_user_daily_usd=0.001), ("your budget for today", "budgets.per_user_daily_usd")),
        (BudgetSettings(per_session_usd=0.001), ("the budget of this session", "budgets.per_session_usd")),
    ],
)
async def test_a_turn_over_a_cap_makes_no_call_and_tells_what_to_do(
    store: Store, tmp_path: Path, budgets: BudgetSettings, words: tuple[str, str]
) -> None:
    async with start(store, tmp_path, budgets=budgets, prices=PRICES) as rig:
        turn = await rig.say("hello")
        assert turn.state is TurnState.FAILED
        assert turn.error is not None and turn.error.type == "over_budget"
        assert turn.reply is not None
        for part in (*words, "one call may cost up to $0.01", ", $0.001.", "`talaria config set budgets."):
            assert part in turn.reply
        assert "Wait" not in turn.reply and "/new" not in turn.reply, "one call is more than the whole cap"
        assert not rig.model.bodies
        assert (await spending(rig)).reserved == 0


async def test_what_a_call_used_is_what_it_costs(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, budgets=BudgetSettings(per_day_usd=1), prices=PRICES) as rig:
        turn = await rig.say(USED)
        assert turn.state is TurnState.DONE
        spent = await spending(rig, turn)
        assert spent.session.cost == spent.user.cost == spent.everyone.cost == USED_COST
        assert spent.reserved == 0
        page = rig.metrics.render().decode()
        line = 'talaria_cost_usd_total{model="scripted",provider="scripted"} '
        assert f"{line}{USED_COST / 1e9}" in page


async def test_a_cap_stops_a_turn_in_the_middle_and_the_log_stays_whole(store: Store, tmp_path: Path) -> None:
    budgets = BudgetSettings(per_session_usd=0.02)
    async with start(store, tmp_path, budgets=budgets, prices=PRICES) as rig:
        turn = await rig.say("[[usage 9000 0 500 0]][[call list_files {}]] hello")
        assert (turn.state, len(rig.model.bodies)) == (TurnState.FAILED, 1)
        assert turn.error is not None and "$0.014 is spent" in turn.error.message
        assert turn.usage == TokenUsage(9000, 0, 500, 0)
        assert (await spending(rig)).reserved == 0
        assert (await rig.say("/new")).state is TurnState.DONE
        assert (await rig.say("hello")).state is TurnState.DONE


async def test_the_next_day_begins_anew(tmp_path: Path) -> None:
    clock = FakeClock(NOON)
    budgets = BudgetSettings(per_user_daily_usd=0.018)
    async with start(
        MemoryStore(clock), tmp_path, clock=clock, budgets=budgets, prices=PRICES, model=ScriptedModel(clock)
    ) as rig:
        assert (await rig.say("[[usage 0 0 500 0]] hello")).state is TurnState.DONE
        refused = await rig.say("again")
        assert refused.reply is not None and "Wait until 2026-11-16 00:00 UTC" in refused.reply
        clock.advance(12 * 3600 - 1)
        assert (await rig.say("again")).state is TurnState.FAILED
        clock.advance(1)
        assert (await rig.say("again")).state is TurnState.DONE


async def test_a_call_that_was_answered_with_an_error_costs_nothing(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, budgets=BudgetSettings(per_day_usd=1), prices=PRICES) as rig:
        assert (await rig.say("[[status 500]]")).state is TurnState.FAILED
        rig.model.is_down = True
        assert (await rig.say("hello")).state is TurnState.FAILED
        after = await spending(rig)
        assert (after.everyone, after.reserved) == (Spent(), 0)


async def test_a_call_that_was_stopped_before_it_was_sent_costs_nothing(store: Store, tmp_path: Path) -> None:
    model = ScriptedModel(limiter=CallLimiter(1))
    caps = BudgetSettings(per_day_usd=1)
    async with start(store, tmp_path, model=model, budgets=caps, prices=PRICES) as rig:
        first = await rig.submit("[[hang]]", "one")
        await until(lambda: model.bodies, pause=0)
        second = await rig.submit("[[hang]]", "two")
        await until(lambda: model.reading().waiting, pause=0)
        before = await spending(rig)
        await rig.turns.cancel(second)
        after = await spending(rig)
        assert (after.everyone.calls, after.reserved) == (0, before.reserved // 2)
        await rig.turns.cancel(first)
        assert (await spending(rig)).everyone.calls == 1


@pytest.mark.parametrize("caps", [BudgetSettings(per_day_usd=1), BudgetSettings()])
async def test_a_stopped_call_costs_its_input_and_the_output_that_arrived(
    store: Store, tmp_path: Path, caps: BudgetSettings
) -> None:
    async with start(store, tmp_path, budgets=caps, prices=PRICES, abilities=PLAIN) as rig:
        receipt = await rig.submit("[[hang]]")
        await until(lambda: rig.model.busy, pause=0)
        before = await spending(rig)
        assert (before.reserved > 0) == bool(caps.per_day_usd)
        turn = await rig.turns.cancel(receipt)
        after = await spending(rig, turn)
        assert after.reserved == 0
        assert after.session == after.user == after.everyone
        spent = after.everyone
        sent = len(rig.model.bodies[0])
        assert (spent.calls, spent.estimated, spent.tokens.output) == (1, 1, 0)
        assert sent // 4 < spent.tokens.input <= sent // 2 + 1
        assert spent.cost == spent.tokens.input * 1000
        assert turn.usage == spent.tokens
        reply = (await rig.say("/usage")).reply
        assert reply is not None
        assert reply.count("For calls that broke off or reported no usage, an estimate is counted.") == 1
        assert reply.count("estimate") == 1


async def test_a_cut_answer_costs_the_output_that_arrived(store: Store, tmp_path: Path) -> None:
    caps = BudgetSettings(per_day_usd=1)
    async with start(store, tmp_path, budgets=caps, prices=PRICES, abilities=PLAIN) as rig:
        turn = await rig.say("[[words 100]][[chunks 2]][[cut 1]]")
        assert turn.state is TurnState.FAILED
        after = await spending(rig)
        assert (after.everyone.calls, after.reserved) == (1, 0)
        assert 100 < after.everyone.tokens.output < 200


async def test_every_try_of_a_step_is_charged(tmp_path: Path) -> None:
    clock = HastyClock()
    model = ScriptedModel(clock, max_retries=3, patience=30)
    more = {"budgets": BudgetSettings(per_day_usd=1), "prices": PRICES, "abilities": PLAIN}
    async with start(MemoryStore(clock), tmp_path, clock=clock, model=model, **more) as rig:  # type: ignore[arg-type]
        assert (await rig.say("[[usage 10 0 5 0]][[first 2 hang]] hello")).state is TurnState.DONE
        after = await spending(rig)
        assert (after.everyone.calls, after.everyone.estimated, after.reserved) == (3, 2, 0)
        planned = (after.everyone.tokens.input - 10) // 2
        assert after.everyone.cost == 2 * planned * 1000 + 10 * 1000 + 5 * 10_000


async def test_a_call_that_may_have_thought_in_secret_costs_all_that_was_reserved(
    store: Store, tmp_path: Path
) -> None:
    async with start(store, tmp_path, budgets=BudgetSettings(per_day_usd=1), prices=PRICES) as rig:
        receipt = await rig.submit("[[hang]]")
        await until(lambda: rig.model.busy, pause=0)
        reserved = (await spending(rig)).reserved
        await rig.turns.cancel(receipt)
        after = await spending(rig)
        assert (after.everyone.cost, after.reserved) == (reserved, 0)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_resumed_turn_tells_what_all_its_attempts_used_and_nothing_twice(
    store: Store, tmp_path: Path, is_killed: bool
) -> None:
    more = {"budgets": BudgetSettings(per_day_usd=1), "prices": PRICES, "abilities": PLAIN}
    model = ScriptedModel()
    async with start(store, tmp_path, model=model, **more) as rig:  # type: ignore[arg-type]
        receipt = await rig.submit("[[call list_files {}]][[first 1 hang]] hello")
        await until(lambda: len(model.bodies) >= 2, pause=0)
        before = await spending(rig)
        assert before.everyone.calls == 1
        assert before.reserved > 0
        if is_killed:
            # Another process believes that this one is dead, so nothing that this one does counts any more.
            await store.reclaim(new_owner_id())
            charged = await spending(rig)
            assert (charged.everyone.cost, charged.reserved) == (before.everyone.cost + before.reserved, 0)
    after = await store.spending(SpendingQuery(SessionId(""), "", 0.0))
    assert (after.everyone.calls, after.everyone.estimated, after.reserved) == (2, 1, 0)
    assert (after.everyone.tokens.output > 1000) == is_killed
    async with start(store, tmp_path, model=model, **more) as rig:  # type: ignore[arg-type]
        found = await rig.turns.find(receipt.turn.id)
        turn = await rig.turns.wait(found)
        assert turn.state is TurnState.DONE
        record = await store.turn_record(turn.id)
        assert record is not None and (record.spent.calls, record.spent.estimated) == (3, 1)
        assert turn.usage == record.spent.tokens
        after = await spending(rig, turn)
        assert after.session == after.everyone == record.spent
        assert after.reserved == 0


class Unasked(MemoryStore):
    async def reserve(self, order: Reserve) -> Overrun | None:
        raise AssertionError("without a cap nothing is reserved")


async def test_without_a_cap_the_store_is_asked_for_nothing(tmp_path: Path) -> None:
    async with start(Unasked(FakeClock()), tmp_path, prices=PRICES) as rig:
        assert (await rig.say(USED)).state is TurnState.DONE
        assert (await spending(rig)).everyone.cost == USED_COST


async def test_usage_tells_how_to_set_a_price_while_the_model_has_none(store: Store, tmp_path: Path) -> None:
    own = ModelSettings("mine", "m")
    unknown, some = "the price is not known", "1 of the calls have no known price"
    for prices, cost, is_told in [({}, unknown, True), ({"mine/m": PRICES["scripted/*"]}, some, False)]:
        async with start(store, tmp_path, settings=own, prices=prices) as rig:
            await rig.say(USED)
            reply = (await rig.say("/usage")).reply
            assert reply is not None
            assert reply.splitlines()[0].endswith(f"{cost}.")
            assert ("sets a price" in reply) == is_told


async def test_usage_tells_tokens_money_and_caps(store: Store, tmp_path: Path) -> None:
    budgets = BudgetSettings(per_day_usd=5, per_session_usd=2)
    async with start(store, tmp_path, budgets=budgets, prices=PRICES) as rig:
        await rig.say(USED)
        reply = (await rig.say("/usage")).reply
        assert reply is not None
        used = "1 model call, 1000 tokens in (80 % from the provider's cache), 20 out, 5 of them reasoning"
        assert reply.startswith(f"This session: {used}; $0.0005.\nYou today: {used}; $0.0005.\n")
        assert "Caps: $5.00 a day, $2.00 for a session. The day ends at " in reply
