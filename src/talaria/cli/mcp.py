"""`talaria mcp`: MCP servers whose tools agents use, and the gateway as an MCP server itself."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
import msgspec

from talaria.channels.http.part import HTTP
from talaria.cli.home_gateway import find_running, running_gateway
from talaria.cli.operations import ask
from talaria.cli.options import Invocation, confirm, group, run_loop
from talaria.cli.text import columns, count, describe_error
from talaria.config.home import SECRETS_FILE, Home, home_environ, read_secrets_file, write_secrets_file
from talaria.config.load import Loaded, load, own_secrets
from talaria.core.access import OAuthClient, OAuthTokens
from talaria.core.errors import BadRequest, ConfigError, NotFound, TalariaError
from talaria.core.text import clean, clean_line
from talaria.mcp import pins
from talaria.mcp.part import MCP, McpServer
from talaria.observe.metrics import ServerReading
from talaria.operations.access import GrantBody, save_login
from talaria.operations.operation import Nothing
from talaria.operations.status import show_status
from talaria.parts import PARTS

if TYPE_CHECKING:
    import httpx2

    from talaria.cli.mcp_add import NewServer
    from talaria.mcp.probe import ProbedServer

_SHOWN_TOOLS = 20
_LOGIN_SECONDS = 600.0


@group("mcp", "talaria mcp add", "talaria mcp list", "talaria mcp serve")
def command() -> None:
    """Add tools from MCP servers, and serve this gateway to MCP clients.

    Paste the settings of a server from its README. Its command runs in a sandbox.
    """


def _pairs(separator: str) -> Callable[[click.Context, click.Parameter, Sequence[str]], dict[str, str]]:
    """Return a callback for options of the form NAME=VALUE."""

    def read(context: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str, str]:
        found = {}
        for value in values:
            name, between, rest = value.partition(separator)
            if not between or not name.strip():
                raise click.BadParameter(f"{value!r} is not of the form {option.metavar}.", context, option)
            found[name.strip()] = rest.strip()
        return found

    return read


@command.verb(
    "add",
    "talaria mcp add                                   then paste the JSON of its README",
    "talaria mcp add --json mcp.json",
    "talaria mcp add time -- uvx mcp-server-time",
    "talaria mcp add docs https://docs.example/mcp --header 'Authorization: Bearer ${DOCS_KEY}'",
)
@click.argument("name", required=False)
@click.argument("words", nargs=-1, metavar="[URL | -- COMMAND ARGUMENTS…]")
@click.option("--json", "text", metavar="FILE_OR_TEXT", help="The JSON, instead of stdin.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", callback=_pairs("="), help="A variable for it.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME: VALUE", callback=_pairs(":"), help="For a URL."
)
@click.option(
    "--input", "inputs", multiple=True, metavar="ID=VALUE", callback=_pairs("="), help="For ${input:ID}."
)
@click.option(
    "--send",
    "sent",
    multiple=True,
    metavar="NAME",
    help="Let the server have the value of this variable without asking. Needed for each variable that its "
    "settings name when there is no terminal.",
)
@click.option("--network", type=click.Choice(["off", "open"]), help="Whether it may reach public hosts.")
@click.option("--writable", multiple=True, metavar="PATH", help="A folder that it may read and write.")
@click.option("--readable", multiple=True, metavar="PATH", help="A folder that it may read.")
@click.option("--force", "is_forced", is_flag=True, help="Replace a server of that name.")
@click.option("--no-test", is_flag=True, help="Add it without starting it first.")
def _add(
    invocation: Invocation,
    name: str | None,
    words: tuple[str, ...],
    text: str | None,
    no_test: bool,
    **options: Any,
) -> int:
    """Add MCP servers, and show the tools that agents get.

    The JSON of Claude Desktop, VS Code and READMEs is taken as it is. Keys in it are moved to secrets.env in
    the home, which only you can read. If the settings name variables of this machine, you see which server
    gets them and confirm it first. Each server is started once; if that fails, it is not added.
    """
    from talaria.cli.mcp_add import AddOptions, confirm_sending, fill_in, plan_server, read_pasted

    given = AddOptions(**{key: value for key, value in options.items() if value is not None})
    home = invocation.home()
    status = 0
    for pasted in fill_in(read_pasted(name or "", words, text), given).servers:
        try:
            new = plan_server(home, pasted, given)
            for note in new.notes:
                click.echo(note)
            confirm_sending(new, given)
            _add_one(invocation, home, new, is_tested=not no_test)
        except TalariaError as error:
            hint = invocation.spoken(f"{error.hint} {pasted.name} was not added.".strip())
            click.echo(describe_error(invocation.spoken(error.user_text), hint), err=True)
            status = 1
    return status


def _add_one(invocation: Invocation, home: Home, new: NewServer, *, is_tested: bool) -> None:
    from talaria.cli.mcp_add import write_server

    probed = None
    if is_tested and new.server.enabled:
        home.prepare()
        probed = _probe(home, new.name, new.server, new.keys)
    write_server(home, new)
    if new.keys:
        moved = f"{count(len(new.keys), 'key')} moved to {home.path / SECRETS_FILE} (mode 0600)"
        click.echo(f"{moved}: {', '.join(new.keys)}.")
    if probed is not None:
        pins.forget(home.path, new.name)
        pins.note_listing(home.path, new.name, new.server.identity, probed.tools)
        _show_tools(home, new.name, probed)
    is_running = find_running(home, os.environ) is not None
    when = "The running gateway has it in a few seconds" if is_running else "`talaria serve` starts it"
    text = f"Added {new.name}. {when}: new sessions have its tools, others after /reload."
    click.echo(invocation.spoken(text))


def _probe(home: Home, name: str, server: McpServer, keys: Mapping[str, str] = {}) -> ProbedServer:
    """Start the server, list its tools and end it. Raises `TalariaError`."""
    if sys.stderr.isatty():
        click.echo(f"Starting {name} …", err=True)
    return run_loop(_probing(home, name, server, keys))


async def _probing(
    home: Home, name: str, server: McpServer, keys: Mapping[str, str], auth: httpx2.Auth | None = None
) -> ProbedServer:
    from talaria.mcp.probe import probe_server

    environ = {**home_environ(home.path, os.environ), **keys}
    settings = _load(home).settings
    is_own, private = own_secrets(settings), settings.network.allow_private
    return await probe_server(
        home.path, name, server, environ, settings.tools, is_own_secret=is_own, private=private, auth=auth
    )


def _show_tools(home: Home, name: str, probed: ProbedServer) -> None:
    offered = pins.read_pins(home.path)[name].offered()
    known = f"{probed.program or name} (protocol {probed.protocol})"
    click.echo(f"{clean_line(known, 100)} has {count(len(offered), 'tool')}:")
    rows = [(f"  {tool.name}", clean_line(tool.description, 80)) for tool in offered.values()]
    click.echo(columns(rows[:_SHOWN_TOOLS] or [("", "")]))
    if len(rows) > _SHOWN_TOOLS:
        click.echo(f"  … and {len(rows) - _SHOWN_TOOLS} more")
    for left in probed.left_out:
        click.echo(f"Not offered: {clean_line(left, 200)}", err=True)


# -- servers that are there -------------------------------------------------------------------------------


@command.verb("list", "talaria mcp list")
def _list(invocation: Invocation) -> None:
    """List the servers, their state, and changes of their tools that wait for approval."""
    home = invocation.read_home()
    servers = _load(home).settings.of(MCP).servers
    if not servers:
        click.echo(invocation.spoken("There are no MCP servers. `talaria mcp add` brings one."))
        return
    readings = run_loop(_readings(home))
    approved = pins.read_pins(home.path)
    rows = [("NAME", "STATE", "TOOLS", "SERVER")]
    told: list[str] = []
    for name, server in servers.items():
        found = approved.get(name, pins.ServerPins(""))
        state, trouble = _state(server, readings, name)
        rows.append((name, state, str(len(found.offered())), clean_line(_where(server), 60)))
        told += [f"{name}: {clean_line(trouble, 300)}"] if trouble else []
        if found.proposed:
            changed = ", ".join(sorted(each or "resources" for each in found.proposed))
            text = f"{name}: changed since it was approved: {clean_line(changed, 200)}."
            told.append(invocation.spoken(f"{text} `talaria mcp approve {name}` shows it."))
    click.echo("\n".join((columns(rows), *told)))


async def _readings(home: Home) -> Mapping[str, ServerReading] | None:
    async with running_gateway(home, os.environ) as client:
        return None if client is None else (await client.carry_out(show_status, Nothing())).mcp_servers


def _state(server: McpServer, readings: Mapping[str, ServerReading] | None, name: str) -> tuple[str, str]:
    if readings is None or name not in readings:
        waits = "no gateway runs" if readings is None else "starting"
        return (waits if server.enabled else "off"), ""
    reading = readings[name]
    return reading.state, f"{reading.trouble} {reading.hint}".strip()


def _where(server: McpServer) -> str:
    return str(server.url) or " ".join(server.command)


@command.verb("test", "talaria mcp test", "talaria mcp test time")
@click.argument("names", nargs=-1, metavar="[NAME…]")
def _test(invocation: Invocation, names: tuple[str, ...]) -> int:
    """Start servers, list their tools, and say what is wrong. Without a name, all of them."""
    home = invocation.read_home()
    servers = _load(home).settings.of(MCP).servers
    status = 0
    for name in names or tuple(servers):
        server = _find(servers, name)
        try:
            probed = _probe(home, name, server)
            _describe_probed(home, name, probed)
        except TalariaError as error:
            text = f"{name}: {invocation.spoken(error.user_text)}"
            click.echo(describe_error(text, invocation.spoken(error.hint)), err=True)
            status = 1
    return status


def _describe_probed(home: Home, name: str, probed: ProbedServer) -> None:
    """Show what a server lists now, beside what is approved of it."""
    found = pins.read_pins(home.path).get(name, pins.ServerPins(""))
    click.echo(f"{name} works: {clean_line(probed.program or 'a server', 80)}, protocol {probed.protocol}.")
    rows = []
    for tool, pinned in sorted(probed.tools.items()):
        known = found.approved.get(tool)
        mark = "" if known is not None and known.hash == pinned.hash else "changed" if known else "new"
        mark = mark if found.approved else ""
        rows.append((f"  {tool or 'resources'}", mark, clean_line(pinned.description, 80)))
    click.echo(columns(rows) if rows else "  It has no tools.")
    for left in probed.left_out:
        click.echo(f"Not offered: {clean_line(left, 200)}", err=True)


@command.verb("approve", "talaria mcp approve github")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def _approve(invocation: Invocation, name: str, yes: bool) -> None:
    """Show how the tools of a server have changed, and let the change count.

    Until then agents have the tools as they were approved. New sessions get the change, others after /reload.
    """
    home = invocation.read_home()
    _find(_load(home).settings.of(MCP).servers, name)
    changes = pins.proposed(home.path, name)
    if not changes:
        click.echo(f"The tools of {name} are as they were approved.")
        return
    for change in changes:
        click.echo(f"{change.kind}: {clean_line(change.name, 80)}")
        for line in change.lines:
            click.echo(f"    {clean(line)}")
    confirm("Let agents use them so?", yes=yes)
    approved = pins.approve(home.path, name, changes)
    click.echo(f"Approved: {count(len(approved), 'change')} of {name}.")
    if len(approved) < len(changes):
        text = f"{name} has changed other tools again meanwhile: `talaria mcp approve {name}` shows them."
        click.echo(invocation.spoken(text), err=True)


@command.verb("login", "talaria mcp login linear", "talaria mcp login linear --paste")
@click.argument("name")
@click.option(
    "--paste", is_flag=True, help="Paste the address of the last page, from a browser on another machine."
)
def _login(invocation: Invocation, name: str, paste: bool) -> None:
    """Log in at a server with a URL that asks for OAuth, in a browser.

    The gateway keeps the login and renews it. Log in again to replace it.
    """
    from talaria.cli.mcp_add import TABLE
    from talaria.config.edit import set_keys

    home = invocation.read_home()
    server = _find(_load(home).settings.of(MCP).servers, name)
    if not server.url:
        raise BadRequest(f"{name} has no url, so there is nowhere to log in.", "Its `env` holds its keys.")
    patient = msgspec.structs.replace(server, start_timeout=timedelta(seconds=_LOGIN_SECONDS))
    probed, client, tokens = run_loop(_log_in(home, name, patient, is_pasted=paste))
    ask(invocation, save_login, GrantBody(server.login, client, tokens))
    if server.auth != "oauth":
        set_keys(home.config, (*TABLE, name), {"auth": "oauth"})
    pins.note_listing(home.path, name, server.identity, probed.tools)
    click.echo(f"Logged in at {clean_line(str(server.url), 200)}.")
    _show_tools(home, name, probed)


async def _log_in(
    home: Home, name: str, server: McpServer, *, is_pasted: bool
) -> tuple[ProbedServer, OAuthClient, OAuthTokens]:
    """Log in at a server, list its tools, and return what the login gave. Raises what `_probe` raises."""
    from talaria.mcp.probe import check_package

    check_package()
    from talaria.mcp.login import Callback, McpLogin

    async with Callback() as callback:

        async def show(address: str) -> None:
            click.echo(f"Open this address and log in:\n{clean_line(address, 4000)}")
            if not is_pasted:
                await asyncio.to_thread(webbrowser.open, address)
                return
            question = "Paste the address of the last page"
            while not callback.paste(await asyncio.to_thread(click.prompt, question)):
                click.echo(
                    f"That address does not begin with {callback.url}, where the service sends browsers."
                )

        login = McpLogin(server, callback, show)
        return await _probing(home, name, server, {}, login.auth), *login.outcome()


@command.verb("remove", "talaria mcp remove github")
@click.argument("name")
def _remove(invocation: Invocation, name: str) -> None:
    """Remove a server with its approvals and the keys that `add` moved. A running gateway ends it."""
    from talaria.cli.mcp_add import TABLE
    from talaria.config.edit import set_keys

    home = invocation.read_home()
    servers = _load(home).settings.of(MCP).servers
    server = _find(servers, name)
    others = {variable for other in servers if other != name for variable in _named(servers[other])}
    stored = read_secrets_file(home.path)
    keys = [variable for variable in _named(server) if variable in stored and variable not in others]
    set_keys(home.config, TABLE, {name: None})
    if server.auth:
        ask(invocation, save_login, GrantBody(server.login))
    pins.forget(home.path, name)
    write_secrets_file(home.path, dict.fromkeys(keys))
    click.echo(f"Removed {name}" + (f", and from secrets.env: {', '.join(keys)}." if keys else "."))
    folder = home.path / pins.FOLDER / "servers" / name
    if folder.is_dir() and any(folder.iterdir()):
        click.echo(f"Its stored files stay in {folder}.")


def _named(server: McpServer) -> Iterator[str]:
    """Yield the variables that the settings of a server name, each once."""
    yield from dict.fromkeys(variable for _, variable in server.references())


def _load(home: Home) -> Loaded:
    return load(home.path, os.environ, PARTS)


def _find(servers: Mapping[str, McpServer], name: str) -> McpServer:
    if name not in servers:
        known = ", ".join(servers) or "none"
        raise NotFound(
            f"There is no MCP server {name!r}; there are: {known}.", "`talaria mcp list` tells more."
        )
    return servers[name]


# -- the gateway as a server ------------------------------------------------------------------------------


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
    from talaria.mcp.probe import check_package

    check_package()
    from talaria.cli import mcp_server

    return mcp_server
