"""What `talaria doctor` says of MCP servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from talaria.core.errors import TalariaError
from talaria.core.problems import Problem, ok, problem, shell, warn
from talaria.core.settings import Examination
from talaria.tools.mcp import pins
from talaria.tools.mcp.launch import find_program, variables
from talaria.tools.mcp.probe import check_package
from talaria.tools.mcp.settings import McpServer, McpSettings

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
