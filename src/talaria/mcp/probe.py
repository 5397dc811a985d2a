"""Trying a server outside of a gateway: it is started, asked for its tools, and ended again."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from talaria.core.errors import TalariaError, ToolError
from talaria.core.installation import has_extra, install_extra
from talaria.core.problems import Problem, ok, problem, shell, warn
from talaria.core.settings import Examination
from talaria.core.slots import FairThreads
from talaria.mcp import pins
from talaria.mcp.launch import CannotRun, ServerLauncher, explain, find_program, variables
from talaria.mcp.part import McpServer, McpSettings
from talaria.mcp.pins import PinnedTool
from talaria.mcp.texts import clean_line
from talaria.tools.settings import ToolSettings
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.command import ProcessLimits

if TYPE_CHECKING:
    import httpx2


class ProbedServer(msgspec.Struct, frozen=True):
    """The answers of a server. `tools` are by the server's names for them, with that of `READER`. `left_out`
    are tools that cannot be offered, each with the reason."""

    program: str
    protocol: str
    tools: dict[str, PinnedTool]
    left_out: tuple[str, ...] = ()


def check_package() -> None:
    """Raise `CannotRun` if the SDK is not installed."""
    if not has_extra("mcp"):
        text = "MCP servers need the package mcp, which is not installed."
        raise CannotRun(text, f"Install it: {install_extra('mcp')}")


async def load_connection(threads: FairThreads) -> Any:
    """Import the SDK beside the event loop, and return the module that uses it. Raises `CannotRun`."""
    check_package()
    return await threads.run("mcp", importlib.import_module, "talaria.mcp.connection")


async def probe_server(
    home: Path,
    name: str,
    server: McpServer,
    environ: Mapping[str, str],
    tools: ToolSettings | None = None,
    *,
    is_own_secret: Callable[[str], bool],
    private: tuple[str, ...] = (),
    auth: httpx2.Auth | None = None,
) -> ProbedServer:
    """Start the server or reach it, list its tools, and end it. Nothing is approved by that. `environ` has
    the keys that the settings name, `private` are the addresses of `network.allow_private`. `is_own_secret`
    tells whether a variable holds a secret of the gateway. `auth` logs in.

    Raises `TalariaError`: what is wrong, and in its hint what to do.
    """
    tools = tools or ToolSettings()
    launcher = ServerLauncher(
        home,
        environ,
        Sandboxes(tools.sandbox, home),
        limits=ProcessLimits(tools.command_memory, tools.command_processes),
        private=lambda: private,
        is_own_secret=is_own_secret,
        auth=auth,
    )
    try:
        module = await load_connection(launcher.threads)
        async with module.open_connection(name, server, launcher) as (connection, listing):
            session = connection.session
            info = session.server_info
            program = clean_line(f"{info.name} {info.version}") if info is not None else ""
            return ProbedServer(program, session.protocol_version or "", listing.tools, listing.left_out)
    except CannotRun:
        raise
    except (TalariaError, BaseExceptionGroup) as error:
        first = _first(error)
        hint = first.hint if isinstance(first, TalariaError) else ""
        raise ToolError(failure_text(error), hint or explain(server)) from error
    finally:
        await launcher.close()


def failure_text(error: BaseException) -> str:
    """Return what to say of a failure; of several, the first."""
    error = _first(error)
    if isinstance(error, TalariaError):
        return error.user_text
    return clean_line(f"{type(error).__name__}: {error}")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# -- what `talaria doctor` says of MCP servers ------------------------------------------------------------


_UP = ("ready", "starting")


async def examine_servers(examination: Examination[McpSettings]) -> AsyncIterator[Problem]:
    """Yield a finding for each server, from the running gateway or else from the settings alone. Starts no
    server: `talaria mcp test` does."""
    home, settings = examination.home, examination.settings
    try:
        approved = pins.read_pins(home)
    except TalariaError as error:
        yield problem("mcp", error.user_text, error.hint)
        return
    running: Mapping[str, Any] = (examination.status or {}).get("mcp_servers", {})
    for name, server in settings.servers.items():
        found = approved.get(name)
        if found is not None and found.proposed:
            tools = ", ".join(sorted(each or "resources" for each in found.proposed)[:5])
            yield warn(
                "mcp",
                f"{name} lists other tools than were approved ({tools}). They are not offered.",
                "Look at the change, then approve it:",
                shell("talaria", "mcp", "approve", name),
            )
        if not server.enabled:
            yield ok("mcp", f"{name} is not enabled.")
        elif name in running:
            yield _of_running(name, running[name])
        else:
            yield _of_settings(name, server, examination.environ)


def _of_running(name: str, reading: Mapping[str, Any]) -> Problem:
    state, trouble = reading.get("state", ""), reading.get("trouble", "")
    if state not in _UP:
        hint = reading.get("hint", "") or "Try it alone:"
        return problem("mcp", f"{name} is {state}. {trouble}", hint, shell("talaria", "mcp", "test", name))
    if left_out := reading.get("left_out"):
        return warn("mcp", f"{name}: some tools cannot be offered: {'; '.join(left_out)}.")
    return ok("mcp", f"{name} is {state}, with {reading.get('tools', 0)} tools.")


def _of_settings(name: str, server: McpServer, environ: Mapping[str, str]) -> Problem:
    """Try what can be tried without starting the server."""
    try:
        check_package()
        variables(server.headers or server.env, environ)
        if server.command:
            find_program(server.command[0], environ.get("PATH", ""))
    except TalariaError as error:
        return problem("mcp", f"{name}: {error.user_text}", error.hint)
    return ok("mcp", f"{name} starts with the gateway.")
