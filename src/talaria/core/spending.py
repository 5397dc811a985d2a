"""Money: prices of tokens, caps on spending, and what was spent. Whole nanodollars, never floats."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from datetime import datetime, time, timedelta, tzinfo
from enum import StrEnum

import msgspec

from talaria.core.delegates import TreeCap
from talaria.core.ids import Fence, OwnerId, SessionId, TurnId
from talaria.core.messages import TokenUsage

NANO = 1_000_000_000
MILLION = 1_000_000
# A larger number of tokens or nanodollars is a lie of a provider. Thousands of these add up within 64 bits.
MOST_COUNTED = 10**15
# Spending is added up in quarters of an hour: in every time zone, midnight is at the edge of one.
QUARTER_SECONDS = 900


class Price(msgspec.Struct, frozen=True):
    """Nanodollars for a million tokens. `stored` is for tokens that the provider writes to its prompt cache.
    `max_output` is the model's longest answer in tokens, 0 if unknown."""

    input: int
    cached: int
    output: int
    stored: int
    max_output: int = 0


FREE = Price(0, 0, 0, 0)


def price_command(name: str) -> str:
    """Return the command, in backticks, that sets the price of the model `name` (PROVIDER/MODEL)."""
    key = shlex.quote(f"prices.{json.dumps(name)}")
    return f"`talaria config set {key} '{{input = 1.00, output = 2.00}}'`"


