"""`talaria store`: moves the database of a home from one engine to another."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import click

from talaria.cli.options import Invocation, group, run_loop
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.errors import BadRequest
from talaria.parts import PARTS
from talaria.store.home_lock import HomeLock, lock_database
from talaria.store.settings import find_database, is_file, shown_url, usable_url


@group("store", "talaria store copy --to postgresql://talaria@db.example/talaria")
def command() -> None:
    """Move the home's database: sessions, turns, replies, jobs and spending."""


@command.verb("copy", "talaria store copy --to postgresql://talaria@db.example/talaria")
@click.option("--to", "target", required=True, metavar="URL", help="Where to, as in store.url.")
def _copy(invocation: Invocation, target: str) -> None:
    """Copy the database to another one, and compare both row by row.

    Stop the gateway first. The target must be empty; a copy that was interrupted goes on when the command is
    given again. Nothing is changed in the database that is copied, and the home uses it until store.url names
    the other one.
    """
    from talaria.store.copying import copy_store

    home = invocation.read_home()
    source = load(home.path, os.environ, PARTS).settings.store.url
    if (expected := usable_url(target)) is not None or not target:
        raise BadRequest("--to is no address of a database.", f"Name one: {expected or 'a URL'}.")
    are_files = is_file(source) and is_file(target)
    if source == target or (are_files and _path(home, source) == _path(home, target)):
        raise BadRequest(
            "The home has its database there already.",
            "Name another with --to. To complete an interrupted copy, first set store.url back to the "
            "original database: `talaria config unset store.url`.",
        )
    if (loss := home.find_loss(source)) is not None:
        raise loss
    if is_file(source) and not _path(home, source).exists():
        raise BadRequest(
            f"{_path(home, source)} does not exist, so there is nothing to copy.",
            "Check --home and store.url; they name the database that is copied.",
        )
    with HomeLock(home.path), ExitStack() as locks:
        for url in (source, target):
            if is_file(url):
                locks.enter_context(lock_database(_path(home, url), home.path))
        copied = run_loop(copy_store(source, target, home.database, show_rows))
    show_rows("", 0)
    click.echo(f"Copied {copied.rows} rows, and compared each of them.")
    if copied.replaced:
        click.echo(f"Zero characters, which PostgreSQL cannot hold, were replaced in {copied.replaced} rows.")
    click.echo(f'To use the copy, set in {home.config}:\n  [store]\n  url = "{shown_url(target)}"')


def _path(home: Home, url: str) -> Path:
    return find_database(url, home.database)


def show_rows(table: str, rows: int) -> None:
    """Show the progress on one line of a terminal; nothing is shown elsewhere."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{table and f'{table}: {rows}'}", nl=False, err=True)
