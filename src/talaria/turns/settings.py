"""`[sessions]`, `[delivery]`, `[shutdown]`, `[retention]`: how sessions, turns, replies and rows end."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

import msgspec

from talaria.core.schema import Check, Mark
from talaria.core.units import DURATION_FORMS, parse_duration

FOREVER = "forever"


def time_or_forever(text: str) -> str | None:
    """A rule for how long something is kept."""
    if text == FOREVER:
        return None
    try:
        return None if parse_duration(text) > timedelta() else f'"forever" or {DURATION_FORMS}, above zero'
    except ValueError:
        return f'"forever" or {DURATION_FORMS}'


class SessionSettings(msgspec.Struct, frozen=True):
    """When a chat's session ends by itself: after `idle_after` without use, at `daily_at` in the agent's time
    zone, or at whichever comes first. The next message starts a new one. `busy`: what becomes of a message
    that comes while a turn runs."""

    reset: Annotated[Literal["none", "idle", "daily", "both"], Mark.LIVE] = "none"
    idle_after: Annotated[timedelta, Mark.LIVE] = timedelta(hours=24)
    daily_at: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([01]\d|2[0-3]):[0-5]\d$", description='a time of day from "00:00" to "23:59"'
        ),
        Mark.LIVE,
    ] = "04:00"
    busy: Literal["queue", "steer", "interrupt"] = "queue"


class ShutdownSettings(msgspec.Struct, frozen=True):
    """`deadline`: how long running turns may finish before they are left for the next start. `restart_pause`:
    how long a start waits at most when those before it did not end cleanly."""

    deadline: timedelta = timedelta(seconds=10)
    restart_pause: timedelta = timedelta(seconds=60)


class RetentionSettings(msgspec.Struct, frozen=True):
    """`ephemeral`: when sessions of stateless API calls are deleted. `ledger`: how long messages, replies and
    steps of settled turns are kept beside the log. `ended_sessions`: when ended sessions are deleted with
    their logs, or "forever"."""

    ephemeral: timedelta = timedelta(hours=24)
    ledger: timedelta = timedelta(days=30)
    ended_sessions: Annotated[str, Check(time_or_forever)] = FOREVER

    @property
    def ended_sessions_kept(self) -> timedelta | None:
        return None if self.ended_sessions == FOREVER else parse_duration(self.ended_sessions)


class DeliverySettings(msgspec.Struct, frozen=True):
    """`timeout`: how long one attempt to send a reply may take. `max_age`: a reply that could not be
    sent for so long is given up; nobody wants last week's answer."""

    timeout: timedelta = timedelta(seconds=30)
    max_age: timedelta = timedelta(hours=24)
