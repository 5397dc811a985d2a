"""`[jobs]`: how many scheduled runs go on at once, how often a job may run, and the heartbeat."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec

from talaria.core.settings import Check, Mark, Unset
from talaria.core.units import DURATION_FORMS, parse_duration

MAX_TEXT = 8000  # characters of a job's text
CHECKED_INTERVAL = timedelta(minutes=1)  # the shortest one of a job whose check decides


def duration_or_never(text: str) -> str | None:
    """A rule for an interval that may be left out."""
    if not text:
        return None
    try:
        return None if parse_duration(text) >= CHECKED_INTERVAL else f"{DURATION_FORMS}, at least 1m"
    except ValueError:
        return DURATION_FORMS


class HeartbeatSettings(msgspec.Struct, frozen=True):
    """A job that the gateway keeps for its owner while `every` is set. `to` is the chat that gets its
    answers, none if it is empty."""

    every: Annotated[str, Check(duration_or_never), Unset("no heartbeat"), Mark.LIVE] = ""
    text: Annotated[str, Mark.LIVE] = (
        "Look at what is unfinished in your memory and files. Tell what needs a person now. "
        "If nothing does, answer exactly NO_REPLY."
    )
    to: Annotated[str, Unset("nowhere"), Mark.LIVE] = ""


class JobSettings(msgspec.Struct, frozen=True):
    """`max_running`: how many runs go on at once. `min_interval`: the shortest time between two runs of a job
    without a check. `late`: a slot that was missed for longer is skipped. `max_jobs`: how many unfinished
    jobs one person may have."""

    max_running: Annotated[int, msgspec.Meta(ge=1), Mark.LIVE] = 4
    min_interval: Annotated[timedelta, Mark.LIVE] = timedelta(minutes=5)
    late: Annotated[timedelta, Mark.LIVE] = timedelta(hours=12)
    max_jobs: Annotated[int, msgspec.Meta(ge=1), Mark.LIVE] = 100
    heartbeat: Annotated[HeartbeatSettings, Mark.LIVE] = HeartbeatSettings()
