"""The check of `talaria doctor` for plug-ins: those of the running gateway, and those of the next start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from talaria.config.home import Home
from talaria.config.plugin_sources import FOLDER, find_plugins
from talaria.config.secrets_file import home_environ
from talaria.config.settings import Settings
from talaria.core.extensions import PluginReport, PluginState
from talaria.core.gateway_part import Status
from talaria.core.problems import Problem, ok, problem, run, shell, warn

_NAME = "plug-ins"


def check_plugins(
    home: Home, settings: Settings, environ: Mapping[str, str], status: Status | None
) -> list[Problem]:
    """Return a finding for each plug-in with a problem, and one for the rest. Blocks: a plug-in that was not
    checked yet is checked, in a process of its own."""
    running = [msgspec.convert(each, PluginReport) for each in (status or {}).get("plugins", ())]
    findings = [*_unknown_tables(home, settings)]
    if not find_plugins(home, {}):
        return findings + [_gone(each) for each in running]
    from talaria.plugins.loading import describe, examine_plugins

    variables = home_environ(home.path, environ)
    examined = examine_plugins(home, settings.plugins, variables)
    next_start = [describe(each) for each in examined]
    told = {each.name: each for each in running}
    for each, report in zip(examined, next_start, strict=True):
        now = told.pop(report.name, None)
        if each.result.problem is not None:
            findings.append(_faulty(report, each.result.problem))
        elif now is not None and now.problem:
            findings.append(problem(_NAME, f"{now.name}: {now.problem}", now.hint))
        elif now is None and status is not None:
            text = f"The plug-in {report.name} is not in use yet."
            findings.append(warn(_NAME, text, "It is loaded at the next start of the gateway."))
    findings += [_gone(each) for each in told.values() if each.state is PluginState.LOADED]
    good = [report.name for report in next_start if not report.problem]
    if good:
        findings.append(ok(_NAME, f"{', '.join(good)}: checked, and not contained: they are your own code."))
    return findings


def _faulty(report: PluginReport, found: Problem) -> Problem:
    text, hint = f"{report.name} ({report.source}) is {report.state}. {found.text}", found.hint
    action = found.action
    if report.state is PluginState.QUARANTINED:
        action = run(shell("talaria", "plugins", "check", report.name))
    elif action is not None:
        hint = ""  # it has the same command
    return problem(_NAME, text, hint, action)


def _gone(report: PluginReport) -> Problem:
    return warn(
        _NAME,
        f"The plug-in {report.name} is in use, but {Path(report.source).name} is gone.",
        "It is left out at the next start of the gateway.",
    )


def _unknown_tables(home: Home, settings: Settings) -> list[Problem]:
    """Warn of tables that no plug-in reads."""
    if not settings.plugins:
        return []
    known = {source.name for source in find_plugins(home, {})}
    return [
        warn(
            _NAME,
            f"config.toml has [plugins.{name}], but there is no plug-in {name}.",
            f"Put {name}.py into {home.path / FOLDER}, or install its package; or remove the table:",
            shell("talaria", "config", "unset", f"plugins.{name}"),
        )
        for name in settings.plugins
        if name not in known
    ]
