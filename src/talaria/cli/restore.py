"""`talaria restore`: brings a backup back. The files that it replaces are kept."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import click

from talaria.cli.backup import SINGLE_FILES, find_secrets, progress
from talaria.cli.options import Invocation, verb
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.errors import ConfigError, StoreError
from talaria.core.units import format_size
from talaria.parts import PARTS
from talaria.store.archive import CONFIG, DATABASE, FOLDERS, Manifest, unpack
from talaria.store.engines import inspect_database
from talaria.store.home_lock import HomeLock
from talaria.store.settings import is_file

_REPLACED = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", CONFIG, *FOLDERS)


@verb("restore", "talaria restore talaria-20261115-231000.tar.gz")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def command(invocation: Invocation, file: Path) -> None:
    """Bring a backup back, in place of what the home has now.

    Stop the gateway first. The backup is unpacked and checked before anything is replaced; what it replaces
    is moved into a folder of the home, which you may delete.
    """
    home = invocation.any_home()
    home.prepare()
    with HomeLock(home.path) as lock:
        try:
            url = load(home.path, os.environ, PARTS).settings.store.url
        except ConfigError:
            url = ""  # a broken file is no reason: the backup brings another
        if url:
            raise ConfigError(
                "store.url names a database elsewhere, which is not restored by this command.",
                "Unpack the archive with tar, and put its talaria.db there."
                if is_file(url)
                else "pg_restore brings a database of PostgreSQL back, and tar the files of the home.",
            )
        manifest, aside = restore(home, file)
        lock.mark_checked()
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.made_at))
    click.echo(f"Restored {len(manifest.members)} files ({format_size(manifest.size)}) of {made}.")
    if aside is not None:
        click.echo(f"What was there before is in {aside}; delete it when you are sure.")
    if secrets := find_secrets(home):
        click.echo(
            f"Secrets came with it, those in {' and '.join(secrets)}, so this home acts as the one that was "
            "saved. If that gateway still runs, on this machine or another, stop it before you start this "
            "one: two gateways with the same bot take each other's messages."
        )
    click.echo(f"To start it: {invocation.command_line('serve')}")


def restore(home: Home, file: Path) -> tuple[Manifest, Path | None]:
    """Restore, under the home's lock. Raises `BadRequest` and `StoreError`, having replaced nothing."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    fresh = home.path / f".restoring-{stamp}-{os.getpid()}"
    with progress("unpacking") as tick:
        manifest = unpack(file, fresh, tick, SINGLE_FILES)
    try:
        inspect_database(fresh / DATABASE)
        return manifest, _swap(home.path, fresh, home.path / f"replaced-{stamp}-{os.getpid()}")
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _swap(home: Path, fresh: Path, aside: Path) -> Path | None:
    """Move the old files aside and the new ones in, within one disk. The old database is moved with its log
    before the new one comes."""
    moved = None
    try:
        singles = [name for name in SINGLE_FILES if (fresh / name).exists()]
        for name in (*_REPLACED, *singles):
            if (home / name).exists() or (home / name).is_symlink():
                _move(home / name, aside / name)
                moved = aside
        for name in (*_REPLACED, *singles):
            if (fresh / name).exists():
                _move(fresh / name, home / name)
    except OSError as error:
        raise StoreError(
            f"The restore stopped in the middle: {error.strerror or error}.",
            f"What was there before is in {aside}; move it back, or mend the disk and restore again.",
        ) from error
    return moved


def _move(path: Path, place: Path) -> None:
    """Rename a file or a folder, within one disk. The folders around its new place are made."""
    for folder in reversed((place.parent, place.parent.parent)):
        folder.mkdir(mode=0o700, exist_ok=True)
    path.rename(place)
