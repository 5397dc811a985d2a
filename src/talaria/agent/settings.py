"""`[agent]`: who answers."""

from __future__ import annotations

from typing import Annotated

import msgspec


class AgentSettings(msgspec.Struct, frozen=True):
    """`prompt` is extra text for the frozen system prompt; an empty `timezone` is the machine's."""

    name: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[A-Za-z0-9._-]{1,64}\Z",
            description="1 to 64 letters, digits, dots, underscores or dashes",
        ),
    ] = "main"
    prompt: str = ""
    max_steps: Annotated[int, msgspec.Meta(ge=1)] = 60
    timezone: str = ""
