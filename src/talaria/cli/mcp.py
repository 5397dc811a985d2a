"""`talaria mcp`: the gateway as an MCP server."""

from __future__ import annotations

import os
import socket
import sys
from types import ModuleType

import click

from talaria.channels.http.part import HTTP
from talaria.cli.home_gateway import find_running
from talaria.cli.options import Invocation, group, run_loop
from talaria.config.load import load
from talaria.core.errors import ConfigError
from talaria.parts import PARTS


@group("mcp", "talaria mcp serve")
def command() -> None:
    """Bring tools of MCP servers, and serve this gateway to MCP clients."""


@command.verb("serve", "talaria mcp serve", "talaria mcp serve --http 8766")
@click.option(
    "--http",
    "port",
    metavar="PORT",
    type=click.IntRange(0, 65_535),
    help="Serve HTTP on this port of this machine; 0 takes any free one.",
)
def _serve(invocation: Invocation, port: int | None) -> None:
    """Let MCP clients ask agents, find and read sessions, and schedule jobs.

    Clients such as Claude Desktop start this command themselves and talk to it over stdin and stdout. With
    --http, clients connect to http://127.0.0.1:PORT/mcp and send a token of the gateway. The gateway has to
    run; it may be restarted at any time.
    """
    server = _import_server()
    home = invocation.home()
    open_gateway = server.gateway_opener(lambda: find_running(home, os.environ))
    if find_running(home, os.environ) is None:
        text = "talaria: No gateway runs on this home yet; calls fail until `talaria serve` has started one."
        click.echo(invocation.spoken(text), err=True)
    if port is None:
        run_loop(server.serve_stdio(open_gateway))
        return
    settings = load(home.path, os.environ, PARTS).settings.of(HTTP)
    with socket.socket() as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"Port {port} cannot be used: {error.strerror}.", "Name another with --http."
            ) from error
        click.echo(f"MCP at http://127.0.0.1:{listener.getsockname()[1]}{server.MCP_PATH}")
        sys.stdout.flush()
        run_loop(server.serve_http(open_gateway, listener, settings))


def _import_server() -> ModuleType:
    try:
        from talaria.cli import mcp_server
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The package `{error.name}` is missing, which MCP needs.",
            "Install it with: pip install 'talaria[mcp]'",
        ) from error
    return mcp_server
