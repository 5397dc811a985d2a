"""`[tools]`: the tools of agents, and the limits of their calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, TypeAlias

import msgspec

from talaria.access.risk import ApprovalMode
from talaria.core.setting_marks import Check, Mark, command_value
from talaria.core.units import Size
from talaria.workspace.sandbox.port import SandboxKind, is_settable

FAMILIES = ("files", "terminal", "todo", "ask")


def _command_variable(name: str) -> str | None:
    return None if is_settable(name) else "the name of a variable that a shell can have, such as GITHUB_TOKEN"


CommandVariable: TypeAlias = Annotated[str, Check(_command_variable)]
CommandValue: TypeAlias = Annotated[str, Mark.COMMAND_VALUE, Check(command_value)]


class ToolSettings(msgspec.Struct, frozen=True):
    """`enabled` names the built-in families. `max_result` limits the text that a model gets of one result;
    the rest goes to a file. `call_timeout` is the time limit of a call, unless its tool has another.
    `approvals` says when a person is asked before a call runs. `sandbox` is where commands run, and `env` the
    variables that they get: see `command_environ`. A command of the terminal gets `command_timeout`, or as
    much as its call asks for, up to `max_command_timeout`."""

    enabled: Annotated[tuple[str, ...], Mark.LIVE, Mark.TOOL_PARTS] = FAMILIES
    max_result: Size = Size(16 << 10)
    call_timeout: timedelta = timedelta(seconds=120)
    approvals: ApprovalMode = "risky"
    sandbox: SandboxKind = "auto"
    command_timeout: timedelta = timedelta(minutes=2)
    max_command_timeout: timedelta = timedelta(minutes=10)
    command_memory: Size = Size(2 << 30)  # of each process
    command_processes: Annotated[int, msgspec.Meta(ge=1)] = 256
    env: dict[CommandVariable, CommandValue] = {}
