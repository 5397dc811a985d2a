"""`[tools]`: the tools of agents, and the limits of their calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec

from talaria.core.setting_marks import Mark
from talaria.core.units import Size
from talaria.workspace.sandbox.port import SandboxKind

FAMILIES = ("files", "todo")


class ToolSettings(msgspec.Struct, frozen=True):
    """`enabled` names the built-in families. `max_result` limits the text that a model gets of one result;
    the rest goes to a file. `call_timeout` is the time limit of a call, unless its tool has another.
    `sandbox` is where commands run."""

    enabled: Annotated[tuple[str, ...], Mark.LIVE, Mark.TOOL_PARTS] = FAMILIES
    max_result: Size = Size(16 << 10)
    call_timeout: timedelta = timedelta(seconds=120)
    sandbox: SandboxKind = "auto"
