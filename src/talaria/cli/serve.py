"""`talaria serve`: the gateway in the foreground, from its banner to its drained end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import NamedTuple, TextIO

import click

from talaria.app import open_gateway
from talaria.channels.http.http_channel import HttpChannel
from talaria.channels.http.part import HTTP
from talaria.channels.http.server import DISK_FULL, answer_while_waiting
from talaria.channels.http.token import ensure_http_token
from talaria.channels.supervisor import open_channels
from talaria.cli.gateway_parts import parts_with_plugins
from talaria.cli.logs import follow_settings, open_audit_log, open_log
from talaria.cli.options import Invocation, run_loop, verb
from talaria.cli.text import count
from talaria.config.home import Home
from talaria.config.load import Loaded, load
from talaria.config.settings import Settings
from talaria.core.clock import Clock
from talaria.core.errors import ConfigError, NoModel
from talaria.core.extensions import PluginState
from talaria.core.failpoints import VARIABLE, arm
from talaria.core.program import spoken, this_version
from talaria.core.redaction import Secret, SecretRegistry
from talaria.core.settings import Parts
from talaria.core.spending import FREE
from talaria.core.text import clean_line, list_some
from talaria.gateway import Gateway, find_extensions
from talaria.models.catalog import ModelChoice
from talaria.models.discovery import DetectedProvider, detect_providers
from talaria.models.known import Prices
from talaria.models.local.downloads import NO_MODEL_VARIABLE, YES_VARIABLE, WeightsDownloads
from talaria.models.local.local_endpoint import WeightsMissing
from talaria.models.local.weights import (
    DEFAULT_MODEL,
    FetchProgress,
    FetchStage,
    describe_model,
    find_weights,
    megabytes,
)
from talaria.models.settings import LOCAL
from talaria.observe.health import GatewayPhase, raise_descriptor_limit, return_large_blocks
from talaria.observe.logs import LogControl, configure
from talaria.parts import PARTS
from talaria.skills.pins import read_status
from talaria.store.part import has_room
from talaria.store.settings import is_file
from talaria.workspace.processes import find_running

# -- the lines about the model in the start banner, and the moving line of a download ---------------------


_MOVE_SECONDS = 0.5


def answers_built_in(gateway: Gateway) -> bool:
    """Return whether the built-in model is the default, so that a better one may be offered."""
    try:
        return gateway.catalog.default().provider == LOCAL and LOCAL not in gateway.settings.providers
    except NoModel:
        return False


def model_lines(gateway: Gateway, found: Sequence[DetectedProvider], invocation: Invocation) -> list[str]:
    """Return one line for a chosen model; for the built-in one its state, and what there is instead."""
    try:
        choice = gateway.catalog.default()
        gateway.providers.wire(choice.provider)
    except NoModel as error:
        return [invocation.spoken(f"{error.user_text} {error.hint}")]
    if not answers_built_in(gateway):
        return [str(choice)]
    lines = [f"built-in {choice.model}: {_state(gateway, choice)}"]
    if (refusal := gateway.local.refusal(choice.model)) is None:
        lines.append(describe_model(choice.model))
    elif isinstance(refusal, WeightsMissing):
        name = "" if choice.model == DEFAULT_MODEL else f" {choice.model}"
        lines.append(f"get it: {invocation.command_line('model pull')}{name}")
    else:
        lines.append(invocation.spoken(refusal.hint))
    offer = f"(found: {', '.join(map(str, found))})" if found else "(sets a real one)"
    return [*lines, f"or: {invocation.command_line('setup')}   {offer}"]


def _state(gateway: Gateway, choice: ModelChoice) -> str:
    if (refusal := gateway.local.refusal(choice.model)) is not None:
        is_fetchable = isinstance(refusal, WeightsMissing)
        size = megabytes(find_weights(choice.model).size)
        return f"not here yet ({size} MB)" if is_fetchable else spoken(refusal.user_text)
    progress = gateway.local.downloads.progress
    if progress is None or progress.stage is FetchStage.HERE:
        return "ready"
    return f"{progress.line()}   (--no-model skips this)"


async def show_progress(downloads: WeightsDownloads, clock: Clock, out: TextIO) -> None:
    """Show the download on a terminal until it ends; the log says how. The cursor stays at the start of the
    line, so that a log line overwrites it."""
    while downloads.is_any:
        out.write(f"\r\033[K  {_moving(downloads.progress)}\r")
        out.flush()
        await clock.sleep(_MOVE_SECONDS)
    out.write("\r\033[K")
    out.flush()


def _moving(progress: FetchProgress | None) -> str:
    return "" if progress is None else f"{progress.model}: {progress.line()}"


# -- `talaria serve`: the gateway in the foreground, from its banner to its drained end -------------------


_log = logging.getLogger("talaria.serve")
AT_ONCE = 130
_ROOM_BYTES = 256 << 10  # for the database's log, lock files and the first messages
_LOOK_SECONDS = 2.0


@verb("serve", "talaria serve", "talaria serve --port 9000", "TALARIA_HOME=/srv/talaria talaria serve")
@click.option("--host", metavar="ADDRESS", help="Listen there instead of http.host.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65_535),
    help="Listen there instead of http.port; 0 takes any free one.",
)
@click.option("--yes", is_flag=True, help="Fetch the built-in model also where no terminal is.")
@click.option("--no-model", is_flag=True, help="Do not fetch the built-in model.")
def command(invocation: Invocation, host: str | None, port: int | None, yes: bool, no_model: bool) -> int:
    """Run the gateway until SIGTERM or Ctrl-C.

    Messages that were accepted are answered before it ends, or taken up again by the next start. A second
    signal ends it at once; nothing is lost by that either. config.toml is read again when it changes, and at
    SIGHUP. Logs go to stderr, and without a terminal also to logs/ in the home.
    """
    arm(os.environ.get(VARIABLE, ""))
    raise_descriptor_limit()
    environ = _with_options(os.environ, host, port)
    environ |= {YES_VARIABLE: "1"} if yes else {}
    environ |= {NO_MODEL_VARIABLE: "1"} if no_model else {}
    home = invocation.home()
    if (running := home.read_gateway()) is not None and home.is_locked():
        raise ConfigError(
            f"A gateway runs on this home already: {running.url} (pid {running.pid}).",
            f"`talaria chat` and `talaria open` reach it. To start another, stop it (kill {running.pid}; "
            "a chat that runs one itself ends with Ctrl-D), or name another home with --home.",
        )
    loaded = load(home.path, environ, PARTS)
    warnings = [*loaded.warnings, *home.prepare()]
    token = ensure_http_token(home, environ, loaded.settings.of(HTTP).token_env)
    warnings += token.warnings
    secrets = SecretRegistry([*loaded.secrets, Secret("http.token", token.value)])
    this_version()  # in a clone it runs git, which would hold up the loop
    with (
        _log_stream(home) as stream,
        open_audit_log(home) as audit,
        configure(loaded.settings.log, secrets, stream, audit=audit) as log,
    ):
        for warning in warnings:
            logging.getLogger("talaria.config").warning("%s", warning)
        parts = parts_with_plugins(home, loaded, environ, secrets)
        return run_loop(_serve(Start(home, loaded, environ, secrets, log, parts), invocation))


class Start(NamedTuple):
    """The values that a gateway is started with."""

    home: Home
    loaded: Loaded
    environ: Mapping[str, str]
    secrets: SecretRegistry
    log: LogControl
    parts: Parts


def _log_stream(home: Home) -> AbstractContextManager[TextIO]:
    """Return stderr; without a terminal, stderr and the file that `talaria logs` shows."""
    return nullcontext(sys.stderr) if sys.stderr.isatty() else open_log(home, sys.stderr)


def _with_options(environ: Mapping[str, str], host: str | None, port: int | None) -> dict[str, str]:
    """Return the environment with the options as variables, so that they are checked like them."""
    given = {"TALARIA_HTTP__HOST": host, "TALARIA_HTTP__PORT": None if port is None else str(port)}
    return {**environ, **{name: value for name, value in given.items() if value is not None}}


async def _serve(start: Start, invocation: Invocation) -> int:
    home, loaded, environ, secrets, log, parts = start
    stop = _stop_on_signals(home)
    if not await _wait_for_room(home, loaded, stop):
        return 0
    async with (
        open_gateway(home, loaded, environ, parts=parts, secrets=secrets) as gateway,
        _open_channels(gateway, log) as http,
    ):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _on_hangup(gateway, stop))
        found = await detect_providers(environ) if answers_built_in(gateway) else []
        click.echo(banner(gateway, http, model_lines(gateway, found, invocation), invocation))
        sys.stdout.flush()
        moving: asyncio.Task[None] | None = None
        if sys.stdout.isatty():
            showing = show_progress(gateway.local.downloads, gateway.clock, sys.stdout)
            moving = asyncio.create_task(showing)
        _settle_memory()
        if not sys.stdout.isatty():  # the banner says it
            is_ready = gateway.health.phase is not GatewayPhase.STARTING
            _log.info("%s at %s", "ready" if is_ready else "listening", http.server.address)
        await stop.wait()
        if moving is not None:
            moving.cancel()
        deadline = loaded.settings.shutdown.deadline.total_seconds()
        _log.info("stopping: running turns may finish within %g s; a second signal ends it at once", deadline)
    if left := await asyncio.to_thread(find_running, home.path):
        names = list_some([clean_line(each.command, 40) for each in left], 5)
        end = " ".join(str(each.pid) for each in left)
        many = count(len(left), "background process", "background processes")
        _log.warning("%s still running: %s. To end: kill %s", many, names, end)
    _log.info("stopped")
    return 0


async def _wait_for_room(home: Home, loaded: Loaded, stop: asyncio.Event) -> bool:
    """Return True once the disks of the home and of its database have room for a start, and False if the
    gateway is stopped before. Answers health checks meanwhile."""
    url = loaded.settings.store.url
    folders = {home.path, home.find_database(url).parent} if is_file(url) else {home.path}

    def is_full() -> bool:
        return not all(has_room(folder, _ROOM_BYTES) for folder in folders)

    if not await asyncio.to_thread(is_full):
        return True
    _log.error("the gateway waits for room: %s %s", DISK_FULL.user_text, DISK_FULL.hint)
    async with answer_while_waiting(loaded.settings.of(HTTP)):
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_SECONDS)
            if not stop.is_set() and not await asyncio.to_thread(is_full):
                _log.info("the disk has room: the gateway starts")
                return True
    return False


@asynccontextmanager
async def _open_channels(gateway: Gateway, log: LogControl) -> AsyncIterator[HttpChannel]:
    follow_settings(gateway, log)
    async with open_channels(gateway, gateway.parts):
        http = gateway.channels[HTTP.name]
        assert isinstance(http, HttpChannel)
        yield http


def _settle_memory() -> None:
    """Collect garbage less often: objects of the start stay alive, and a turn leaves hardly any cycles. Let
    the allocator keep no large blocks that are free."""
    return_large_blocks()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _stop_on_signals(home: Home) -> asyncio.Event:
    """Return an event that the first signal sets. The second signal ends the process at once, which is safe:
    the next start resumes from the ledger."""
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


def _on_hangup(gateway: Gateway, stop: asyncio.Event) -> Callable[[], None]:
    """Return the handler of SIGHUP: stop if the terminal was closed, else read config.toml again."""
    on_terminal = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def on_hangup() -> None:
        if sys.stderr in on_terminal and not sys.stderr.isatty():
            # Python exits with status 120 if it cannot write out its streams at the end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in on_terminal:
                os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            stop.set()
        else:
            gateway.reloader.reload()

    return on_hangup


def banner(gateway: Gateway, http: HttpChannel, model: Sequence[str], invocation: Invocation) -> str:
    """Return what a start prints. A link that logs in is for a terminal only: a pipe, a file or a journal
    would keep it for other readers."""
    settings = gateway.settings
    tools = ", ".join(sorted(settings.tools.enabled)) or "none"
    if sys.stdout.isatty():
        title = f"Talaria {this_version()}   {http.new_link()}"
        how = f"({invocation.command_line('chat')} in another terminal)"
        width = os.get_terminal_size(sys.stdout.fileno()).columns
    else:
        title = f"Talaria {this_version()}   {http.server.address}"
        how = f"({invocation.command_line('open')} logs a browser in)"
        width = 0
    fits = not width or len(title) + len(how) + 5 <= width
    rows = {
        "note": [http.server.notice] if http.server.notice else [],
        "model": model,
        "tools": [tools],
        "spend cap": [str(settings.budgets.caps or "none"), *_cap_hint(settings, invocation)],
        "plug-ins": _plugin_lines(gateway, invocation),
        "skills": _skill_lines(gateway, invocation),
    }
    lines = [f"{title}    {how}"] if fits else [title, f"{'':10}{how}"]
    for name, texts in rows.items():
        lines += [f"{'' if at else name:10}{text}" for at, text in enumerate(texts)]
    return "\n".join(f" {line}" for line in lines)


def _plugin_lines(gateway: Gateway, invocation: Invocation) -> list[str]:
    """Return which plug-ins are in use, and a line for each that has a problem."""
    if (plugins := find_extensions(gateway.parts)) is None:
        return []
    reports = [report for report in plugins.reports() if report.state is not PluginState.OFF]
    used = ", ".join(report.name for report in reports if report.state is PluginState.LOADED)
    trouble = [f"{each.name} is {each.state}: {each.sentence()}" for each in reports if each.problem]
    return [used or "none", *map(invocation.spoken, trouble)] if reports else []


def _skill_lines(gateway: Gateway, invocation: Invocation) -> list[str]:
    """Return which skills were put into the home and wait to be accepted."""
    if not (new := read_status(gateway.home.path).new):
        return []
    return [f"{clean_line(', '.join(new))}: new, not in use   ({invocation.command_line('skills accept')})"]


def _cap_hint(settings: Settings, invocation: Invocation) -> list[str]:
    """Return how to set a spend cap, if there is none and the model may cost money."""
    model = settings.model
    is_free = not model.name or Prices(settings.prices).find(model.provider, model.name) == FREE
    if settings.budgets.caps or is_free:
        return []
    return [f"to set one: {invocation.command_line('config set budgets.per_day_usd 5')}"]
