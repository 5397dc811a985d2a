"""`[budgets]`: hard caps on spending.

Before each attempt at a model call, the most that it can cost is reserved in the store if every cap allows
it. The commit that records the attempt replaces the reservation by the real cost. An attempt that was sent
and whose usage stays unknown costs an estimate: its planned input and the output that arrived, or all that
was reserved if the model may have thought in secret. Without a cap nothing is reserved, and calls are only
priced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo

import msgspec
from msgspec import UNSET

from talaria.access.settings import BudgetSettings
from talaria.core.clock import Clock
from talaria.core.delegates import TreeCap
from talaria.core.errors import OverBudget
from talaria.core.ids import DelegateId, SessionId, TurnId, asking_chat, channel_of
from talaria.core.ledger import UsageWrite
from talaria.core.messages import TokenUsage
from talaria.core.problems import Action, Do
from talaria.core.specs import Completion
from talaria.core.spending import (
    MILLION,
    MOST_COUNTED,
    Account,
    Cap,
    Overrun,
    PlannedCall,
    Price,
    Reserve,
    Scope,
    SpendingQuery,
    bounded,
    cost,
    day_of,
    from_usd,
    most,
    show_usd,
    to_usd,
)
from talaria.core.turns import Turn
from talaria.observe.metrics import Metrics
from talaria.store.store import Store

# A low estimate: English has four bytes or more per token, code three, most other scripts two to three.
BYTES_PER_TOKEN = 2
# Some providers let a model think beyond the caller's limit by up to so many tokens.
THINKING_TOKENS = 24_000
_SCHEDULED_TENTHS = 9  # of a daily cap, for turns that no person waits for
_DAILY = (Scope.DAY, Scope.USER)
_OWN_SESSION = SessionId("")
_SHORTEST_ANSWER = 256  # tokens; with fewer, a run is stopped rather than cut short


class Budgets:
    """The caps and prices for all turns, and what was spent. `price` returns the price of a provider's model.
    Days begin at midnight in `zone`, None being the machine's time zone."""

    def __init__(
        self,
        settings: BudgetSettings,
        price: Callable[[str, str], Price | None],
        store: Store,
        *,
        metrics: Metrics,
        clock: Clock,
        zone: tzinfo | None = None,
    ) -> None:
        self.store = store
        self.metrics = metrics
        self._clock = clock
        self._zone = zone
        self.change(settings, price)

    def change(self, settings: BudgetSettings, price: Callable[[str, str], Price | None]) -> None:
        """Apply other caps and prices from the next call on. Reservations stay as they are."""
        self.settings = settings
        self.price = price
        limits = {
            Scope.DAY: settings.per_day_usd,
            Scope.USER: settings.per_user_daily_usd,
            Scope.SESSION: settings.per_session_usd,
        }
        self.caps = tuple(Cap(scope, from_usd(limit)) for scope, limit in limits.items() if limit)

    def of(self, turn: Turn, attempts: int = 0) -> TurnBudget:
        """Return the budget of a turn, or of a side call on its account, whose attempts count from
        `attempts` on."""
        return TurnBudget(self, turn, attempts)

    async def account(self, turn: Turn | None = None, model: str = "") -> Account:
        """Return what was spent today; with a turn, also by its session and its user. `model` is that of the
        session."""
        since, until = self.today()
        whose = (
            SpendingQuery(SessionId(""), "", since)
            if turn is None
            else SpendingQuery(turn.session_id, user_of(turn), since)
        )
        spending = await self.store.spending(whose)
        provider, _, name = model.partition("/")
        is_priced = bool(name) and self.price(provider, name) is not None
        return Account(spending, self.caps, self.moment(until), is_priced)

    async def status(self) -> dict[str, object]:
        """Return what was spent today, what is reserved, and the caps, for operators."""
        account = await self.account()
        spent = account.spending.everyone
        return {
            "today_usd": to_usd(spent.cost),
            "unpriced_calls": spent.unpriced,
            "estimated_calls": spent.estimated,
            "reserved_usd": to_usd(account.spending.reserved),
            "caps_usd": {KEYS[cap.scope].removeprefix("budgets."): to_usd(cap.limit) for cap in self.caps},
            "resets": account.resets,
        }

    def today(self) -> tuple[float, float]:
        """Return when this day began and when it ends."""
        return day_of(self._clock.now(), self._zone)

    def moment(self, at: float) -> str:
        """Return a time for people to read."""
        moment = datetime.fromtimestamp(at, self._zone)
        return (moment if self._zone else moment.astimezone()).strftime("%Y-%m-%d %H:%M %Z")


