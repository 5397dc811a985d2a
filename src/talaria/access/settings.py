"""`[budgets]`, and the type of a channel's `allowed` list: numbers that stay with a person, never names that
move on."""

from __future__ import annotations

from typing import Annotated

import msgspec

# The channels whose people can be paired.
PAIRABLE = ("telegram",)

# For platforms whose ids of people are numbers (Telegram): `allowed: UserNumbers = ()`.
UserNumbers = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)], ...],
    msgspec.Meta(
        description="a list of people's numeric ids, such as [123456789] (a @username can be given up and "
        "taken by someone else, and a negative number is a group, not a person; "
        "`talaria pair list` shows the ids of those who have asked)"
    ),
]

Dollars = Annotated[
    float, msgspec.Meta(ge=0, le=1_000_000_000, description="a number of dollars, 0 for no cap")
]


class BudgetSettings(msgspec.Struct, frozen=True):
    """0 is no cap. `assumed_output` is how many tokens an answer of a model may take whose limit is not
    known."""

    per_day_usd: Dollars = 0.0
    per_session_usd: Dollars = 0.0
    per_user_daily_usd: Dollars = 0.0
    assumed_output: Annotated[int, msgspec.Meta(ge=1)] = 32_768
