"""Plug-ins at the start of a gateway: found, checked, imported, and made parts of it.

A plug-in that cannot be used is named and left out, and the gateway starts without it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

import msgspec

from talaria.agent.compaction.engine import ContextEngine, ContextPart, SummaryEngine
from talaria.config.home import Home, home_environ
from talaria.config.plugins import ENABLED, PluginSource, find_plugins
from talaria.core.extensions import CODE_OWNERS, PluginReport, PluginState
from talaria.core.hooks import Hooks
from talaria.core.memory import FAMILY
from talaria.core.redaction import SecretRegistry
from talaria.core.settings import GatewayPart, NoSettings, Parts
from talaria.gateway import ExtensionPart
from talaria.observe.logs import log_plugin
from talaria.observe.loop_watch import Holder
from talaria.parts import PARTS
from talaria.plugins.api import OpenEngine, OpenMemory, Plugin
from talaria.plugins.checking import (
    CHECK_SECONDS,
    CheckOrder,
    CheckResult,
    check_key,
    register,
    run_checks,
)
from talaria.plugins.records import KeptCheck, Quarantined, keep_checks, quarantine, read_records
from talaria.plugins.running import HookRunner, PluginCalls, PluginHooks, make_command
from talaria.tools.part import ToolPart, ToolScope
from talaria.tools.tool import MemoryProvider, ToolSource
from talaria.tools.toolset import Family

_log = logging.getLogger("talaria.plugins")
_OPEN_SECONDS: Final = 10.0
_INSTEAD: Final = "The usual one is used instead. The log has more; correct it and restart."
RELEASE: Final = "Fix it, or release it as it is with `talaria plugins check {}`; then restart."


@dataclass(slots=True)
class Examined:
    """A plug-in that was found, with its settings, and the result of its check, fresh or kept. `digest` is of
    its code. `state` tells why it is not checked, if it is not."""

    source: PluginSource
    table: dict[str, Any]
    digest: str = ""
    result: CheckResult = field(default_factory=CheckResult)
    state: PluginState = PluginState.LOADED

    def report(self) -> PluginReport:
        """Return what becomes of the plug-in at a start."""
        source, result, state = self.source, self.result, self.state
        if result.problem and state is PluginState.LOADED:
            state = PluginState.QUARANTINED if result.is_hung else PluginState.LEFT_OUT
        return PluginReport.of(source.name, source.label, state, result.brings, result.problem)


def examine_plugins(
    home: Home,
    tables: Mapping[str, Mapping[str, Any]],
    environ: Mapping[str, str],
    *,
    seconds: float = CHECK_SECONDS,
) -> list[Examined]:
    """Check all plug-ins in the order in which they are loaded; those that are turned off are the last. Only
    what has changed since its last good check is run. Blocks; changes nothing on the disk."""
    found: list[Examined] = []
    waiting: list[Examined] = []
    disabled: list[Examined] = []
    records = read_records(home.path)
    for source in find_plugins(home):
        table = dict(tables.get(source.name, {}))
        each = Examined(source, table)
        if table.get(ENABLED, True) is False:
            hint = f"`talaria config unset plugins.{source.name}.enabled` turns it on."
            each.state, each.result = PluginState.OFF, CheckResult.failed("It is turned off.", hint)
            disabled.append(each)
            continue
        found.append(each)
        if source.problem:
            each.result = CheckResult(problem=source.problem)
            continue
        try:
            each.digest = digest = source.digest()
        except OSError as error:
            each.result = CheckResult.failed(f"It cannot be read: {error}.", "Make it readable.")
            continue
        kept = records.checks.get(source.name)
        if (entry := records.quarantined(source.name, digest)) is not None:
            each.state = PluginState.QUARANTINED
            each.result = CheckResult.failed(entry.why, RELEASE.format(source.name))
        elif kept is not None and kept.key == check_key(digest, table):
            each.result = CheckResult(kept.brings)
        else:
            waiting.append(each)
    orders = [CheckOrder(each.source, str(home.path), each.table) for each in waiting]
    for each, result in zip(waiting, run_checks(orders, environ, seconds), strict=True):
        each.result = result
    _refuse_doubles(found)
    return found + disabled


def _refuse_doubles(found: Sequence[Examined]) -> None:
    """Refuse plug-ins that ask for what an earlier one has."""
    names: set[str] = set()
    owners: dict[str, str] = {}
    for each in found:
        name, brings = each.source.name, each.result.brings
        if name in names:
            text = f"Another plug-in is called {name} already."
            each.result = CheckResult.failed(text, "Rename one of the two.")
        for thing in brings if not each.result.problem else ():
            if not thing.startswith("hook ") and (owner := owners.get(thing)) is not None:
                text = f"It asks for the {thing}, which the plug-in {owner} has."
                each.result = CheckResult.failed(text, "Rename it, or leave one of the two out.")
                break
        names.add(name)
        if not each.result.problem:
            owners |= dict.fromkeys(brings, name)


def keep_results(home: Path, examined: Sequence[Examined]) -> None:
    """Keep good checks for the next start, and put a plug-in that hung into quarantine."""
    checks = {
        each.source.name: KeptCheck(check_key(each.digest, each.table), each.result.brings)
        for each in examined
        if not each.result.problem
    }
    try:
        keep_checks(home, checks)
        for each in examined:
            if each.result.is_hung and each.result.problem is not None:
                entry = Quarantined(each.digest, each.result.problem.text, time.time())
                quarantine(home, each.source.name, entry)
    except OSError as error:
        _log.warning("the checks of plug-ins were not kept: %s", error)


# -- loading ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LoadedPlugins:
    """The plug-ins of a running gateway. `reports` change if a part of one cannot be opened."""

    home: Path
    plugins: list[Plugin] = field(default_factory=list)
    reports: dict[str, PluginReport] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def fail(self, name: str, problem: str, hint: str) -> None:
        """Note that a part of a plug-in is not in use, and log it."""
        self.reports[name] = msgspec.structs.replace(self.reports[name], problem=problem, hint=hint)
        with log_plugin(name):
            _log.error("plug-in %s: %s %s", name, problem, hint)

    def blame(self, holder: Holder, seconds: float) -> None:
        """Put the plug-in into quarantine that held the event loop."""
        name = holder.plugin
        if not name or name not in self.digests:
            return
        where = holder.stack[0] if holder.stack else "an unknown place"
        why = f"It held the event loop for {seconds:.1f} s ({where}), and all chats waited."
        quarantine(self.home, name, Quarantined(self.digests[name], why, time.time()))
        self.fail(name, f"{why} It is left out from the next start on.", RELEASE.format(name))


def load_plugins(
    home: Home,
    tables: Mapping[str, Mapping[str, Any]],
    environ: Mapping[str, str],
    secrets: SecretRegistry,
    *,
    parts: Parts = PARTS,
    seconds: float = CHECK_SECONDS,
) -> Parts:
    """Return the parts together with those of all plug-ins that can be used. Blocks, and raises nothing.

    To be called before the event loop runs, or in a thread.
    """
    environ = home_environ(home.path, environ)
    examined = examine_plugins(home, tables, environ, seconds=seconds)
    keep_results(home.path, examined)
    loaded = LoadedPlugins(home.path)
    for each in examined:
        if not each.result.problem:
            _load(each, environ, loaded, seconds)
    for each in examined:
        report = each.report()
        loaded.reports.setdefault(report.name, report)
        if report.state is not PluginState.OFF:
            _tell(report)
    for plugin in loaded.plugins:
        secrets.add(plugin.brought.secrets)
    return _make_parts(loaded, parts) if loaded.reports else parts


def _load(each: Examined, environ: Mapping[str, str], loaded: LoadedPlugins, seconds: float) -> None:
    """Import and register a plug-in in this process, within its time."""
    name = each.source.name
    plugin = Plugin(name, loaded.home, each.table, environ)
    done: list[CheckResult] = []
    thread = Thread(
        target=lambda: done.append(register(each.source, plugin)), name=f"plug-in {name}", daemon=True
    )
    thread.start()
    thread.join(seconds)
    if not done:
        each.result = CheckResult.failed(
            f"It did not come to an end within {seconds:g} seconds at the start."
        )
    elif not done[0].problem and done[0].brings != each.result.brings:
        each.result = CheckResult.failed(
            "It registers something else than when it was checked.",
            f"Let it not depend on the moment, then: `talaria plugins check {name}`.",
        )
    else:
        each.result = done[0]
    if each.result.problem:
        CODE_OWNERS.drop(name)
        return
    loaded.plugins.append(plugin)
    loaded.digests[name] = each.digest


def _tell(report: PluginReport) -> None:
    with log_plugin(report.name):
        if report.state is PluginState.LOADED:
            brings = ", ".join(report.brings) or "nothing"
            _log.info("plug-in %s (%s) is loaded: %s", report.name, report.source, brings)
        else:
            where = (report.name, report.source, report.state)
            _log.error("plug-in %s (%s) is %s. %s", *where, report.sentence())


# -- parts ------------------------------------------------------------------------------------------------


def _make_parts(loaded: LoadedPlugins, parts: Parts) -> Parts:
    """Return the parts with those of the plug-ins. Those stand before the last one, which is HTTP: it closes
    first, and drains."""
    found: list[GatewayPart[Any]] = [_extension(loaded)]
    result = list(parts)
    for plugin in loaded.plugins:
        brought, name = plugin.brought, plugin.name
        own = Family(f"plugin:{name}", tuple(brought.tools), is_builtin=False)
        sources = [own, *brought.sources] if brought.tools else brought.sources
        found += [_source_part(name, source) for source in sources]
        found += brought.channels
        if brought.engine is not None:
            opening = partial(_open_engine, loaded, name, brought.engine)
            found.append(ContextPart(name=f"plugin:{name}", settings=NoSettings, open=opening))
        if brought.memory is not None:
            result = [_memory_part(loaded, name, brought.memory, part) for part in result]
    return (*result[:-1], *found, result[-1])


def _source_part(name: str, source: ToolSource) -> GatewayPart[Any]:
    opening = nullcontext(source)
    return ToolPart(name=f"plugin:{name}", settings=NoSettings, open=lambda scope, settings: opening)


@asynccontextmanager
async def _open_engine(
    loaded: LoadedPlugins, name: str, opening: OpenEngine, scope: ToolScope, settings: NoSettings
) -> AsyncIterator[ContextEngine]:
    """Open a plug-in's engine; the usual one if that fails."""
    async with AsyncExitStack() as scopes:
        engine: ContextEngine = SummaryEngine()
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                engine = await scopes.enter_async_context(opening(scope))
        except Exception as error:
            loaded.fail(name, f"Its context engine could not be opened: {error!r}.", _INSTEAD)
        yield engine