class TurnBudget(msgspec.Struct, eq=False):
    """The money of one turn. `_attempt` counts its attempts at model calls."""

    _budgets: Budgets
    _turn: Turn
    _attempt: int = 0
    _planned: PlannedCall | None = None
    _is_reserved: bool = False

    async def reserve(self, call: PlannedCall) -> None:
        """Reserve the most that a call can cost; to be called before each attempt. One of the other methods
        then tells how the attempt ended, also if `reserve` was cancelled.

        Raises `OverBudget` if a cap forbids the call, which must not be made then.
        """
        self._attempt += 1
        self._planned = call
        self._is_reserved = bool(self._budgets.caps or tree_caps(self._turn))
        if self._is_reserved:
            await self._reserve(call)

    async def _reserve(self, call: PlannedCall) -> None:
        turn, budgets, price = self._turn, self._budgets, self._price(call)
        if price is None:
            caps = (*budgets.caps, *(run_caps(turn) if budgets.settings.per_job_run_usd else ()))
            if not caps:
                return  # only the usual cap of a run is there, and nothing tells what the run costs
            raise _unknown_price(f"{call.provider}/{call.model}", caps)
        output = self._max_output(call, price)
        amount = most(_input(call), output, price)
        if not amount:
            return
        since, until = budgets.today()
        order = Reserve(
            turn.session_id,
            call.fence,
            turn.id,
            call.n,
            user_of(turn),
            amount,
            since,
            self._caps(),
            self._attempt,
            call.provider,
            call.model,
            _input(call),
            output,
            call.owner,
            tuple((cap, cap.within(turn.chat_key)) for cap in tree_caps(turn)),
            account_of(turn),
            tree_of(turn),
        )
        overrun = await budgets.store.reserve(order)
        if overrun is not None:
            if amount > overrun.cap.limit:
                raise _too_dear(overrun.cap, call, price, amount)
            raise _refusal(overrun, amount, budgets.moment(until), is_scheduled=turn.inbound.gives_way)

    def longest_output(self, call: PlannedCall, spent: int) -> int | None:
        """Return how many tokens the answer may have, None for as many as the model gives. `spent` is what
        the turn has cost. The run of a job gets shorter answers as its cap comes near. If too few tokens are
        left for an answer, the call is refused."""
        order = self._turn.inbound.order
        if order is None or not order.cap or (price := self._price(call)) is None or not price.output:
            return call.max_output
        left = order.cap - order.spent - spent - most(_input(call), 0, price)
        room = left * MILLION // price.output - (THINKING_TOKENS if call.reasons else 0)
        is_enough = most(0, self._max_output(call, price), price) <= left
        return call.max_output if is_enough else max(room, _SHORTEST_ANSWER)

    def charge(self, completion: Completion) -> UsageWrite:
        """Return the usage of the attempt, which ended with this answer, with its cost. If the provider did
        not report it, it is estimated."""
        tokens = bounded(completion.usage)
        if tokens == TokenUsage() and not completion.without_model:
            said = completion.message
            size = _size(
                said.text, *(part for used in said.tool_calls for part in (used.name, used.arguments))
            )
            size += _size(*(thought.text for thought in said.reasoning))
            return self.charge_cut(size, has_reasoned=bool(said.reasoning))
        price = self._price(self._call)
        return self._spend(tokens, None if price is None else cost(tokens, price))

    def charge_cut(self, output_bytes: int, *, has_reasoned: bool) -> UsageWrite:
        """Return an estimate of the usage of the attempt, which was sent and did not end, with its cost.
        `output_bytes` of output arrived."""
        call = self._call
        price, amount = self._price(call), None
        output = -(-output_bytes // BYTES_PER_TOKEN)
        if price is not None:
            longest = self._max_output(call, price)
            output = longest if call.reasons or has_reasoned else min(output, longest)
            amount = most(_input(call), output, price)
        return self._spend(TokenUsage(_input(call), output=output), amount, is_estimate=True)

    def release(self) -> tuple[int, int] | None:
        """Return the step and the number of the attempt, which was not sent, if money may be reserved."""
        return (self._call.n, self._attempt) if self._is_reserved else None

    @property
    def _call(self) -> PlannedCall:
        assert self._planned is not None
        return self._planned

    def _price(self, call: PlannedCall) -> Price | None:
        return self._budgets.price(call.provider, call.model)

    def _spend(self, tokens: TokenUsage, amount: int | None, *, is_estimate: bool = False) -> UsageWrite:
        call, user, turn = self._call, user_of(self._turn), self._turn
        account = _OWN_SESSION if turn.inbound.run is UNSET else account_of(turn)
        if amount is not None:
            self._budgets.metrics.money_spent(call.provider, call.model, amount)
        return UsageWrite(
            *(call.n, call.provider, call.model, tokens, amount, user, self._attempt, is_estimate, account)
        )

    def _caps(self) -> tuple[Cap, ...]:
        """Return the caps for everything. Scheduled work leaves a part of the daily ones to people."""
        caps = self._budgets.caps
        if not self._turn.inbound.gives_way:
            return caps
        return tuple(
            Cap(cap.scope, cap.limit * _SCHEDULED_TENTHS // 10) if cap.scope in _DAILY else cap
            for cap in caps
        )

    def _max_output(self, call: PlannedCall, price: Price) -> int:
        limit = min(price.max_output or self._budgets.settings.assumed_output, MOST_COUNTED)
        if call.max_output is None:
            return limit
        wished = call.max_output + (THINKING_TOKENS if call.reasons else 0)
        return min(wished, limit if price.max_output else MOST_COUNTED)


KEYS = {
    Scope.DAY: "budgets.per_day_usd",
    Scope.USER: "budgets.per_user_daily_usd",
    Scope.SESSION: "budgets.per_session_usd",
    Scope.RUN: "budgets.per_job_run_usd",
}
_WHAT = {
    Scope.DAY: "the gateway's budget for today",
    Scope.USER: "your budget for today",
    Scope.SESSION: "the budget of this session",
    Scope.RUN: "the budget of one run of a job",
}


def run_caps(turn: Turn) -> tuple[Cap, ...]:
    """Return the caps of a job's run or of a delegate, with those above it; none for other turns."""
    return tuple(Cap(Scope.RUN, cap.limit) for cap in tree_caps(turn))


def tree_caps(turn: Turn) -> tuple[TreeCap, ...]:
    """Return the caps that limit the turn together with all delegates below it, and those of turns above."""
    if (order := turn.inbound.order) is None:
        return ()
    above = () if order.descent is None else order.descent.caps
    if not order.cap:
        return above
    return (TreeCap(turn.id, holder_of(turn), order.cap, order.spent), *above)


def holder_of(turn: Turn) -> TurnId | DelegateId:
    """Return how the ids of the turn's delegates begin."""
    order = turn.inbound.order
    return turn.id if order is None or order.descent is None else order.descent.delegate


def account_of(turn: Turn) -> SessionId:
    """Return the session that a delegate is charged to, that of the turn above all; empty for its own."""
    order = turn.inbound.order
    return _OWN_SESSION if order is None or order.descent is None else order.descent.account


def tree_of(turn: Turn) -> str:
    """Return the name of the tree that a delegate belongs to; empty for other turns."""
    order = turn.inbound.order
    return "" if order is None or order.descent is None else order.descent.root


def _input(call: PlannedCall) -> int:
    return min(call.input_bytes // BYTES_PER_TOKEN + 1, MOST_COUNTED)


def _size(*texts: str) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def user_of(turn: Turn) -> str:
    """Return the user's id with the channel, because two platforms may use the same id. A job is on the
    account of the person who asked for it."""
    return f"{channel_of(asking_chat(turn.chat_key))}:{turn.inbound.sender.id}"


def _unknown_price(name: str, caps: Sequence[Cap]) -> OverBudget:
    keys = ", ".join(KEYS[cap.scope] for cap in caps)
    return OverBudget(
        f"The model was not called: spending is capped ({keys}), and the price of {name} is not known.",
        f'Have the operator set input and output in [prices."{name}"] in config.toml, in dollars for a '
        "million tokens (0 for a free model).",
    )


def _refusal(overrun: Overrun, amount: int, until: str, *, is_scheduled: bool) -> OverBudget:
    cap, usage = overrun.cap, overrun.usage
    what = _WHAT[cap.scope]
    if is_scheduled and cap.scope in _DAILY:
        what = f"the part of {what} that scheduled work may use"
    reserved = f", {show_usd(usage.reserved)} is set aside for calls under way" if usage.reserved else ""
    text = (
        f"The model was not called: {what} is {show_usd(cap.limit)}, of which "
        f"{show_usd(usage.spent)} is spent{reserved}, and this call could cost up to "
        f"{show_usd(amount)}."
    )
    action = Action(Do.NEW_BUDGET) if cap.scope is Scope.SESSION else None
    match cap.scope:
        case Scope.SESSION:
            way_out = str(action)
        case Scope.RUN:
            way_out = "Give the job less to do or a cheaper model"
        case _:
            way_out = f"Wait until {until}"
    hint = f"{way_out}, or have the operator raise {KEYS[cap.scope]} in config.toml."
    return OverBudget(text, hint, action=action)


def _too_dear(cap: Cap, call: PlannedCall, price: Price, amount: int) -> OverBudget:
    """Return the refusal of a call that alone could cost more than the whole cap: no waiting helps."""
    text = (
        f"The model was not called: one call may cost up to {show_usd(amount)}, more than the whole of "
        f"{_WHAT[cap.scope]}, {show_usd(cap.limit)}."
    )
    hint = f"Have the operator raise the cap: `talaria config set {KEYS[cap.scope]} DOLLARS`"
    if most(_input(call), 1, price) <= cap.limit:
        model = f"'models.\"{call.provider}/{call.model}\".output'"
        key = model if price.max_output or call.max_output else "budgets.assumed_output"
        hint += f", or lower what one answer may cost: `talaria config set {key} TOKENS`"
    return OverBudget(text, f"{hint}.")
