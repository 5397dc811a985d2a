"""`[sessions]`, `[delivery]`, `[shutdown]`, `[retention]`, and what turns need of the other tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from talaria.agent.settings import AgentSettings
from talaria.core.messages import Part, UserMessage
from talaria.core.settings import Check, Mark
from talaria.core.turns import Turn
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


class Busy(StrEnum):
    """The treatment of a message that comes while a turn of its chat runs.

    QUEUE: it waits until the turn is over. STEER: the running turn reads it before its next model call, if no
    other message waits. INTERRUPT: the running turn is stopped, and the message is next.
    """

    QUEUE = "queue"
    STEER = "steer"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """The settings of turns.

    `turn_seconds` is a turn's time limit, 0 for none; `reasoning` is the configured effort, None for none;
    `zone` is the agent's time zone, None for the machine's.
    """

    agent_name: str
    max_steps: int
    turn_seconds: float
    busy: Busy = Busy.QUEUE
    reasoning: str | None = None
    zone: tzinfo | None = None

    @classmethod
    def of(
        cls, agent: AgentSettings, sessions: SessionSettings, reasoning: str, zone: tzinfo | None
    ) -> TurnSettings:
        return cls(
            agent.name,
            agent.max_steps,
            agent.turn_timeout.total_seconds(),
            Busy(sessions.busy),
            None if reasoning == "none" else reasoning,
            zone,
        )

    def seconds_of(self, turn: Turn) -> float:
        """Return the time limit of a turn in seconds, 0 for none."""
        order = turn.inbound.order
        return order.deadline if order is not None and order.deadline else self.turn_seconds

    def stamp(self, at: float) -> str:
        """Return a time as the model reads it before a message, such as `2025-01-31 14:05 CET`."""
        return _local_time(int(at // 60), self.zone)

    def user_message(
        self, parts: tuple[Part, ...], at: float, untrusted: bool | UnsetType = UNSET
    ) -> UserMessage | None:
        """Return what the model reads of a message that was accepted at `at`; None if it has no parts."""
        return UserMessage(parts, self.stamp(at), untrusted=untrusted) if parts else None

    def message_of(self, turn: Turn) -> UserMessage:
        """Return what the model reads of a message that joins a running turn. Such a message has parts."""
        message = self.user_message(turn.inbound.parts, turn.accepted_at, turn.inbound.untrusted)
        assert message is not None
        return message


@lru_cache(maxsize=8)
def _local_time(minute: int, zone: tzinfo | None) -> str:
    """Return the local time that is put before a user's message, such as `2025-01-31 14:05 CET`."""
    moment = datetime.fromtimestamp(minute * 60, zone)
    return (moment if zone else moment.astimezone()).strftime("%Y-%m-%d %H:%M %Z")


class SessionSettings(msgspec.Struct, frozen=True):
    """When a chat's session ends by itself: after `idle_after` without use, at `daily_at` in the agent's time
    zone, or at whichever comes first. The next message starts a new session. `busy`: see `Busy`."""

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
    """`deadline`: how long running turns have to finish before they are left for the next start.
    `restart_pause`: the longest pause of a start that follows starts which did not end cleanly."""

    deadline: timedelta = timedelta(seconds=10)
    restart_pause: timedelta = timedelta(seconds=60)


class RetentionSettings(msgspec.Struct, frozen=True):
    """`ephemeral`: when sessions of stateless API calls are deleted. `responses`: how long stored responses
    can be fetched and continued. `ledger`: how long messages, replies and
    steps of settled turns are kept beside the log. `ended_sessions`: when ended sessions are deleted with
    their logs, or "forever". `job_sessions`: how long the sessions of jobs' runs are kept; the last one of
    each job stays."""

    ephemeral: timedelta = timedelta(hours=24)
    responses: timedelta = timedelta(days=30)
    ledger: timedelta = timedelta(days=30)
    ended_sessions: Annotated[str, Check(time_or_forever)] = FOREVER
    job_sessions: timedelta = timedelta(days=30)

    @property
    def ended_sessions_kept(self) -> timedelta | None:
        return None if self.ended_sessions == FOREVER else parse_duration(self.ended_sessions)


class DeliverySettings(msgspec.Struct, frozen=True):
    """`timeout`: how long one attempt to send a reply may take. `max_age`: a reply that could not be sent for
    so long is given up, because it is of no use any more."""

    timeout: timedelta = timedelta(seconds=30)
    max_age: timedelta = timedelta(hours=24)