def _checked(provider: MemoryProvider) -> MemoryProvider:
    if not isinstance(provider, MemoryProvider) or provider.name != FAMILY or not provider.is_builtin:
        raise TypeError("it is not a memory provider: `talaria.testing.contracts.MemorySuite` tells why")
    return provider


def _memory_part(
    loaded: LoadedPlugins, name: str, opening: OpenMemory, part: GatewayPart[Any]
) -> GatewayPart[Any]:
    """Return the part that remembers with the plug-in's provider in the place of its own; others as they
    are."""
    if part.name != FAMILY or not isinstance(part, ToolPart):
        return part

    @asynccontextmanager
    async def open_memory(scope: ToolScope, settings: Any) -> AsyncIterator[ToolSource]:
        async with AsyncExitStack() as scopes:
            try:
                async with asyncio.timeout(_OPEN_SECONDS):
                    provider = _checked(await scopes.enter_async_context(opening(scope)))
            except Exception as error:
                loaded.fail(name, f"Its memory could not be opened: {error!r}.", _INSTEAD)
                yield await scopes.enter_async_context(part.open(scope, settings))
            else:
                yield provider

    return ToolPart(name=part.name, table=part.table, settings=part.settings, open=open_memory)


def _extension(loaded: LoadedPlugins) -> GatewayPart[Any]:
    commands, hooked = [], []
    for plugin in loaded.plugins:
        calls = PluginCalls(plugin.name)
        commands += [make_command(command, calls) for command in plugin.brought.commands]
        if plugin.brought.hooks:
            hooked.append(PluginHooks(calls, plugin.brought.hooks))

    @asynccontextmanager
    async def opening() -> AsyncIterator[Hooks | None]:
        if not hooked:
            yield None
            return
        async with HookRunner(hooked).open() as hooks:
            yield hooks

    return ExtensionPart(
        name="plugins",
        settings=NoSettings,
        commands=tuple(commands),
        open=opening,
        reports=lambda: tuple(loaded.reports.values()),
        blame=loaded.blame,
    )
