"""`talaria backup`: the home in one file, also while the gateway runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import click

from talaria import __version__
from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, common, spoken
from talaria.config.home import Home
from talaria.core.units import format_size
from talaria.store.archive import Manifest, Packing, new_snapshot, pack

EXAMPLES = """\b
Examples:
  talaria backup                              talaria-DATE-TIME.tar.gz in this folder
  talaria backup /backups                     in that folder
  talaria backup /backups/home.tar.gz --force
"""


@click.command("backup", epilog=EXAMPLES)
@common
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_obj
def command(invocation: Invocation, path: Path | None, force: bool) -> None:
    """Save the home in one file: sessions, files, memory and configuration.

    Works beside a running gateway. The file is readable for you only. The HTTP token and the logs are not in
    it; config.toml is, with whatever keys are written there.
    """
    home = invocation.home()
    target = _target(path)
    manifest = run_loop(_backup(home, target, force))
    size = format_size(target.stat().st_size)
    click.echo(f"Saved {len(manifest.members)} files ({format_size(manifest.size)}) in {target}, {size}.")
    if manifest.left_out:
        click.echo(f"Left out, because they are links or no plain files: {len(manifest.left_out)}", err=True)
    if _has_keys(home):
        click.echo(
            "config.toml has keys written in it, and so has the backup: keep it as safe as they are.",
            err=True,
        )
    click.echo(spoken(f"`talaria restore {target}` brings it back."))


def _target(path: Path | None) -> Path:
    name = time.strftime("talaria-%Y%m%d-%H%M%S.tar.gz")
    if path is None:
        return Path.cwd() / name
    return (path / name if path.is_dir() else path).absolute()


async def _backup(home: Home, target: Path, force: bool) -> Manifest:
    from talaria.store.sqlite.schema import latest_version

    async with _snapshot(home) as copy:
        packing = Packing(home.path, copy, __version__, latest_version(), time.time())
        with progress("saving") as tick:
            return pack(packing, target, overwrite=force, on_progress=tick)


@asynccontextmanager
async def _snapshot(home: Home) -> AsyncIterator[Path]:
    """A copy of the database: by the running gateway, whose file it is, else under the home's lock."""
    from talaria.cli.connect import running_gateway
    from talaria.config.load import load
    from talaria.core.clock import SystemClock
    from talaria.core.errors import NotFound
    from talaria.store.home_lock import HomeLock
    from talaria.store.sqlite.store import SqliteStore

    async with running_gateway(home, os.environ) as client:
        if client is not None:
            copy = Path(await client.snapshot())
            with _removed(copy):
                yield copy
            return
    from talaria.app import database_path

    database = database_path(home, load(home.path, os.environ).settings)
    if not database.exists():
        raise NotFound(f"There is nothing to save: {database} is not there.", "Name the home with --home.")
    with HomeLock(home.path):
        copy = new_snapshot(home.path)
        async with await SqliteStore.open(database, SystemClock()) as store:
            await store.snapshot(copy)
        with _removed(copy):
            yield copy


@contextmanager
def _removed(copy: Path) -> Iterator[None]:
    try:
        yield
    finally:
        copy.unlink(missing_ok=True)


def _has_keys(home: Home) -> bool:
    from talaria.config.load import load
    from talaria.core.errors import TalariaError

    try:
        return bool(load(home.path, {}).secrets)
    except TalariaError:
        return True


class progress:  # noqa: N801 - used like a function
    """How much was done, on one line of a terminal; silent elsewhere."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._done = 0
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> progress:
        return self

    def __call__(self, size: int, name: str) -> None:
        self._done += size
        if self._is_shown:
            click.echo(f"\r\x1b[K{self._verb} … {format_size(self._done)}", nl=False, err=True)

    def __exit__(self, *exception: object) -> None:
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)
