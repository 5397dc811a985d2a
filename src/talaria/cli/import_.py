"""`talaria import`: imports what another program's home holds, after a preview."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import click
import msgspec

from talaria.access.people import People
from talaria.channels.descriptor import Channel, find_address, pairing_channels
from talaria.cli.backup import save_home
from talaria.cli.options import Invocation, confirm, group, run_loop
from talaria.cli.text import columns
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.clock import SystemClock
from talaria.core.text import clean_line, visible_json
from talaria.imports.hermes import HermesImport
from talaria.imports.hermes_home import open_home
from talaria.imports.item import ImportItem, ImportKind, ImportReport, ImportState
from talaria.imports.target import Target
from talaria.parts import PARTS
from talaria.store.home_lock import HomeLock
from talaria.store.in_memory import MemoryStore
from talaria.store.part import StoreScope, find_engine
from talaria.store.settings import is_file


@group("import", "talaria import hermes ~/.hermes --dry-run", "talaria import hermes backup.zip")
def command() -> None:
    """Import conversations, jobs, memory and skills from another program."""


@command.verb(
    "hermes",
    "talaria import hermes ~/.hermes --dry-run",
    "talaria import hermes ~/.hermes/profiles/work --only session --only memory",
    "talaria import hermes hermes-backup.zip --yes",
)
@click.argument("source", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Show the plan and import nothing.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([kind.value for kind in ImportKind]),
    help="Import only items of this kind. Can be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every item as JSON.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def _hermes(
    invocation: Invocation, source: Path, only: tuple[str, ...], *, dry_run: bool, as_json: bool, yes: bool
) -> None:
    """Import a home of hermes-agent: ~/.hermes, a profile's folder, or a zip of `hermes backup`.

    Stop the gateway first. The command shows a plan and asks. Before it writes, it saves this home in a
    backup. The source is never changed. A second run imports only what is new.
    """
    home, kinds = invocation.any_home(), [ImportKind(each) for each in only]
    with open_home(source) as found, found.open_database() as database:

        async def run() -> ImportReport:
            async with _open_target(home, makes=False) as target:
                importing = HermesImport(found, target, PARTS, kinds, pairing_channels(PARTS))
                report = await importing.plan(database)
            if dry_run or not report.planned:
                return report
            if not as_json:
                _show(report)
            confirm(f"Import {report.planned} items into {home.path}?", yes=yes)
            await _save(home)
            async with _open_target(home, makes=True) as target:
                importing = HermesImport(found, target, PARTS, kinds, pairing_channels(PARTS))
                await importing.plan(database)
                return await importing.apply(partial(_show_progress, report.planned))

        report = run_loop(run())
    if as_json:
        click.echo(visible_json(msgspec.json.encode(report)))
    else:
        _show(report)


@asynccontextmanager
async def _open_target(home: Home, *, makes: bool) -> AsyncIterator[Target]:
    """Open the records of the home under its lock; empty ones if it has no database and none is to be made.

    Raises `StoreLocked` while a gateway runs.
    """
    settings = load(home.path, os.environ, PARTS).settings
    engine = find_engine(PARTS, settings.store.url)
    if (loss := home.find_loss(settings.store.url)) is not None:
        raise loss
    allowed = {
        part.name: getattr(settings.of(part), "allowed", ()) for part in PARTS if isinstance(part, Channel)
    }
    address_of = partial(find_address, PARTS, settings.of, settings.agent.name)
    target = partial(
        Target, home.path, settings, people=People(settings.people, allowed), address_of=address_of
    )
    if not makes and not _has_records(home):
        yield target(store=MemoryStore(SystemClock()))
        return
    home.prepare()
    with HomeLock(home.path):
        async with engine.open(StoreScope(home.database, SystemClock()), settings.of(engine)) as store:
            yield target(store=store)


def _has_records(home: Home) -> bool:
    url = load(home.path, os.environ, PARTS).settings.store.url
    return not is_file(url) or home.find_database(url).exists()


async def _save(home: Home) -> None:
    if _has_records(home):
        path = home.path / time.strftime("before-import-%Y%m%d-%H%M%S.tar.gz")
        await save_home(home, path, force=False)
        click.echo(f"Saved this home in {path}. `talaria restore` brings it back.", err=True)


def _show_progress(total: int, item: ImportItem) -> None:
    if sys.stderr.isatty() and item.state is ImportState.IMPORTED:
        click.echo(f"\r\x1b[K{item.kind}: {clean_line(item.title, 60)}", nl=False, err=True)


def _show(report: ImportReport) -> None:
    """Print a table of what is imported, then each item that is not, with the reason."""
    states = [state for state in ImportState if any(state is each.state for each in report.items)]
    rows = [("", *(state.upper() for state in states))]
    rows += [(kind.value, *(str(found[state] or "-") for state in states)) for kind, found in report.counts()]
    click.echo(columns(rows) if report.items else f"{report.source} has nothing to import.")
    for item in report.items:
        if item.state in (ImportState.SKIPPED, ImportState.CONFLICT):
            click.echo(f"{item.state}: {item.kind} {clean_line(item.title or item.id, 60)}: {item.reason}")
        elif item.note:
            click.echo(f"note: {item.kind} {clean_line(item.title or item.id, 60)}: {item.note}")
    left = sum((Counter(item.left_out) for item in report.items), Counter[str]())
    for why, count in sorted(left.items()):
        click.echo(f"{count} messages were left out: {why}.")
    for note in report.notes:
        click.echo(note)