def cost(tokens: TokenUsage, price: Price) -> int:
    """Return the cost in nanodollars, rounded up. Reasoning is a part of the output."""
    tokens = bounded(tokens)
    fresh = max(0, tokens.input - tokens.cached - tokens.stored)
    total = (
        fresh * price.input
        + tokens.cached * price.cached
        + tokens.stored * price.stored
        + tokens.output * price.output
    )
    return min(-(-total // MILLION), MOST_COUNTED)


def bounded(tokens: TokenUsage) -> TokenUsage:
    """Return the tokens with each number between 0 and `MOST_COUNTED`."""
    counts = (tokens.input, tokens.cached, tokens.output, tokens.reasoning, tokens.stored)
    if min(counts) >= 0 and max(counts) <= MOST_COUNTED:
        return tokens
    return TokenUsage(*(min(max(0, count), MOST_COUNTED) for count in counts))


def most(input_tokens: int, output_tokens: int, price: Price) -> int:
    """Return the most that a call can cost: no input comes from the cache, and all of it may be stored."""
    dearest = max(price.input, price.cached, price.stored)
    return min(-(-(input_tokens * dearest + output_tokens * price.output) // MILLION), MOST_COUNTED)


def from_usd(dollars: float) -> int:
    """Return an amount that a person wrote in dollars, in nanodollars."""
    return round(dollars * NANO)


def to_usd(nanodollars: int) -> str:
    """Return the exact amount in dollars, for programs: "0.0125"."""
    whole, rest = divmod(nanodollars, NANO)
    return f"{whole}.{f'{rest:09}'.rstrip('0'):0<2}"


def show_usd(nanodollars: int) -> str:
    """Return the amount for people: "$1.50", "$0.0125", or "less than $0.0001"."""
    steps = (nanodollars + 50_000) // 100_000
    if nanodollars and not steps:
        return "less than $0.0001"
    return f"${to_usd(steps * 100_000)}"


def day_of(now: float, zone: tzinfo | None) -> tuple[float, float]:
    """Return when the day of `now` began and when it ends; `zone` None is the machine's time zone.

    A midnight that a change of clocks skips is the moment behind the gap. Of a midnight that comes twice, the
    first counts.
    """
    today = datetime.fromtimestamp(now, zone).date()
    begins, ends = (datetime.combine(today + timedelta(days), time(), zone).timestamp() for days in (0, 1))
    return begins, ends


# -- caps -------------------------------------------------------------------------------------------------


class Scope(StrEnum):
    """Whose spending a cap limits: everyone's in a day, a user's in a day, a session's in its life, or that
    of one run of a job, or of one delegate, with all its tries and all delegates below it.

    Days begin at midnight in the agent's time zone.
    """

    DAY = "day"
    USER = "user"
    SESSION = "session"
    RUN = "run"


class Cap(msgspec.Struct, frozen=True):
    """At most `limit` nanodollars within a scope."""

    scope: Scope
    limit: int


class PlannedCall(msgspec.Struct, frozen=True):
    """A model call that is about to be made for step `n` of a turn, under the fence of its lease. A call
    beside turns has no fence but an `owner`, and the step 0. `reasons` tells that the model may think, and
    that its thoughts may not be sent."""

    fence: Fence | None
    n: int
    provider: str
    model: str
    input_bytes: int
    max_output: int | None = None
    reasons: bool = False
    owner: OwnerId = OwnerId("")


class Reserve(msgspec.Struct, frozen=True):
    """Set `amount` aside for an attempt at step `n` of a turn, if every cap has room for it beside what is
    spent and reserved.

    `fence` is that of the session's lease; without one, `owner` is the process that makes the call. A second
    order for the same attempt adds to the first. `user` is the person whom the turn is for, `since` is when
    the day began. `provider`, `model` and the tokens `input` and `output` are recorded if the attempt has to
    be charged as if it had cost `amount`. `trees` are the caps of the turn itself and of those above it, each
    with the keys of the chats below it. `account` is the session whose cap applies and that is charged;
    `tree` names the tree of a delegate, whose turns spend from it at the same time.
    """

    session_id: SessionId
    fence: Fence | None
    turn_id: TurnId
    n: int
    user: str
    amount: int
    since: float
    caps: tuple[Cap, ...]
    attempt: int = 1
    provider: str = ""
    model: str = ""
    input: int = 0
    output: int = 0
    owner: OwnerId = OwnerId("")
    trees: tuple[tuple[TreeCap, str], ...] = ()
    account: SessionId = SessionId("")
    tree: str = ""


class CapUsage(msgspec.Struct, frozen=True):
    """The amounts that are spent and, by other calls, reserved in the scope of a cap."""

    spent: int = 0
    reserved: int = 0


class Overrun(msgspec.Struct, frozen=True):
    """The cap that a reservation would break, and what was used of it."""

    cap: Cap
    usage: CapUsage


def find_overrun(order: Reserve, usages: Iterable[tuple[Cap, CapUsage]]) -> Overrun | None:
    """Return the first cap that the order would break."""
    for cap, used in usages:
        if used.spent + used.reserved + order.amount > cap.limit:
            return Overrun(cap, used)
    return None


# -- what was spent ---------------------------------------------------------------------------------------


class Spent(msgspec.Struct, frozen=True):
    """A number of calls, their tokens and their cost. `unpriced` of the calls have no known price and add
    nothing to `cost`. The tokens and the cost of `estimated` calls are estimates: the calls did not end, or
    the provider did not report their usage."""

    calls: int = 0
    tokens: TokenUsage = TokenUsage()
    cost: int = 0
    unpriced: int = 0
    estimated: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.unpriced + other.unpriced,
            self.estimated + other.estimated,
        )

    @property
    def cost_usd(self) -> str | None:
        """The cost in dollars; None if the price of a call is unknown."""
        return None if self.unpriced else to_usd(self.cost)


class SpendingQuery(msgspec.Struct, frozen=True):
    """Selects spending: a session's in its life, a user's since `since`, and everyone's since `since`."""

    session_id: SessionId
    user: str
    since: float


class Spending(msgspec.Struct, frozen=True):
    """The answer to a `SpendingQuery`, and the total that is reserved now."""

    session: Spent
    user: Spent
    everyone: Spent
    reserved: int


class Account(msgspec.Struct, frozen=True):
    """The spending of a session and a user today, the caps that apply, when the day ends, and whether the
    price of the session's model is known now."""

    spending: Spending
    caps: tuple[Cap, ...]
    resets: str
    is_priced: bool = False
