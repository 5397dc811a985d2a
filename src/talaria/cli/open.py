"""`talaria open`: the web page of the running gateway, logged in."""

from __future__ import annotations

import os
import sys
import webbrowser

import click

from talaria.access.logins import link
from talaria.cli.home_gateway import running_gateway
from talaria.cli.options import Invocation, run_loop, verb
from talaria.core.errors import NotFound


@verb("open", "talaria open", "talaria open --print")
@click.option("--print", "print_only", is_flag=True, help="Print the link and open nothing.")
def command(invocation: Invocation, print_only: bool) -> None:
    """Open the web page in a browser, logged in.

    Each call makes a new link. It works once, within ten minutes, and logs the browser in for 30 days. If no
    browser can be started, the link is printed.
    """
    login_link = run_loop(_new_link(invocation))
    if not print_only and _has_display() and webbrowser.open(login_link):
        click.echo(
            invocation.spoken("Opened in your browser; `talaria open --print` prints the link."), err=True
        )
        return
    click.echo(login_link)


async def _new_link(invocation: Invocation) -> str:
    async with running_gateway(invocation.read_home(), os.environ) as client:
        if client is None:
            raise NotFound(
                "No gateway runs on this home, so there is no page to open.",
                f"Start it in another terminal: {invocation.command_line('serve')}",
            )
        return link(client.url, await client.login_code())


def _has_display() -> bool:
    """Return whether a browser window can open here: not a text browser, and not over ssh."""
    if sys.platform == "darwin":
        return "SSH_CONNECTION" not in os.environ
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
