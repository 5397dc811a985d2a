"""The tools that ship with Talaria, as parts of the gateway."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from talaria.core.clock import SystemClock
from talaria.core.gateway_part import GatewayPart
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
    from collections.abc import AsyncIterator

    from talaria.net.dialer import Dialer
    from talaria.tools.file_memory import FileMemory
    from talaria.tools.tool import ToolSource
    from talaria.tools.toolset import ToolSet


def _files(settings: ToolSettings) -> ToolSource:
    from talaria.tools.files import file_tools  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("files", file_tools(settings.max_result))


def _terminal(settings: ToolSettings) -> ToolSource:
    from talaria.tools.terminal import terminal_tools  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("terminal", terminal_tools(settings))


def _todo(settings: ToolSettings) -> ToolSource:
    from talaria.tools.todo import todo_tools  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("todo", todo_tools())


def _ask(settings: ToolSettings) -> ToolSource:
    from talaria.tools.ask import ask_tools  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("ask", ask_tools())


def _memory(scope: ToolScope) -> FileMemory:
    from talaria.memory.memory_files import MemoryFiles  # noqa: PLC0415
    from talaria.tools.file_memory import FileMemory  # noqa: PLC0415

    root = (scope.shared or scope.home) / "memory"
    return FileMemory(MemoryFiles(root), scope.people, scope.clock, scope.secrets)


def _web(scope: ToolScope, settings: SearchSettings, dialer: Dialer) -> ToolSource:
    from talaria.net.fetcher import PageFetcher  # noqa: PLC0415
    from talaria.tools.page_process import PageProcess  # noqa: PLC0415
    from talaria.tools.search_providers import open_search  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415
    from talaria.tools.web import web_tools  # noqa: PLC0415
    from talaria.workspace.sandbox.choice import Sandboxes  # noqa: PLC0415

    def may_fetch() -> bool:
        return bool(scope.current(NETWORK).fetch == "public")

    pages = PageProcess(Sandboxes(scope.current(SANDBOX).sandbox, scope.home, scope.shared))
    provider = open_search(settings, scope.environ)
    return Family("web", web_tools(PageFetcher(dialer), may_fetch, provider, pages))


def _skills(home: Path) -> ToolSource:
    from talaria.skills.pins import FOLDER, SkillsInUse  # noqa: PLC0415
    from talaria.tools.skill import SkillSource  # noqa: PLC0415

    return SkillSource(SkillsInUse(home / FOLDER))


@asynccontextmanager
async def _open_memory(scope: ToolScope, settings: ToolSettings) -> AsyncIterator[ToolSource]:
    memory = _memory(scope)
    try:
        yield memory
    finally:
        memory.close()


@asynccontextmanager
async def _open_web(scope: ToolScope, settings: SearchSettings) -> AsyncIterator[ToolSource]:
    from talaria.net.dialer import Dialer  # noqa: PLC0415

    dialer = Dialer(lambda: scope.current(NETWORK).private_endpoints())
    try:
        yield _web(scope, settings, dialer)
    finally:
        dialer.close()


def _recall(scope: ToolScope, settings: ToolSettings) -> ToolSource:
    from talaria.tools.recall import recall_tools  # noqa: PLC0415
    from talaria.tools.session_search import session_search_tool  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("recall", (*recall_tools(scope, settings.max_result), session_search_tool(scope)))


def _jobs(scope: ToolScope) -> ToolSource:
    from talaria.tools.jobs import jobs_tools  # noqa: PLC0415
    from talaria.tools.send_message import SendMessageTool  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    jobs = jobs_tools(scope, lambda: scope.current(JOBS))
    return Family("jobs", (*jobs, SendMessageTool(scope.sender, scope.people)))


FILES: Final = ToolPart(
    name="files",
    table=("tools",),
    settings=ToolSettings,
    open=lambda scope, settings: nullcontext(_files(settings)),
)
TERMINAL: Final = ToolPart(
    name="terminal",
    table=("tools",),
    settings=ToolSettings,
    open=lambda scope, settings: nullcontext(_terminal(settings)),
)
TODO: Final = ToolPart(
    name="todo",
    table=("tools",),
    settings=ToolSettings,
    open=lambda scope, settings: nullcontext(_todo(settings)),
)
RECALL: Final = ToolPart(
    name="recall",
    table=("tools",),
    settings=ToolSettings,
    open=lambda scope, settings: nullcontext(_recall(scope, settings)),
)
ASK: Final = ToolPart(
    name="ask",
    table=("tools",),
    settings=ToolSettings,
    open=lambda scope, settings: nullcontext(_ask(settings)),
)
MEMORY: Final = ToolPart(
    name="memory",
    table=("tools",),
    settings=ToolSettings,
    open=_open_memory,
    findings=check_memory,
)
JOBS: Final = ToolPart(
    name="jobs",
    table=("jobs",),
    settings=JobSettings,
    open=lambda scope, settings: nullcontext(_jobs(scope)),
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
    web, recall = _web(scope, SearchSettings(), Dialer()), _recall(scope, settings)
    return (
        _files(settings),
        _terminal(settings),
        web,
        recall,
        _todo(settings),
        _ask(settings),
        _memory(scope),
        _jobs(scope),
        _skills(scope.home),
    )


def builtin_tools(settings: ToolSettings) -> ToolSet:
    """Return the enabled built-in tools. Raises `ConfigError` for an unknown name in `settings.enabled`."""
    from talaria.tools.toolset import resolve  # noqa: PLC0415

    return resolve(builtin_sources(settings), settings.enabled)
