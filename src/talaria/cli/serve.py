"""`talaria serve`: the gateway in the foreground, from its banner to its drained end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import signal
import sys
from collections.abc import Mapping

import click

from talaria import __version__
from talaria.app import Gateway, open_gateway, serve_http
from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, common
from talaria.config.home import Home, HttpToken
from talaria.config.load import Loaded, load
from talaria.core.errors import NoModel
from talaria.core.redaction import Redactor
from talaria.observe.logs import configure
from talaria.tools.registry import builtin_registry

_log = logging.getLogger("talaria.serve")
AT_ONCE = 130
EXAMPLES = """\b
Examples:
  talaria serve
  talaria serve --port 9000
  TALARIA_HOME=/srv/talaria talaria serve
"""


@click.command("serve", epilog=EXAMPLES)
@common
@click.option("--host", metavar="ADDRESS", help="Listen there instead of http.host.")
@click.option("--port", metavar="PORT", help="Listen there instead of http.port; 0 takes any free one.")
@click.pass_obj
def command(invocation: Invocation, host: str | None, port: str | None) -> int:
    """Run the gateway until SIGTERM or Ctrl-C.

    Messages that were accepted are answered before it ends, or taken up again by the next start. A second
    signal ends it at once; nothing is lost by that either. Logs go to stderr.
    """
    environ = _with_options(os.environ, host, port)
    home = invocation.home()
    loaded = load(home.path, environ)
    warnings = [*loaded.warnings, *home.prepare()]
    token = home.http_token(environ, loaded.settings.http.token_env)
    warnings += token.warnings
    with configure(loaded.settings.log, Redactor([*loaded.secrets, token.value]), sys.stderr):
        for warning in warnings:
            logging.getLogger("talaria.config").warning("%s", warning)
        return run_loop(_serve(home, loaded, token, environ, invocation))


def _with_options(environ: Mapping[str, str], host: str | None, port: str | None) -> dict[str, str]:
    """The options are another way to write the variables, and are checked like them."""
    given = {"TALARIA_HTTP__HOST": host, "TALARIA_HTTP__PORT": port}
    return {**environ, **{name: value for name, value in given.items() if value is not None}}


async def _serve(
    home: Home, loaded: Loaded, token: HttpToken, environ: Mapping[str, str], invocation: Invocation
) -> int:
    stop = _stop_on_signals(home)
    async with open_gateway(home, loaded, environ) as gateway, serve_http(gateway, token.value) as server:
        click.echo(banner(gateway, server.address, server.notice, token, invocation))
        sys.stdout.flush()
        _settle_memory()
        _log.info("ready at %s", server.address)
        await stop.wait()
        deadline = loaded.settings.shutdown.deadline.total_seconds()
        _log.info("stopping: running turns may finish within %g s; a second signal ends it at once", deadline)
    _log.info("stopped")
    return 0


def _settle_memory() -> None:
    """What a start has made stays for good, and a turn leaves hardly any cycles: look for them less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _stop_on_signals(home: Home) -> asyncio.Event:
    """The first signal sets the event, the second leaves the process. The ledger is made for that."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if not stop.is_set():
            stop.set()
            return
        home.remove_gateway()
        os.write(2, b"talaria: stopped at once; the next start takes up what was running.\n")
        os._exit(AT_ONCE)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


def banner(gateway: Gateway, address: str, notice: str, token: HttpToken, invocation: Invocation) -> str:
    tools = builtin_registry(gateway.settings.tools).resolve(gateway.settings.tools.enabled)
    lines = [f"Talaria {__version__} is ready at {address}"]
    if notice:
        lines.append(f"  note   {notice}")
    lines += [
        f"  chat   {invocation.command_line('chat')}   (in another terminal)",
        f"  curl   {_curl(address, token)}",
        f"  model  {_model(gateway)}",
        f"  tools  {', '.join(tools.names) or 'none'}",
        f"  home   {gateway.home.path}",
    ]
    return "\n".join(lines)


def _model(gateway: Gateway) -> str:
    try:
        choice = gateway.catalog.default()
        gateway.providers.wire(choice.provider)
    except NoModel as error:
        return f"{error.user_text} {error.hint}"
    return str(choice)


def _curl(address: str, token: HttpToken) -> str:
    is_file = "/" in token.source
    secret = f"$(cat {shlex.quote(token.source)})" if is_file else f"${token.source}"
    return (
        f'curl -H "Authorization: Bearer {secret}" -d \'{{"text": "Hello"}}\' '
        f"'{address}/api/sessions/hello/messages?wait=60'"
    )
