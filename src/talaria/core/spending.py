"""Money: what tokens cost, what may be spent, and what has been. Whole nanodollars, never floats."""

from __future__ import annotations

from datetime import datetime, time, timedelta, tzinfo
from enum import StrEnum

import msgspec

from talaria.core.ids import Fence, SessionId, TurnId
from talaria.core.messages import TokenUsage

NANO = 1_000_000_000
MILLION = 1_000_000
# What is spent is added up in quarters of an hour: no time zone has a midnight within one.
QUARTER_SECONDS = 900


class Price(msgspec.Struct, frozen=True):
    """Nanodollars for a million tokens. `stored` is for those that the provider writes to its prompt cache;
    `max_output` is the longest answer of the model, 0 if that is not known."""

    input: int
    cached: int
    output: int
    stored: int
    max_output: int = 0


FREE = Price(0, 0, 0, 0)


def cost(tokens: TokenUsage, price: Price) -> int:
    """In nanodollars, rounded up. Reasoning is a part of the output."""
    fresh = max(0, tokens.input - tokens.cached - tokens.stored)
    total = (
        fresh * price.input
        + tokens.cached * price.cached
        + tokens.stored * price.stored
        + tokens.output * price.output
    )
    return -(-total // MILLION)


def most(input_tokens: int, output_tokens: int, price: Price) -> int:
    """The most that a call can cost: nothing of its input comes from the cache, all of it may be stored."""
    dearest = max(price.input, price.cached, price.stored)
    return -(-(input_tokens * dearest + output_tokens * price.output) // MILLION)


def from_usd(dollars: float) -> int:
    """Where a person wrote an amount; from here on it is a whole number."""
    return round(dollars * NANO)


def to_usd(nanodollars: int) -> str:
    """Exactly, as programs read it: "0.0125"."""
    whole, rest = divmod(nanodollars, NANO)
    return f"{whole}.{f'{rest:09}'.rstrip('0'):0<2}"


def show_usd(nanodollars: int) -> str:
    """For people: "$1.50", "$0.0125", and "less than $0.0001" for a trace."""
    steps = (nanodollars + 50_000) // 100_000
    if nanodollars and not steps:
        return "less than $0.0001"
    return f"${to_usd(steps * 100_000)}"


def day_of(now: float, zone: tzinfo | None) -> tuple[float, float]:
    """When the day of `now` began and when it ends; `zone` None is the machine's.

    A midnight that a change of clocks leaves out is the moment behind the gap; one that comes twice is the
    first.
    """
    today = datetime.fromtimestamp(now, zone).date()
    begins, ends = (datetime.combine(today + timedelta(days), time(), zone).timestamp() for days in (0, 1))
    return begins, ends


# -- caps -------------------------------------------------------------------------------------------------


class Scope(StrEnum):
    """What a cap is for. A day and a user's day begin at midnight in the agent's time zone."""

    DAY = "day"
    USER = "user"
    SESSION = "session"


class Cap(msgspec.Struct, frozen=True):
    """So many nanodollars at most."""

    scope: Scope
    limit: int


class PlannedCall(msgspec.Struct, frozen=True):
    """A model call that is about to be made for step `n` of a turn, under the fence of its lease."""

    fence: Fence
    n: int
    provider: str
    model: str
    input_bytes: int
    max_output: int | None = None
    reasons: bool = False


class Reserve(msgspec.Struct, frozen=True):
    """Set `amount` aside for step `n` of a turn, if each cap allows what is spent, reserved and asked for.

    Under the fence of the session's lease. A second order for the same step takes the place of the first.
    `user` is who the turn is for, `since` is when the day began.
    """

    session_id: SessionId
    fence: Fence
    turn_id: TurnId
    n: int
    user: str
    amount: int
    since: float
    caps: tuple[Cap, ...]


class Standing(msgspec.Struct, frozen=True):
    """What is spent and what others have reserved, of one scope."""

    spent: int = 0
    reserved: int = 0


class Overrun(msgspec.Struct, frozen=True):
    """The cap that a reservation would break, and how it stood."""

    cap: Cap
    standing: Standing


def find_overrun(order: Reserve, standings: dict[Scope, Standing]) -> Overrun | None:
    for cap in order.caps:
        standing = standings[cap.scope]
        if standing.spent + standing.reserved + order.amount > cap.limit:
            return Overrun(cap, standing)
    return None


# -- what was spent ---------------------------------------------------------------------------------------


class Spent(msgspec.Struct, frozen=True):
    """Calls, their tokens and what they cost; `unpriced` of the calls have no known price and cost nothing
    here."""

    calls: int = 0
    tokens: TokenUsage = TokenUsage()
    cost: int = 0
    unpriced: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.unpriced + other.unpriced,
        )

    @property
    def cost_usd(self) -> str | None:
        """None when the whole of it is not known."""
        return None if self.unpriced else to_usd(self.cost)


class SpendingQuery(msgspec.Struct, frozen=True):
    """Selects spending: of one session in its life, and of one user and of everyone since `since`."""

    session_id: SessionId
    user: str
    since: float


class Spending(msgspec.Struct, frozen=True):
    """What a session has used in its life, a user and everyone since a moment, and what is reserved now."""

    session: Spent
    user: Spent
    everyone: Spent
    reserved: int


class Account(msgspec.Struct, frozen=True):
    """Where a session and a user stand today, with the caps that hold and the moment when the day ends."""

    spending: Spending
    caps: tuple[Cap, ...]
    resets: str
