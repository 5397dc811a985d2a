"""The checks of `talaria doctor`. They look, and change nothing."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import stat
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from talaria import __version__
from talaria.channels.console.client import GatewayClient
from talaria.channels.http.server import bind
from talaria.channels.http.settings import DEFAULT_PORT
from talaria.cli.connect import is_locked, running_gateway
from talaria.cli.database_check import check_database
from talaria.config.home import Home
from talaria.config.load import Loaded, load
from talaria.config.settings import Settings
from talaria.core.errors import TalariaError
from talaria.core.units import format_size
from talaria.models.catalog import Catalog
from talaria.models.providers import Providers
from talaria.store.filesystems import check_filesystem
from talaria.store.sqlite.engine import engine_version, is_single_process_only
from talaria.tools.registry import builtin_registry

ANSWER_SECONDS = 10.0
LITTLE_SPACE, NO_SPACE = 1 << 30, 100 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """`fix` is a command or a sentence that says what to do."""

    name: str
    level: Level
    text: str
    fix: str = ""

    @classmethod
    def of(cls, name: str, error: TalariaError) -> Finding:
        return cls(name, Level.PROBLEM, error.user_text, error.hint)


async def examine(home: Home, environ: Mapping[str, str]) -> list[Finding]:
    findings = [*check_machine(home), *check_home(home)]
    loaded: Loaded | None = None
    try:
        loaded = load(home.path, environ)
    except TalariaError as error:
        findings.append(Finding.of("config", error))
    else:
        findings += check_config(home, loaded)
    settings = loaded.settings if loaded is not None else Settings()
    findings += check_token(home, environ, settings.http.token_env)
    try:
        async with running_gateway(home, environ) as client:
            if client is not None:
                findings += [finding async for finding in check_gateway(client)]
            else:
                findings += check_idle(home, settings)
    except TalariaError as error:  # a running gateway whose token cannot be had
        if (finding := Finding.of("token", error)) not in findings:
            findings.append(finding)
    if loaded is not None:
        findings += [finding async for finding in check_agent(home, settings, environ)]
    return findings


def check_machine(home: Home) -> Iterator[Finding]:
    python = platform.python_version()
    yield Finding("talaria", Level.OK, f"Talaria {__version__} on Python {python}, {platform.system()}.")
    if is_single_process_only:
        yield Finding(
            "sqlite",
            Level.WARN,
            f"SQLite {engine_version} can damage a file that several processes use (fixed in 3.51.3), "
            "so only one may open it.",
            "pip install pysqlite3",
        )
    else:
        yield Finding("sqlite", Level.OK, f"SQLite {engine_version}.")
    if time.time() < Path(__file__).stat().st_mtime - 86_400:
        now = time.strftime("%Y-%m-%d %H:%M")
        yield Finding(
            "clock",
            Level.PROBLEM,
            f"The clock says {now}, which is before this program was installed.",
            "Set it: timedatectl set-ntp true",
        )
    else:
        yield Finding("clock", Level.OK, time.strftime("It is %Y-%m-%d %H:%M %Z."))
    yield from _check_disk(_existing(home.path))


def _check_disk(folder: Path) -> Iterator[Finding]:
    try:
        check_filesystem(folder)
        free = shutil.disk_usage(folder).free
    except TalariaError as error:
        yield Finding.of("disk", error)
        return
    except OSError as error:
        yield Finding("disk", Level.WARN, f"The disk of {folder} cannot be looked at: {error.strerror}.")
        return
    level = Level.PROBLEM if free < NO_SPACE else Level.WARN if free < LITTLE_SPACE else Level.OK
    fix = "" if level is Level.OK else f"Make room on the disk that holds {folder}."
    yield Finding("disk", level, f"{format_size(free)} free.", fix)


def check_home(home: Home) -> Iterator[Finding]:
    path, elsewhere = home.path, "Name a folder that you can write with --home or TALARIA_HOME."
    if not path.exists():
        parent = _existing(path)
        if parent.is_dir() and os.access(parent, os.W_OK):
            yield Finding("home", Level.OK, f"{path} is not there yet; the first start makes it.")
        else:
            yield Finding(
                "home", Level.PROBLEM, f"{path} cannot be made: {parent} cannot be written.", elsewhere
            )
        return
    if not path.is_dir():
        yield Finding("home", Level.PROBLEM, f"{path} is a file, not a folder.", elsewhere)
        return
    if not os.access(path, os.W_OK | os.X_OK):
        yield Finding("home", Level.PROBLEM, f"{path} cannot be written by this user.", elsewhere)
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        yield Finding(
            "home", Level.WARN, f"{path} is open to other users (mode {mode:04o}).", f"chmod 700 {path}"
        )
    else:
        yield Finding("home", Level.OK, f"{path}, for this user only.")


def check_config(home: Home, loaded: Loaded) -> Iterator[Finding]:
    for warning in loaded.warnings:
        yield Finding("config", Level.WARN, warning)
    if not loaded.warnings:
        there = "is fine" if loaded.path else "is not there; everything runs on defaults"
        yield Finding("config", Level.OK, f"{home.config} {there}.")


def check_token(home: Home, environ: Mapping[str, str], token_env: str) -> Iterator[Finding]:
    if token_env and token_env in environ:
        try:
            home.find_token(environ, token_env)
        except TalariaError as error:
            yield Finding.of("token", error)
        else:
            yield Finding("token", Level.OK, f"The HTTP token comes from {token_env}.")
        return
    try:
        mode = stat.S_IMODE(home.token_file.stat().st_mode)
    except OSError:
        if not is_locked(home):
            yield Finding("token", Level.OK, "There is no HTTP token yet; the first start makes one.")
        return
    if mode & _OTHERS:
        text = f"{home.token_file} is open to other users (mode {mode:04o})."
        yield Finding("token", Level.WARN, text, f"chmod 600 {home.token_file}")
        return
    try:
        home.find_token(environ, token_env)
    except TalariaError as error:
        yield Finding.of("token", error)
    else:
        yield Finding("token", Level.OK, f"{home.token_file}, for this user only.")


async def check_gateway(client: GatewayClient) -> AsyncIterator[Finding]:
    """What the running gateway says of itself; it also speaks for the store, which is its."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            status = await client.status()
    except TalariaError as error:
        yield Finding.of("gateway", error)
        return
    except TimeoutError:
        text = f"The gateway at {client.url} runs, but does not answer within {ANSWER_SECONDS:g} seconds."
        yield Finding("gateway", Level.PROBLEM, text, "Restart it; what it has accepted is not lost.")
        return
    version, pid = status.get("version"), status.get("pid")
    if version != __version__:
        text = f"The running gateway is version {version}, this program is {__version__}."
        yield Finding("gateway", Level.WARN, text, f"Restart it: kill {pid}, then `talaria serve`.")
    if status.get("ready"):
        rss = format_size(int(status.get("rss_bytes") or 0))
        yield Finding(
            "gateway", Level.OK, f"Running at {client.url} (pid {pid}, {rss} of memory), accepting."
        )
    else:
        reasons = "; ".join(status.get("reasons") or ["it does not say why"])
        yield Finding(
            "gateway", Level.PROBLEM, f"Running at {client.url} (pid {pid}), but not accepting: {reasons}."
        )
    store, owed = status.get("store") or {}, status.get("owed") or {}
    size, sessions = format_size(int(store.get("size_bytes", 0))), store.get("sessions", 0)
    noun = "session" if sessions == 1 else "sessions"
    yield Finding("store", Level.OK, f"{store.get('engine')}, {sessions} {noun}, {size}.")
    noun = "turn" if owed.get("turns") == 1 else "turns"
    yield Finding("owed", Level.OK, f"{owed.get('turns', 0)} {noun} under way or waiting.")


