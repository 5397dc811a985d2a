"""Memory as a part of the gateway: pages in files, which agents read and edit with the tool `memory`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from talaria.core.memory import FAMILY
from talaria.core.problems import Problem, ok, warn
from talaria.core.settings import Examination
from talaria.tools.part import ToolScope, family
from talaria.tools.settings import ToolSettings

if TYPE_CHECKING:
    from talaria.tools.tool import BuiltinSource


def _make(scope: ToolScope, settings: ToolSettings) -> BuiltinSource:
    from talaria.memory.memory_files import MemoryFiles  # noqa: PLC0415
    from talaria.memory.tool import FileMemory  # noqa: PLC0415

    root = (scope.shared or scope.home) / "memory"
    return FileMemory(MemoryFiles(root), scope.people, scope.clock, scope.secrets)


async def _examine(examination: Examination[ToolSettings]) -> AsyncIterator[Problem]:
    from talaria.memory.memory_files import MemoryFiles  # noqa: PLC0415

    if FAMILY not in examination.settings.enabled:
        return
    root = (examination.shared or examination.home) / "memory"
    troubles = MemoryFiles(root).troubles()
    for trouble in troubles:
        yield warn("memory", trouble, "Fix the file with an editor: see docs/memory.md.")
    if not troubles:
        yield ok("memory", f"The memory of agents is in {root}.")


MEMORY: Final = family(FAMILY, "tools", ToolSettings, _make, _examine)
