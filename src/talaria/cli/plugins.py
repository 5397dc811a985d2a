"""`talaria plugins`: which plug-ins there are, and whether they can be used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from talaria.cli.options import Invocation, group, run_loop
from talaria.cli.text import columns, when
from talaria.config.home import Home, home_environ
from talaria.config.load import load
from talaria.config.plugins import FOLDER, PluginSource, find_plugins
from talaria.core.errors import NotFound
from talaria.core.extensions import PluginReport, PluginState
from talaria.core.text import clean, did_you_mean, visible_json
from talaria.parts import PARTS

if TYPE_CHECKING:
    from talaria.plugins.checking import CheckResult


@group("plugins", "talaria plugins list", "talaria plugins check weather")
def command() -> None:
    """List and check plug-ins, which add your own tools, commands, hooks and channels.

    A plug-in is a file in the home's plugins/ folder, or an installed package with the entry point
    talaria.plugins. Its code runs with all rights of the gateway.
    """


@command.verb("list", "talaria plugins list", "talaria plugins list --json")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def _list(invocation: Invocation, as_json: bool) -> None:
    """List the plug-ins in the order in which they are loaded, what each brings, and why one is not in use.

    Shows what the next start of the gateway will do, and checks plug-ins that have changed.
    """
    home = invocation.read_home()
    reports = _examine(home)
    if as_json:
        click.echo(visible_json(msgspec.json.format(msgspec.json.encode({"plugins": reports}))))
        return
    if not reports:
        click.echo(f"There are no plug-ins. Put a file into {home.path / FOLDER}, or install a package.")
        return
    rows = [(report.name, report.state, report.source, ", ".join(report.brings)) for report in reports]
    click.echo(clean(columns([("NAME", "STATE", "FROM", "BRINGS"), *rows])))
    for report in reports:
        if report.problem:
            click.echo(clean(f"\n{report.name}: {report.problem}\n  {invocation.spoken(report.hint)}"))
    if pending := run_loop(_pending(home, reports)):
        click.echo(f"\nThe running gateway takes this up at its next start: {', '.join(pending)}.")


@command.verb(
    "check", "talaria plugins check", "talaria plugins check weather", "talaria plugins check ./new.py"
)
@click.argument("name", required=False, metavar="NAME|FILE")
def _check(invocation: Invocation, name: str | None) -> int:
    """Import and register plug-ins in a process of their own, and say what they bring or what is wrong.

    With NAME, the check is made again even if nothing has changed, and a plug-in that passes leaves the
    quarantine. With FILE, a file is checked that is not in the home yet. Exits with 1 if one cannot be used.
    """
    home = invocation.read_home()
    reports = [_check_again(home, name)] if name else _examine(home)
    for report in reports:
        start = f"{report.name} ({report.source})"
        if report.problem:
            click.echo(clean(f"{start}: {report.problem}\n  {invocation.spoken(report.hint)}"))
        else:
            click.echo(f"{start}: good. It brings: {', '.join(report.brings) or 'nothing'}.")
    return 1 if any(each.problem and each.state is not PluginState.OFF for each in reports) else 0


def _check_again(home: Home, name: str) -> PluginReport:
    source = _find(home, name)
    result = _run(home, source)
    if not result.problem and not name.endswith(".py"):
        from talaria.plugins.records import read_records, release

        entry = read_records(home.path).quarantine.get(source.name)
        if entry is not None and release(home.path, source.name):
            since = when(entry.at)
            click.echo(f"{source.name} was in quarantine since {since}, and is released. {entry.why}")
    state = PluginState.LEFT_OUT if result.problem else PluginState.LOADED
    return PluginReport.of(source.name, source.label, state, result.brings, result.problem)


def _examine(home: Home) -> list[PluginReport]:
    from talaria.plugins.loading import examine_plugins, keep_results

    tables = load(home.path, os.environ, PARTS).settings.plugins
    examined = examine_plugins(home, tables, home_environ(home.path, os.environ))
    if examined:
        keep_results(home.path, examined)
    return [each.report() for each in examined]


def _find(home: Home, name: str) -> PluginSource:
    if name.endswith(".py"):
        path = Path(name).absolute()
        if not path.is_file():
            hint = "Name a file, or a plug-in of `talaria plugins list`."
            raise NotFound(f"There is no file {name}.", hint)
        return PluginSource(path.stem, name, (str(path),))
    found = {source.name: source for source in reversed(find_plugins(home))}
    if name not in found:
        hint = did_you_mean(name, found, "`talaria plugins list` shows them.")
        raise NotFound(f"There is no plug-in {name!r}.", hint)
    return found[name]


def _run(home: Home, source: PluginSource) -> CheckResult:
    from talaria.plugins.checking import CheckOrder, CheckResult, run_checks

    if source.problem:
        return CheckResult(problem=source.problem)
    table = dict(load(home.path, os.environ, PARTS).settings.plugins.get(source.name, {}))
    order = CheckOrder(source, str(home.path), table)
    return run_checks([order], home_environ(home.path, os.environ), shows_output=True)[0]


async def _pending(home: Home, reports: Sequence[PluginReport]) -> list[str]:
    """Return the plug-ins that the running gateway does not use as the next start will."""
    from talaria.cli.home_gateway import running_gateway
    from talaria.operations.operation import Nothing
    from talaria.operations.status import show_status

    async with running_gateway(home, os.environ) as client:
        if client is None:
            return []
        used = (await client.carry_out(show_status, Nothing())).plugins
    loaded = {each.name for each in used if each.state is PluginState.LOADED}
    return sorted(loaded ^ {report.name for report in reports if not report.problem})
