"""Tools that ask a person before they run, for tests at the edges of channels."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from talaria.core.tools import Risk, ToolSpec
from talaria.parts import PARTS
from talaria.tools.function import parameters
from talaria.tools.part import ToolPart
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import Tool, ToolContext
from talaria.tools.toolset import Family


class Danger(Tool):
    """A tool that declares itself risky and notes with which arguments it ran."""

    def __init__(self) -> None:
        self.spec = ToolSpec("danger", "Is risky.", parameters({"what": {"type": "string"}}), risk=Risk.HIGH)
        self.ran: list[str] = []

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self.ran.append(arguments.get("what", ""))
        return "danger ran"

    def parts(self) -> tuple[Any, ...]:
        """The parts of a gateway that has this tool too."""
        return (*PARTS, self._part())

    def _part(self) -> ToolPart[ToolSettings]:
        family = Family("danger", (self,), is_builtin=False)
        return ToolPart(
            name="danger",
            table=("tools",),
            settings=ToolSettings,
            open=lambda scope, settings: nullcontext(family),
        )


def calling(what: str = "x", reply: str = "done") -> str:
    """Return a message that lets the scripted model call `danger`."""
    return f'[[call danger {{"what": "{what}"}}]][[reply {reply}]]'
