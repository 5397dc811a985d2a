"""`[agent]`: who answers; `[context]`: how much of a conversation the model sees."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, TypeAlias

import msgspec

from talaria.core.settings import Check, Mark, Unset
from talaria.core.text import clean_line, nearest


def known_zone(name: str) -> str | None:
    """A rule for a time zone; an empty name is the machine's."""
    if not name:
        return None
    import zoneinfo  # noqa: PLC0415 - only where one is named

    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        if not zoneinfo.available_timezones():
            return "an empty text, because this machine has no time zone database (install tzdata)"
        return 'a time zone such as "Europe/Berlin"'
    return None


def nearest_zone(name: str) -> str | None:
    import zoneinfo  # noqa: PLC0415

    return nearest(name, zoneinfo.available_timezones())


def absolute_path(value: str) -> str | None:
    return None if not value or value.startswith(("/", "~/")) else "an absolute path, such as ~/work/site"


class ContextSettings(msgspec.Struct, frozen=True):
    """`[context]`. A conversation is compacted when its next request would take more than `compact_at` of the
    model's window, or more than `max_tokens`. The last `keep_turns` turns are not summarised, as far as they
    fit into 30 % of the window. `summary_model` writes summaries, titles and memory; without one, the
    session's own model does."""

    compact_at: Annotated[
        float, msgspec.Meta(ge=0.5, le=0.95, description="a share from 0.5 to 0.95"), Mark.LIVE
    ] = 0.75
    max_tokens: Annotated[int, msgspec.Meta(ge=1000), Mark.LIVE] = 200_000
    keep_turns: Annotated[int, msgspec.Meta(ge=1), Mark.LIVE] = 6
    summary_model: Annotated[str, Unset("the session's own model"), Mark.LIVE] = ""


class AgentSettings(msgspec.Struct, frozen=True):
    """`prompt` is extra text for the frozen system prompt; an empty `timezone` is the machine's. A turn that
    takes longer than `turn_timeout` is stopped and its sender told. `project` is the path of a folder that
    all chats work on; if it is empty, each chat has a folder of its own."""

    name: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[A-Za-z0-9._-]{1,64}\Z",
            description="1 to 64 letters, digits, dots, underscores or dashes",
        ),
    ] = "main"
    prompt: Annotated[str, Mark.LIVE] = ""
    max_steps: Annotated[int, msgspec.Meta(ge=1)] = 60
    turn_timeout: timedelta = timedelta(hours=1)
    timezone: Annotated[str, Check(known_zone, nearest_zone), Unset("the machine's time zone")] = ""
    project: Annotated[str, Check(absolute_path), Unset("a folder for each chat")] = ""


AgentName: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9_-]{1,32}\Z", description="1 to 32 letters, digits, underscores or dashes"
    ),
]


class NamedAgentSettings(msgspec.Struct, frozen=True):
    """`[agents.NAME]`: another agent, for a chat or for delegates. It has the prompt `prompt` in place of
    `agent.prompt`, and only the `tools` that are named, by tool or family; without them, all. A task that is
    handed to it costs `budget_usd` at most, 0 for no cap of its own. With `memory` and `skills` it is told
    what is remembered, and which skills there are. Sessions of `chats` begin with it: keys of chats, or names
    of channels."""

    prompt: str = ""
    model: Annotated[str, Unset("the usual model")] = ""
    tools: Annotated[tuple[str, ...], Unset("all tools")] = ()
    budget_usd: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    memory: bool = True
    skills: bool = True
    chats: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The beginning of the prompt, in a line."""
        return clean_line(self.prompt, 120)
