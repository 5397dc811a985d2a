"""The tools that ship with Talaria, as parts of the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from talaria.core.settings import GatewayPart
from talaria.jobs.settings import JobSettings
from talaria.net.host_rules import NetworkSettings
from talaria.tools.checks import (
    check_browser,
    check_environment,
    check_network,
    check_sandbox,
    check_web,
)
from talaria.tools.part import ToolScope, family
from talaria.tools.settings import DelegateSettings, SearchSettings, ToolSettings
from talaria.workspace.browser.settings import BrowserSettings, find_program

if TYPE_CHECKING:
    from talaria.tools.tool import BuiltinSource


def _files(scope: ToolScope, settings: ToolSettings) -> BuiltinSource:
    from talaria.tools.files import file_tools  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("files", file_tools(settings.max_result))


def _terminal(scope: ToolScope, settings: ToolSettings) -> BuiltinSource:
    from talaria.tools.terminal import terminal_tools  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("terminal", terminal_tools(settings))


def _recall(scope: ToolScope, settings: ToolSettings) -> BuiltinSource:
    from talaria.tools.recall import recall_tools, session_search_tool  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("recall", (*recall_tools(scope, settings.max_result), session_search_tool(scope)))


def _todo(scope: ToolScope, settings: ToolSettings) -> BuiltinSource:
    from talaria.tools.todo import TODO_TOOL  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("todo", (TODO_TOOL,))


def _ask(scope: ToolScope, settings: ToolSettings) -> BuiltinSource:
    from talaria.tools.ask import AskUser  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("ask", (AskUser(),))


def _delegate(scope: ToolScope, settings: DelegateSettings) -> BuiltinSource:
    from talaria.tools.delegate import DelegateTool  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("delegate", (DelegateTool(lambda: scope.current(DELEGATE)),))


def _jobs(scope: ToolScope, settings: JobSettings) -> BuiltinSource:
    from talaria.tools.jobs import JobsTool, SendMessageTool  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    jobs = JobsTool(scope, lambda: scope.current(JOBS))
    return Family("jobs", (jobs, SendMessageTool(scope.sender, scope.people)))


def _web(scope: ToolScope, settings: SearchSettings) -> BuiltinSource:
    from talaria.net.dialer import Dialer  # noqa: PLC0415
    from talaria.net.fetcher import PageFetcher  # noqa: PLC0415
    from talaria.tools.page_process import PageProcess  # noqa: PLC0415
    from talaria.tools.search_providers import open_search  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415
    from talaria.tools.web import web_tools  # noqa: PLC0415
    from talaria.workspace.sandbox.choice import Sandboxes  # noqa: PLC0415

    def may_fetch() -> bool:
        return bool(scope.current(NETWORK).fetch == "public")

    dialer = Dialer(lambda: scope.current(NETWORK).private_endpoints())
    pages = PageProcess(Sandboxes(scope.current(SANDBOX).sandbox, scope.home, scope.shared))
    provider = open_search(settings, scope.environ)
    tools = web_tools(PageFetcher(dialer), may_fetch, provider, pages)
    return Family("web", tools, release=dialer.close)


def _browser(scope: ToolScope, settings: BrowserSettings) -> BuiltinSource:
    from talaria.tools.browser import browser_tools  # noqa: PLC0415
    from talaria.tools.toolset import Family  # noqa: PLC0415

    return Family("browser", browser_tools(settings) if find_program(settings) else ())


FILES: Final = family("files", "tools", ToolSettings, _files)
TERMINAL: Final = family("terminal", "tools", ToolSettings, _terminal)
RECALL: Final = family("recall", "tools", ToolSettings, _recall)
TODO: Final = family("todo", "tools", ToolSettings, _todo)
ASK: Final = family("ask", "tools", ToolSettings, _ask)
DELEGATE: Final = family("delegate", "delegates", DelegateSettings, _delegate)
JOBS: Final = family("jobs", "jobs", JobSettings, _jobs)
WEB: Final = family("web", "search", SearchSettings, _web, check_web, is_required=True)
BROWSER: Final = family("browser", "browser", BrowserSettings, _browser, check_browser)
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
