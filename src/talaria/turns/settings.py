"""`[sessions]`, `[shutdown]` and `[retention]`: how sessions and turns end, and how long rows stay."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

import msgspec


class SessionSettings(msgspec.Struct, frozen=True):
    """When a chat's session ends by itself: after `idle_after` without use, at `daily_at` in the agent's time
    zone, or at whichever comes first. The next message starts a new one."""

    reset: Literal["none", "idle", "daily", "both"] = "none"
    idle_after: timedelta = timedelta(hours=24)
    daily_at: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([01]\d|2[0-3]):[0-5]\d$", description='a time of day from "00:00" to "23:59"'
        ),
    ] = "04:00"


class ShutdownSettings(msgspec.Struct, frozen=True):
    """`deadline`: how long running turns may finish before they are left for the next start."""

    deadline: timedelta = timedelta(seconds=10)


class RetentionSettings(msgspec.Struct, frozen=True):
    """`ephemeral`: when sessions of stateless API calls are deleted."""

    ephemeral: timedelta = timedelta(hours=24)
