"""Budgets: what is reserved for a call, and what is said when it is not made."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import msgspec
import pytest

from talaria.access.budgets import Budgets, TurnBudget
from talaria.access.settings import BudgetSettings
from talaria.core.clock import SystemClock
from talaria.core.delegates import TreeCap
from talaria.core.errors import OverBudget
from talaria.core.ids import ChatKey, Fence, SessionId, TurnId, delegates_within
from talaria.core.ledger import SideCharge, UsageWrite
from talaria.core.messages import AssistantMessage, Reasoning, TokenUsage, ToolCall
from talaria.core.specs import Completion
from talaria.core.spending import (
    FREE,
    Cap,
    CapUsage,
    Overrun,
    PlannedCall,
    Price,
    Reserve,
    Scope,
    Spending,
    SpendingQuery,
    Spent,
    from_usd,
)
from talaria.core.turns import Inbound, RunOrder, Sender, Turn, TurnState
from talaria.observe.metrics import Metrics
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock

BYTES_PER_TOKEN = 2
THINKING_TOKENS = 24_000
MOST_COUNTED = 10**15

CHAT = ChatKey("agent:main:telegram:dm:7")
TURN = Turn(
    TurnId("turn_1"), CHAT, SessionId("ses_1"), TurnState.RUNNING, Inbound(CHAT, Sender("7"), ()), 0.0
)
PRICE = Price(1_000_000, 100_000, 10_000_000, 1_000_000)  # 1, 0.1 and 10 nanodollars for a token
LIMITED = Price(1_000_000, 100_000, 10_000_000, 1_250_000, max_output=2000)
CAPPED = BudgetSettings(per_day_usd=1, assumed_output=500)


class Recorder(MemoryStore):
    """A store that notes what it is asked to reserve, and answers as it was told."""

    def __init__(self, answer: Overrun | None = None) -> None:
        super().__init__(SystemClock())
        self.orders: list[Reserve] = []
        self.asked: list[SpendingQuery] = []
        self._answer = answer

    async def reserve(self, order: Reserve) -> Overrun | None:
        self.orders.append(order)
        return self._answer

    async def charge(self, order: SideCharge) -> None:
        raise AssertionError("no call is made beside a turn")

    async def spending(self, whose: SpendingQuery) -> Spending:
        self.asked.append(whose)
        return Spending(Spent(), Spent(), Spent(1, TokenUsage(5), 12_500_000, 1, 2), 7)


def make(
    store: Recorder,
    settings: BudgetSettings = CAPPED,
    price: Price | None = PRICE,
    zone: str = "Europe/Berlin",
) -> Budgets:
    clock = FakeClock(1_794_700_000.0)  # 2026-11-15 00:46:40 in Berlin
    return Budgets(
        settings, lambda provider, model: price, store, metrics=Metrics(), clock=clock, zone=ZoneInfo(zone)
    )


def call(input_bytes: int = 2000, max_output: int | None = None, *, reasons: bool = False) -> PlannedCall:
    return PlannedCall(Fence(3), 2, "p", "m", input_bytes, max_output, reasons)


UNKNOWN = TokenUsage()
INPUT = 2000 // BYTES_PER_TOKEN + 1


@pytest.mark.parametrize(
    ("price", "planned", "amount"),
    [
        (PRICE, call(), INPUT + 500 * 10),
        (PRICE, call(max_output=30), INPUT + 30 * 10),
        (PRICE, call(max_output=30, reasons=True), INPUT + (30 + THINKING_TOKENS) * 10),
        (LIMITED, call(), -(-INPUT * 5 // 4) + 2000 * 10),
        (LIMITED, call(max_output=30, reasons=True), -(-INPUT * 5 // 4) + 2000 * 10),
    ],
)
async def test_the_most_that_a_call_can_cost_is_reserved(
    price: Price, planned: PlannedCall, amount: int
) -> None:
    store = Recorder()
    await make(store, price=price).of(TURN).reserve(planned)
    (order,) = store.orders
    assert order.amount == amount
    assert (order.session_id, order.fence, order.turn_id, order.n) == ("ses_1", 3, "turn_1", 2)
    assert order.user == "telegram:7"
    assert order.caps == (Cap(Scope.DAY, 1_000_000_000),)


async def test_a_wish_beyond_all_measure_is_counted_as_the_most_that_can_be_stored() -> None:
    budget = make(Recorder()).of(TURN)
    await budget.reserve(call(max_output=2**64, reasons=True))
    assert budget.charge_cut(10, has_reasoned=True).tokens.output == MOST_COUNTED


async def test_a_day_is_the_agents() -> None:
    store = Recorder()
    await make(store).of(TURN).reserve(call())
    await make(store, zone="America/New_York").of(TURN).reserve(call())
    berlin, new_york = (order.since for order in store.orders)
    assert berlin == 1_794_697_200.0  # 00:00 in Berlin
    assert new_york == berlin - 18 * 3600  # still the day before there


@pytest.mark.parametrize(
    ("settings", "price"), [(BudgetSettings(), PRICE), (BudgetSettings(), None), (CAPPED, FREE)]
)
async def test_without_a_cap_or_a_price_to_pay_nothing_is_reserved(
    settings: BudgetSettings, price: Price | None
) -> None:
    store = Recorder()
    await make(store, settings, price).of(TURN).reserve(call())
    assert not store.orders


async def test_an_unknown_price_under_a_cap_is_refused_and_names_the_key() -> None:
    store = Recorder()
    with pytest.raises(OverBudget) as refusal:
        await make(store, price=None).of(TURN).reserve(call())
    assert "the price of p/m is not known" in refusal.value.user_text
    assert '[prices."p/m"] in config.toml' in refusal.value.hint
    assert not store.orders


@pytest.mark.parametrize(
    ("scope", "text", "hint"),
    [
        (
            Scope.DAY,
            "The model was not called: the gateway's budget for today is $1.00, of which $0.90 is spent, "
            "$0.05 is set aside for calls under way, and this call could cost up to $0.012.",
            "Wait until 2026-11-16 00:00 CET, or have the operator raise budgets.per_day_usd in config.toml.",
        ),
        (
            Scope.USER,
            "The model was not called: your budget for today is $1.00, ",
            "Wait until 2026-11-16 00:00 CET, "
            "or have the operator raise budgets.per_user_daily_usd in config.toml.",
        ),
        (
            Scope.SESSION,
            "The model was not called: the budget of this session is $1.00, ",
            "Send /new for a session with a budget of its own, "
            "or have the operator raise budgets.per_session_usd in config.toml.",
        ),
    ],
)
async def test_a_refusal_says_which_cap_how_it_stands_and_what_to_do(
    scope: Scope, text: str, hint: str
) -> None:
    usage = CapUsage(900_000_000, 50_000_000)
    store = Recorder(Overrun(Cap(scope, 1_000_000_000), usage))
    with pytest.raises(OverBudget) as refusal:
        await make(store).of(TURN).reserve(call(24_000_000 - 10_000))
    assert refusal.value.user_text.startswith(text)
    assert refusal.value.hint == hint


@pytest.mark.parametrize(
    ("price", "planned", "way_out"),
    [
        (
            PRICE,
            0,
            ", or lower what one answer may cost: `talaria config set budgets.assumed_output TOKENS`.",
        ),
        (
            LIMITED,
            0,
            ", or lower what one answer may cost: `talaria config set 'models.\"p/m\".output' TOKENS`.",
        ),
        (PRICE, 10_000, "."),
    ],
    ids=["assumed", "known", "input"],
)
async def test_a_call_that_alone_is_over_the_cap_is_not_told_to_wait(
    price: Price, planned: int, way_out: str
) -> None:
    store = Recorder(Overrun(Cap(Scope.DAY, 4000), CapUsage(0, 0)))
    with pytest.raises(OverBudget) as refusal:
        await make(store, price=price).of(TURN).reserve(call(planned))
    text = "more than the whole of the gateway's budget for today, less than $0.0001."
    assert refusal.value.user_text.endswith(text)
    raised = "Have the operator raise the cap: `talaria config set budgets.per_day_usd DOLLARS`"
    assert refusal.value.hint == raised + way_out


def answered(tokens: TokenUsage = UNKNOWN, message: AssistantMessage | None = None) -> Completion:
    return Completion(message or AssistantMessage("hello"), tokens, "stop")


async def attempt(
    planned: PlannedCall | None = None, settings: BudgetSettings = CAPPED, price: Price | None = PRICE
) -> TurnBudget:
    budget = make(Recorder(), settings, price).of(TURN)
    await budget.reserve(planned or call())
    return budget


async def test_a_call_is_charged_to_its_user_at_its_price() -> None:
    tokens = TokenUsage(100, 50, 10)
    charged = (await attempt()).charge(answered(tokens))
    assert charged == UsageWrite(2, "p", "m", tokens, 50 + 5 + 100, "telegram:7", attempt=1)
    unknown = (await attempt(settings=BudgetSettings(), price=None)).charge(answered(tokens))
    assert unknown == UsageWrite(2, "p", "m", tokens, None, "telegram:7", attempt=1)


async def test_attempts_are_numbered_and_an_unsent_one_is_named() -> None:
    store = Recorder()
    budget = make(store).of(TURN)
    for number in (1, 2, 3):
        await budget.reserve(call())
        assert budget.release() == (2, number)
    assert [order.attempt for order in store.orders] == [1, 2, 3]
    assert (await attempt(settings=BudgetSettings())).release() is None


@pytest.mark.parametrize("settings", [CAPPED, BudgetSettings(assumed_output=500)])
@pytest.mark.parametrize(
    ("planned", "output_bytes", "has_reasoned", "output"),
    [
        (call(), 0, False, 0),
        (call(), 61, False, 31),
        (call(), 10**9, False, 500),
        (call(max_output=30), 10**9, False, 30),
        (call(), 61, True, 500),
        (call(reasons=True), 0, False, 500),
    ],
)
async def test_a_cut_call_costs_what_was_planned_and_received_or_all_if_it_may_have_thought(
    settings: BudgetSettings, planned: PlannedCall, output_bytes: int, has_reasoned: bool, output: int
) -> None:
    budget = await attempt(planned, settings)
    charged = budget.charge_cut(output_bytes, has_reasoned=has_reasoned)
    tokens = TokenUsage(INPUT, output=output)
    assert charged == UsageWrite(
        2, "p", "m", tokens, INPUT + output * 10, "telegram:7", attempt=1, is_estimate=True
    )


async def test_a_call_whose_usage_was_not_reported_is_estimated_in_the_same_way() -> None:
    said = AssistantMessage("four", (ToolCall("id", "six_go", "{}"),))
    charged = (await attempt()).charge(answered(message=said))
    assert (charged.tokens, charged.is_estimate) == (TokenUsage(INPUT, output=6), True)
    thought = AssistantMessage("four", reasoning=(Reasoning("r", "hm", '"hm"'),))
    assert (await attempt()).charge(answered(message=thought)).cost == INPUT + 500 * 10
    assert (await attempt(price=FREE)).charge(answered()).cost == 0
    unpriced = (await attempt(settings=BudgetSettings(), price=None)).charge(answered(message=thought))
    assert (unpriced.tokens, unpriced.cost) == (TokenUsage(INPUT, output=3), None)


async def test_an_answer_that_no_model_made_costs_nothing_and_is_no_estimate() -> None:
    made = Completion(AssistantMessage("hello"), UNKNOWN, "stop", without_model=True)
    charged = (await attempt()).charge(made)
    assert (charged.tokens, charged.cost, charged.is_estimate) == (TokenUsage(), 0, False)


@pytest.mark.parametrize("absurd", [9 * 10**15, 10**30, -(10**30)])
async def test_absurd_numbers_stay_within_64_bits(absurd: int) -> None:
    dear = Price(10**15, 10**15, 10**15, 10**15, max_output=10**30)
    tokens = TokenUsage(absurd, absurd, absurd, absurd, absurd)
    charged = (await attempt(price=dear)).charge(answered(tokens))
    assert charged.cost is not None and 0 <= charged.cost <= MOST_COUNTED
    counts = msgspec.structs.astuple(charged.tokens)
    assert all(0 <= count <= MOST_COUNTED for count in counts)
    reserved = Recorder()
    await make(reserved, price=dear).of(TURN).reserve(call(10**30, reasons=True))
    (order,) = reserved.orders
    assert max(order.amount, order.input, order.output) <= MOST_COUNTED


async def test_the_status_has_the_day_and_the_caps() -> None:
    store = Recorder()
    settings = BudgetSettings(per_day_usd=5, per_session_usd=0.5)
    assert await make(store, settings).status() == {
        "today_usd": "0.0125",
        "unpriced_calls": 1,
        "estimated_calls": 2,
        "reserved_usd": "0.000000007",
        "caps_usd": {"per_day_usd": "5.00", "per_session_usd": "0.50"},
        "resets": "2026-11-16 00:00 CET",
    }
    assert store.asked == [SpendingQuery(SessionId(""), "", 1_794_697_200.0)]


RUN = msgspec.structs.replace(
    TURN, inbound=msgspec.structs.replace(TURN.inbound, run=RunOrder(cap=from_usd(0.5), spent=from_usd(0.1)))
)


async def test_a_run_reserves_under_its_own_cap_and_names_the_key_that_stops_it() -> None:
    store = Recorder()
    await make(store, BudgetSettings()).of(RUN).reserve(call())
    (order,) = store.orders
    ((cap, within),) = order.trees
    assert cap == TreeCap(RUN.id, RUN.id, from_usd(0.5), from_usd(0.1))
    assert within == delegates_within(RUN.chat_key, RUN.id)
    store = Recorder(Overrun(Cap(Scope.RUN, cap.limit), CapUsage(from_usd(0.5), 0)))
    with pytest.raises(OverBudget, match=r"one run of a job is \$0\.50.*budgets\.per_job_run_usd"):
        await make(store, BudgetSettings()).of(RUN).reserve(call())


async def test_a_run_on_a_model_without_a_price_is_stopped_by_caps_that_were_set_only() -> None:
    store = Recorder()
    await make(store, BudgetSettings(), None).of(RUN).reserve(call())
    await make(store, BudgetSettings(per_job_run_usd=0.0), None).of(RUN).reserve(call())
    assert not store.orders
    with pytest.raises(OverBudget, match=r"budgets\.per_day_usd"):
        await make(store, CAPPED, None).of(RUN).reserve(call())
    written = BudgetSettings(per_job_run_usd=0.5)
    with pytest.raises(OverBudget, match=r"capped \(budgets\.per_job_run_usd\), and the price of"):
        await make(store, written, None).of(RUN).reserve(call())
    await make(store, written, None).of(TURN).reserve(call())
    assert (BudgetSettings().run_cap, BudgetSettings(per_job_run_usd=0.0).run_cap) == (from_usd(0.5), 0)


@pytest.mark.parametrize(
    ("price", "spent", "planned", "longest"),
    [
        (Price(0, 0, from_usd(10), 0, 32_000), 0.0, call(), None),  # all of it fits
        (Price(0, 0, from_usd(15), 0, 64_000), 0.1, call(), 20_000),  # 0.30 dollars are left
        (Price(0, 0, from_usd(15), 0, 64_000), 0.1, call(max_output=100), 100),  # the wish is smaller
        (Price(0, 0, from_usd(10), 0, 64_000), 0.1, call(reasons=True), 6_000),  # it may think beyond it
        (Price(0, 0, from_usd(15), 0, 64_000), 0.399, call(), 256),  # refused rather than cut short
        (None, 0.0, call(), None),
    ],
)
async def test_answers_of_a_run_get_shorter_as_its_cap_comes_near(
    price: Price | None, spent: float, planned: PlannedCall, longest: int | None
) -> None:
    budget = make(Recorder(), BudgetSettings(), price).of(RUN)
    assert budget.longest_output(planned, from_usd(spent)) == longest
    assert make(Recorder(), price=price).of(TURN).longest_output(planned, 0) == planned.max_output
