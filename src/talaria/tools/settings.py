"""`[tools]` and `[search]`: the tools of agents, and the limits of their calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Literal, TypeAlias

import msgspec

from talaria.access.approvals import ApprovalMode
from talaria.core.redaction import ApiAddress
from talaria.core.settings import (
    Check,
    Mark,
    Unset,
    command_value,
    referenced_variable,
    variable_name,
    web_address,
)
from talaria.core.units import Size
from talaria.workspace.sandbox.command import SandboxKind, is_settable

USUAL_FAMILIES = ("files", "terminal", "web", "recall", "todo", "ask", "delegate", "memory", "jobs", "skills")
FAMILIES = (*USUAL_FAMILIES, "browser")
SEARCH_ADDRESSES = {"brave": "https://api.search.brave.com/res/v1", "tavily": "https://api.tavily.com"}


def _command_variable(name: str) -> str | None:
    return None if is_settable(name) else "the name of a variable that a shell can have, such as GITHUB_TOKEN"


def _search_address(url: str) -> str | None:
    return web_address(url) if url else None


CommandVariable: TypeAlias = Annotated[str, Check(_command_variable)]
CommandValue: TypeAlias = Annotated[str, Mark.COMMAND_VALUE, Check(command_value)]


class ToolSettings(msgspec.Struct, frozen=True):
    """`enabled` names the built-in families. Tools whose descriptions take more than `search_above` bytes are
    partly found with `tool_search`. `max_result` limits the text that a model gets of one result;
    the rest goes to a file. `call_timeout` is the time limit of a call, unless its tool has another.
    `approvals` says when a person is asked before a call runs, and a question that nobody has decided expires
    after `question_expiry`. `sandbox` is where commands run, and `env` the
    variables that they get: see `command_environ`. A command of the terminal gets `command_timeout`, or as
    much as its call asks for, up to `max_command_timeout`."""

    enabled: Annotated[tuple[str, ...], Mark.LIVE, Mark.TOOL_PARTS] = USUAL_FAMILIES
    search_above: Annotated[Size, Mark.LIVE] = Size(24 << 10)
    max_result: Size = Size(16 << 10)
    call_timeout: timedelta = timedelta(seconds=120)
    approvals: ApprovalMode = "risky"
    question_expiry: Annotated[timedelta, Mark.LIVE] = timedelta(hours=24)
    sandbox: SandboxKind = "auto"
    command_timeout: timedelta = timedelta(minutes=2)
    max_command_timeout: timedelta = timedelta(minutes=10)
    command_memory: Size = Size(2 << 30)  # of each process
    command_processes: Annotated[int, msgspec.Meta(ge=1)] = 256
    env: dict[CommandVariable, CommandValue] = {}


class DelegateSettings(msgspec.Struct, frozen=True):
    """`[delegates]`: limits of the tasks that a turn hands to child sessions. `max_parallel` of them run side
    by side for one turn. A delegate may delegate itself down to `max_depth`. A turn hands out `max_per_turn`
    at most. After `timeout`, a task and all that it has handed out are stopped; what they found until then is
    reported."""

    max_parallel: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    max_depth: Annotated[int, msgspec.Meta(ge=1, le=5)] = 2
    max_per_turn: Annotated[int, msgspec.Meta(ge=1, le=100)] = 12
    timeout: timedelta = timedelta(hours=1)


class SearchSettings(msgspec.Struct, frozen=True):
    """`[search]`: the provider of `web_search`. Without `base_url` it is the provider's own address."""

    provider: Annotated[Literal["", "searxng", "brave", "tavily"], Unset("no web_search")] = ""
    base_url: Annotated[str, Check(_search_address), Unset("the provider's own")] = ""
    api_key: Annotated[str, Mark.SECRET] = ""
    api_key_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "base_url", ApiAddress(self.base_url))

    @property
    def address(self) -> ApiAddress:
        """The address with its credentials; `base_url` shows it without them."""
        return ApiAddress(self.base_url or SEARCH_ADDRESSES.get(self.provider, ""))

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.provider == "searxng" and not self.base_url:
            yield "base_url", 'is missing: expected the address of your SearXNG, as "http://127.0.0.1:8888".'


# -- the variables of commands: those that `[tools] env` names, and none of the gateway's own -------------


def command_environ(settings: ToolSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a command gets from `[tools] env`. `environ` is the gateway's environment.

    A value `${NAME}` stands for the gateway's variable NAME; without that variable the command gets none.
    """
    found = {}
    for name, value in settings.env.items():
        variable = referenced_variable(value)
        if not variable:
            found[name] = value
        elif variable in environ:
            found[name] = environ[variable]
    return found
