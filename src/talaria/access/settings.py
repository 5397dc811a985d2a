"""Which channels people are paired on, and the type of their `allowed` lists: numbers that stay with a
person, never names that move on."""

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
