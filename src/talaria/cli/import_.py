"""`talaria import`: imports what another program's home holds, after a preview."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from talaria.access.people import People
from talaria.channels.descriptor import Channel, find_address, pairing_channels
from talaria.cli.backup import save_home
from talaria.cli.mcp_add import AddOptions, plan_server, write_server
from talaria.cli.mcp_paste import parse_paste
from talaria.cli.options import Invocation, confirm, group, run_loop
from talaria.cli.text import columns
from talaria.config.home import SECRETS_FILE, Home, home_environ
from talaria.config.load import load
from talaria.core.clock import SystemClock
from talaria.core.errors import BadRequest
from talaria.core.text import clean_line, visible_json
from talaria.imports.hermes import open_hermes
from talaria.imports.item import ImportItem, ImportKind, ImportReport, ImportState
from talaria.imports.openclaw import open_openclaw
from talaria.imports.plan import Import
from talaria.imports.settings import NOT_CONFIRMED
from talaria.imports.target import ServerPlan, Source, Target
from talaria.parts import PARTS
from talaria.store.home_lock import HomeLock
from talaria.store.in_memory import MemoryStore
from talaria.store.part import StoreScope, find_engine
from talaria.store.settings import is_file

_OWN = ("config.toml", SECRETS_FILE, "memory", "skills")  # what an import may change beside the database
_WIDEST = 400


@group("import", "talaria import hermes ~/.hermes --dry-run", "talaria import hermes backup.zip")
def command() -> None:
    """Import conversations, jobs, memory and skills from another program."""


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """Add what all imports have: the path, and the options."""
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("--json", "as_json", is_flag=True, help="Print every item as JSON."),
        click.option(
            "--secrets/--no-secrets",
            "with_secrets",
            default=None,
            help="Copy keys and tokens to secrets.env in the home. Default: ask; with --yes: no.",
        ),
        click.option(
            "--only",
            multiple=True,
            type=click.Choice([kind.value for kind in ImportKind]),
            help="Import only items of this kind. Can be repeated.",
        ),
        click.option("--dry-run", is_flag=True, help="Show the plan and import nothing."),
        click.argument("path", metavar="PATH", type=click.Path(path_type=Path)),
    ):
        function = option(function)
    return function


@command.verb(
    "hermes",
    "talaria import hermes ~/.hermes --dry-run",
    "talaria import hermes ~/.hermes/profiles/work --only session --only memory",
    "talaria import hermes hermes-backup.zip --yes",
)
@_options
def _hermes(invocation: Invocation, path: Path, **options: Any) -> None:
    """Import a home of hermes-agent: ~/.hermes, a profile's folder, or a zip of `hermes backup`.

    Stop the gateway first. The command shows a plan and asks for confirmation. Before it writes, it saves
    this home in a backup. The source is never changed. A second run imports only new items.
    """
    with open_hermes(path) as source:
        _import(invocation, source, **options)


@command.verb(
    "openclaw",
    "talaria import openclaw ~/.openclaw --dry-run",
    "talaria import openclaw ~/.openclaw --only memory --only skill",
)
@_options
def _openclaw(invocation: Invocation, path: Path, **options: Any) -> None:
    """Import the state folder of openclaw: ~/.openclaw.

    Stop both gateways first. Sessions are imported from openclaw 2026.7.2 or newer, which keeps them in
    SQLite. Otherwise it works like `talaria import hermes`.
    """
    with open_openclaw(path) as source:
        _import(invocation, source, **options)


def _import(
    invocation: Invocation,
    source: Source,
    *,
    only: tuple[str, ...],
    dry_run: bool,
    with_secrets: bool | None,
    as_json: bool,
    yes: bool,
) -> None:
    home, kinds = invocation.any_home(), [ImportKind(each) for each in only]

    async def plan(*, makes: bool, applies: bool = False) -> ImportReport:
        async with _open_target(home, makes=makes) as target:
            importing = Import(source, target, PARTS, kinds, with_secrets=bool(with_secrets))
            report = await importing.plan()
            return await importing.apply(_show_progress) if applies else report

    report = run_loop(plan(makes=False))
    kept = [item.title for item in report.items if item.reason == NOT_CONFIRMED]
    if not dry_run and kept and with_secrets is None and not yes and sys.stdin.isatty():
        question = f"Copy these secrets to {home.path / SECRETS_FILE}: {clean_line(', '.join(kept))}?"
        with_secrets = click.confirm(question, default=False, err=True)
        report = run_loop(plan(makes=False)) if with_secrets else report
    if report.planned and not dry_run:
        if not as_json:
            _show(report)
        confirm(f"Import {report.planned} items into {home.path}?", yes=yes)
        run_loop(_save(home))
        report = run_loop(plan(makes=True, applies=True))
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", nl=False, err=True)
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
        Target,
        home.path,
        settings,
        os.environ,
        people=People(settings.people, allowed),
        channels=frozenset(pairing_channels(PARTS)),
        address_of=address_of,
        plan_server=partial(_plan_server, home),
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


def _plan_server(home: Home, name: str, table: Mapping[str, Any], environ: Mapping[str, str]) -> ServerPlan:
    """Return an MCP server as `talaria mcp add` would add it. The variables of the source that it refers to
    become keys. Raises `TalariaError`, also for a server that would get variables of this machine."""
    document = msgspec.json.encode({"mcpServers": {name: table}}).decode("utf-8", "replace")
    new = plan_server(home, parse_paste(document).servers[0], AddOptions())
    known = home_environ(home.path, os.environ)
    named = {variable for _, variable in new.server.references()}.difference(new.keys)
    strange = [each for each in named if known.get(each, environ.get(each)) != environ.get(each, "")]
    if strange:
        hint = "Add it with `talaria mcp add`, which asks about each."
        raise BadRequest(f"It gets variables of this machine ({', '.join(sorted(strange))}).", hint)
    keys = {**new.keys, **{each: environ[each] for each in named}}
    where = new.server.url or clean_line(" ".join(new.server.command), 100)

    def add(with_keys: bool) -> None:
        write_server(home, msgspec.structs.replace(new, keys=keys if with_keys else {}))

    is_secret = new.server.address.whole != str(new.server.url)
    return ServerPlan(tuple(keys), (f"It is {where}.", *new.notes), is_secret, add)


async def _save(home: Home) -> None:
    """Save a home that has anything. A backup needs a database, so an empty one is made if there is none."""
    if _has_records(home) or any((home.path / name).exists() for name in _OWN):
        async with _open_target(home, makes=True):
            pass
        name = time.strftime("before-import-%Y%m%d-%H%M%S")
        paths = (home.path / f"{name}{end}.tar.gz" for end in ("", *(f"-{n}" for n in range(2, 1000))))
        path = next(path for path in paths if not path.exists())
        await save_home(home, path, force=False)
        click.echo(f"Saved this home in {path}. `talaria restore` brings it back.", err=True)


def _show_progress(item: ImportItem) -> None:
    if sys.stderr.isatty() and item.state is ImportState.IMPORTED:
        click.echo(f"\r\x1b[K{item.kind}: {clean_line(item.title, 60)}", nl=False, err=True)


def _show(report: ImportReport) -> None:
    """Print a table of what is imported, then each item that is not, with the reason."""
    states = [state for state in ImportState if any(state is each.state for each in report.items)]
    rows = [("", *(state.upper() for state in states))]
    rows += [(kind.value, *(str(found[state] or "-") for state in states)) for kind, found in report.counts()]
    click.echo(columns(rows) if report.items else f"{report.source} has nothing to import.")
    for item in report.items:
        name = f"{item.kind} {clean_line(item.title or item.id, 60)}"
        if item.state in (ImportState.SKIPPED, ImportState.CONFLICT):
            click.echo(f"{item.state}: {name}: {clean_line(item.reason, _WIDEST)}")
        elif item.note:
            click.echo(f"note: {name}: {clean_line(item.note, _WIDEST)}")
        elif item.kind is ImportKind.SETTING:  # a person should see what is set
            click.echo(f"{item.state}: {name}")
    left = sum((Counter(item.left_out) for item in report.items), Counter[str]())
    for why, count in sorted(left.items()):
        click.echo(f"Messages left out ({why}): {count}.")
    for note in report.notes:
        click.echo(note)
