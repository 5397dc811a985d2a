"""`[agent]`: who answers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec


class AgentSettings(msgspec.Struct, frozen=True):
    """`prompt` is extra text for the frozen system prompt; an empty `timezone` is the machine's. A turn that
    takes longer than `turn_timeout` is stopped and its sender told."""

    name: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[A-Za-z0-9._-]{1,64}\Z",
            description="1 to 64 letters, digits, dots, underscores or dashes",
        ),
    ] = "main"
    prompt: str = ""
    max_steps: Annotated[int, msgspec.Meta(ge=1)] = 60
    turn_timeout: timedelta = timedelta(hours=1)
    timezone: str = ""
