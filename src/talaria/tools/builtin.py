"""The tools that ship with Talaria, as parts of the gateway."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, closing, nullcontext
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from talaria.core.clock import SystemClock
from talaria.core.gateway_part import GatewayPart, S
from talaria.jobs.settings import JobSettings
from talaria.net.settings import NetworkSettings
from talaria.tools.checks import (
    check_environment,
    check_memory,
    check_network,
    check_sandbox,
    check_skills,
    check_web,
)
from talaria.tools.part import ToolPart, ToolScope
from talaria.tools.settings import SearchSettings, ToolSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from talaria.net.dialer import Dialer
    from talaria.tools.file_memory import FileMemory
    from talaria.tools.tool import Tool, ToolSource
    from talaria.tools.toolset import ToolSet


def _files(scope: ToolScope, settings: ToolSettings) -> tuple[Tool, ...]:
    from talaria.tools.files import file_tools  # noqa: PLC0415

    return file_tools(settings.max_result)


def _terminal(scope: ToolScope, settings: ToolSettings) -> tuple[Tool, ...]:
    from talaria.tools.terminal import terminal_tools  # noqa: PLC0415

    return terminal_tools(settings)


def _recall(scope: ToolScope, settings: ToolSettings) -> tuple[Tool, ...]:
    from talaria.tools.recall import recall_tools  # noqa: PLC0415
    from talaria.tools.session_search import session_search_tool  # noqa: PLC0415

    return (*recall_tools(scope, settings.max_result), session_search_tool(scope))


def _todo(scope: ToolScope, settings: ToolSettings) -> tuple[Tool, ...]:
    from talaria.tools.todo import TODO_TOOL  # noqa: PLC0415

    return (TODO_TOOL,)


def _ask(scope: ToolScope, settings: ToolSettings) -> tuple[Tool, ...]:
    from talaria.tools.ask import AskUser  # noqa: PLC0415

    return (AskUser(),)


def _jobs(scope: ToolScope, settings: JobSettings) -> tuple[Tool, ...]:
    from talaria.tools.jobs import JobsTool  # noqa: PLC0415
    from talaria.tools.send_message import SendMessageTool  # noqa: PLC0415

    jobs = JobsTool(scope, lambda: scope.current(JOBS))
    return (jobs, SendMessageTool(scope.sender, scope.people))


def _web(scope: ToolScope, settings: SearchSettings, dialer: Dialer) -> tuple[Tool, ...]:
    from talaria.net.fetcher import PageFetcher  # noqa: PLC0415
    from talaria.tools.page_process import PageProcess  # noqa: PLC0415
    from talaria.tools.search_providers import open_search  # noqa: PLC0415
    from talaria.tools.web import web_tools  # noqa: PLC0415
    from talaria.workspace.sandbox.choice import Sandboxes  # noqa: PLC0415

    def may_fetch() -> bool:
        return bool(scope.current(NETWORK).fetch == "public")

    pages = PageProcess(Sandboxes(scope.current(SANDBOX).sandbox, scope.home, scope.shared))
    provider = open_search(settings, scope.environ)
    return web_tools(PageFetcher(dialer), may_fetch, provider, pages)


def _memory(scope: ToolScope) -> FileMemory:
    from talaria.memory.memory_files import MemoryFiles  # noqa: PLC0415
    from talaria.tools.file_memory import FileMemory  # noqa: PLC0415

    root = (scope.shared or scope.home) / "memory"
    return FileMemory(MemoryFiles(root), scope.people, scope.clock, scope.secrets)


def _skills(home: Path) -> ToolSource:
    from talaria.skills.pins import FOLDER, SkillsInUse  # noqa: PLC0415
    from talaria.tools.skill import SkillSource  # noqa: PLC0415

    return SkillSource(SkillsInUse(home / FOLDER))


def _make_family(name: str, tools: tuple[Tool, ...]) -> ToolSource:
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family(name, tools)


def _family(
    name: str, table: str, settings: type[S], tools: Callable[[ToolScope, S], tuple[Tool, ...]]
) -> ToolPart[S]:
    """Return a part with tools that need no closing."""
    return ToolPart(
        name=name,
        table=(table,),
        settings=settings,
        open=lambda scope, given: nullcontext(_make_family(name, tools(scope, given))),
    )


@asynccontextmanager
async def _open_memory(scope: ToolScope, settings: ToolSettings) -> AsyncIterator[ToolSource]:
    with closing(_memory(scope)) as memory:
        yield memory


@asynccontextmanager
async def _open_web(scope: ToolScope, settings: SearchSettings) -> AsyncIterator[ToolSource]:
    from talaria.net.dialer import Dialer  # noqa: PLC0415

    with closing(Dialer(lambda: scope.current(NETWORK).private_endpoints())) as dialer:
        yield _make_family("web", _web(scope, settings, dialer))


FILES: Final = _family("files", "tools", ToolSettings, _files)
TERMINAL: Final = _family("terminal", "tools", ToolSettings, _terminal)
RECALL: Final = _family("recall", "tools", ToolSettings, _recall)
TODO: Final = _family("todo", "tools", ToolSettings, _todo)
ASK: Final = _family("ask", "tools", ToolSettings, _ask)
JOBS: Final = _family("jobs", "jobs", JobSettings, _jobs)
MEMORY: Final = ToolPart(
    name="memory",
    table=("tools",),
    settings=ToolSettings,
    open=_open_memory,
    findings=check_memory,
)
SKILLS: Final = ToolPart(
    name="skills",
    table=("tools",),
    settings=ToolSettings,
    open=lambda scope, settings: nullcontext(_skills(scope.home)),
    findings=check_skills,
)
WEB: Final = ToolPart(
    name="web",
    table=("search",),
    settings=SearchSettings,
    is_required=True,
    open=_open_web,
    findings=check_web,
)
# It has no tools of its own: tools that run commands use it.
SANDBOX: Final = GatewayPart(name="sandbox", table=("tools",), settings=ToolSettings, findings=check_sandbox)

# The reach of commands and of tools that fetch; it is no part that is opened.
NETWORK: Final = GatewayPart(
    name="network", table=("network",), settings=NetworkSettings, findings=check_network
)

# It has no tools either: tools that run commands give them these variables.
COMMAND_VARIABLES: Final = GatewayPart(
    name="command variables", table=("tools",), settings=ToolSettings, findings=check_environment
)


def builtin_sources(settings: ToolSettings) -> tuple[ToolSource, ...]:
    from talaria.access.people import People  # noqa: PLC0415
    from talaria.net.dialer import Dialer  # noqa: PLC0415

    # Tools without a home are only described: nothing can be written below this path.
    scope = ToolScope(Path(os.devnull), {}, SystemClock(), People())
    tools = {
        "files": _files(scope, settings),
        "terminal": _terminal(scope, settings),
        "web": _web(scope, SearchSettings(), Dialer()),
        "recall": _recall(scope, settings),
        "todo": _todo(scope, settings),
        "ask": _ask(scope, settings),
        "jobs": _jobs(scope, JobSettings()),
    }
    return (*starmap(_make_family, tools.items()), _memory(scope), _skills(scope.home))


def builtin_tools(settings: ToolSettings) -> ToolSet:
    """Return the enabled built-in tools. Raises `ConfigError` for an unknown name in `settings.enabled`."""
    from talaria.tools.toolset import resolve  # noqa: PLC0415

    return resolve(builtin_sources(settings), settings.enabled)
