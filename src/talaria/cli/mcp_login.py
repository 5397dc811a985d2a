"""`talaria mcp login`: the person's side of an OAuth login."""

from __future__ import annotations

import asyncio
import webbrowser
from typing import Any

import click

from talaria.core.access import OAuthClient, OAuthTokens
from talaria.core.errors import ToolError
from talaria.core.text import clean_line
from talaria.mcp.probe import ProbedServer, check_package, probe_server

_LOGIN_SECONDS = 600.0


async def log_in(*given: Any, is_pasted: bool, **more: Any) -> tuple[ProbedServer, OAuthClient, OAuthTokens]:
    """Log in at a server, list its tools, and return what the login gave. Takes the arguments of
    `probe_server`, and raises what that does; `ToolError` if nobody logs in."""
    check_package()
    from talaria.mcp.login import Callback, McpLogin

    async with Callback() as callback:

        async def show(address: str) -> None:
            click.echo(f"Open this address and log in:\n{clean_line(address, 4000)}")
            if not is_pasted:
                await asyncio.to_thread(webbrowser.open, address)
                return
            while not callback.paste(
                await asyncio.to_thread(click.prompt, "Paste the address of the last page")
            ):
                click.echo("That is not the address to which the service sent the browser. It begins with")
                click.echo(callback.url)

        login = McpLogin(given[2], callback, show)
        try:
            async with asyncio.timeout(_LOGIN_SECONDS):
                probed = await probe_server(*given, **more, auth=login.auth, seconds=_LOGIN_SECONDS)
        except TimeoutError:
            raise ToolError("Nobody logged in within ten minutes.", "Run the command again.") from None
        return probed, *login.outcome()