def check_idle(home: Home, settings: Settings) -> Iterator[Finding]:
    """The store and the port, which are free to look at while no gateway runs."""
    if is_locked(home):
        yield Finding(
            "gateway",
            Level.PROBLEM,
            f"A process holds {home.lock}, but says nowhere where it is.",
            "If it does not go away by itself, end it; its pid is in that file.",
        )
        return
    yield Finding("gateway", Level.OK, "Not running. `talaria serve` starts it.")
    if settings.store.url:
        yield Finding("store", Level.OK, "store.url names a database elsewhere; it is not looked at.")
    elif not home.database.exists():
        yield Finding("store", Level.OK, f"{home.database} is not there yet; the first start makes it.")
    else:
        try:
            yield Finding("store", Level.OK, check_database(home))
        except TalariaError as error:
            yield Finding.of("store", error)
    try:
        bound = bind(settings.http)
    except TalariaError as error:
        yield Finding.of("port", error)
        return
    bound.socket.close()
    if bound.notice:
        yield Finding(
            "port",
            Level.WARN,
            f"Port {DEFAULT_PORT} is in use by another program; a start would take {bound.port} instead.",
            "Stop that program, or set http.port to choose one.",
        )
    else:
        yield Finding("port", Level.OK, f"{bound.address} is free.")


async def check_agent(home: Home, settings: Settings, environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    """The model's key is looked for; its server is not called."""
    async with Providers(settings.providers, environ) as providers:
        catalog = Catalog(
            settings.model,
            settings.aliases,
            providers=providers.known,
            agents=(settings.agent.name,),
            config_path=str(home.config),
        )
        try:
            choice = catalog.default()
            providers.get(choice.provider)
        except TalariaError as error:
            yield Finding.of("model", error)
        else:
            yield Finding("model", Level.OK, f"{choice}; its key is there or not needed.")
    try:
        tools = builtin_registry(settings.tools).resolve(settings.tools.enabled)
    except TalariaError as error:
        yield Finding.of("tools", error)
    else:
        yield Finding("tools", Level.OK, f"{', '.join(tools.names) or 'none'}.")


def _existing(path: Path) -> Path:
    """The path itself, or the nearest folder above it that is there."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
