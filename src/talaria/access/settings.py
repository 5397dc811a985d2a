"""`[budgets]`, `[people.NAME]`, and the type of a channel's `allowed` list: ids that stay with a person,
never user names."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from talaria.core.setting_marks import Check, matching

# For platforms with numeric user ids: `allowed: UserNumbers = ()`.
UserNumbers = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)], ...],
    msgspec.Meta(
        description="a list of people's numeric ids, such as [123456789] (a @username can be given up and "
        "taken by someone else, and a negative number is a group, not a person; "
        "`talaria pair list` shows the ids of people who asked)"
    ),
]

PersonName = Annotated[
    str,
    Check(
        matching(
            "[a-z0-9][a-z0-9_-]{0,63}",
            "a name of 1 to 64 small letters, digits, underscores or dashes, or owner for yourself",
        )
    ),
]

_IDENTITY: Final = re.compile(r"[a-z0-9_-]{1,32}:[^\s\x00-\x1f]{1,100}")


def identities(ids: tuple[str, ...]) -> str | None:
    """A rule for a list of identities."""
    if all(map(_IDENTITY.fullmatch, ids)):
        return None
    return 'a list of a channel and an id each, "CHANNEL:123456789" or "http:token:NAME"'


class PersonSettings(msgspec.Struct, frozen=True):
    """`ids` are the identities of one person."""

    ids: Annotated[tuple[str, ...], Check(identities)] = ()


Dollars = Annotated[
    float, msgspec.Meta(ge=0, le=1_000_000_000, description="a number of dollars, 0 for no cap")
]


class BudgetSettings(msgspec.Struct, frozen=True):
    """A cap of 0 is no cap. `per_job_run_usd` holds for a run of a job with all its tries. `assumed_output`
    is the number of output tokens that is reserved for a call to a model whose limit is not known."""

    per_day_usd: Dollars = 0.0
    per_session_usd: Dollars = 0.0
    per_user_daily_usd: Dollars = 0.0
    per_job_run_usd: Dollars = 0.5
    assumed_output: Annotated[int, msgspec.Meta(ge=1)] = 32_768
