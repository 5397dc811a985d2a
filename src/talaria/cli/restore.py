"""`talaria restore`: restores a backup to a home, with the database in it or on PostgreSQL. The files that it
replaces are kept."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from talaria.cli.backup import SINGLE_FILES, find_secrets, progress
from talaria.cli.options import Invocation, run_loop, verb
from talaria.cli.store import show_rows
from talaria.cluster.places import find_place
from talaria.config.edit import with_database, write_secret
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.errors import BadRequest, ConfigError, StoreError
from talaria.core.units import format_size
from talaria.parts import PARTS
from talaria.store.archive import CONFIG, DATABASE, FOLDERS, SHARED, Manifest, unpack
from talaria.store.home_lock import HomeLock
from talaria.store.part import inspect_database, move_chats
from talaria.store.settings import StoreSettings, is_postgres, usable_url

_URL_VARIABLE = "TALARIA_STORE__URL"
_FRESH = ".restoring-"
_REPLACED = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", CONFIG, *FOLDERS)


@verb(
    "restore",
    "talaria restore talaria-20261115-231000.tar.gz",
    "talaria restore home.tar.gz --to postgresql://talaria@db.example/talaria",
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--to",
    "target",
    metavar="URL",
    default="",
    help="Empty PostgreSQL database for the rows, as in store.url (default: talaria.db in the home).",
)
def command(invocation: Invocation, file: Path, target: str) -> None:
    """Bring a backup back, in place of what the home has now.

    Stop the gateway first. The backup is unpacked and checked before anything is replaced; what it replaces
    is moved into a folder of the home, which you may delete. With --to, config.toml gets that address as
    store.url. If the command is interrupted, give it again.
    """
    if target and (usable_url(target) is not None or not is_postgres(target)):
        raise BadRequest(
            "--to is not the address of a database on PostgreSQL.",
            "Write it as postgresql://USER@HOST/DATABASE, or leave --to out to restore to the home.",
        )
    home = invocation.any_home()
    home.prepare()
    with HomeLock(home.path) as lock:
        if not target and _store(home).url:
            raise ConfigError(
                "store.url names a database outside the home.",
                "Add --to URL with an empty PostgreSQL database, restore to a new home (--home PATH), or "
                "remove store.url to use talaria.db in this one.",
            )
        manifest, aside = restore(home, file, target)
        lock.mark_checked()
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.made_at))
    click.echo(f"Restored {len(manifest.members)} files ({format_size(manifest.size)}) of {made}.")
    if aside is not None:
        click.echo(f"The previous files are in {aside}; delete this folder when you are sure.")
    _describe_settings(home, target)
    if secrets := find_secrets(home):
        click.echo(
            f"Secrets came with it, those in {' and '.join(secrets)}, so this home acts as the one that was "
            "saved. If that gateway still runs, on this machine or another, stop it before you start this "
            "one: two gateways with the same bot take each other's messages."
        )
    click.echo(f"To start it: {invocation.command_line('serve')}")


def _store(home: Home) -> StoreSettings:
    """Return the settings of the store. A broken config.toml has none: the backup replaces it."""
    try:
        return load(home.path, os.environ, PARTS).settings.store
    except ConfigError:
        return StoreSettings()


def _describe_settings(home: Home, target: str) -> None:
    """Say what the operator has to do because of the restored settings and the environment."""
    if os.environ.get(_URL_VARIABLE, target) != target:
        click.echo(f"{_URL_VARIABLE} names another database. Unset it before you start the gateway.")
    shared = _store(home).shared
    paths = [str(home.path / name) for name in SHARED if (home.path / name).exists()]
    if shared is not None and paths:
        move = f"{shlex.join(['mv', *paths])} {shlex.quote(str(shared))}/"
        click.echo(f"store.files is {shared}. Move the restored files there: {move}")


def restore(home: Home, file: Path, target: str = "") -> tuple[Manifest, Path | None]:
    """Restore, under the home's lock; the rows to the database of the URL `target`, if it is given. Raises
    `BadRequest`, `ConfigError` and `StoreError`, having replaced nothing."""
    for left in home.path.glob(f"{_FRESH}*"):  # by a restore that was killed
        shutil.rmtree(left)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    fresh = home.path / f"{_FRESH}{stamp}-{os.getpid()}"
    with progress("unpacking") as tick:
        manifest = unpack(file, fresh, tick, SINGLE_FILES)
    try:
        inspect_database(fresh / DATABASE)
        _adapt(home, fresh, manifest, target)
        replace = partial(swap, home, fresh, home.path / f"replaced-{stamp}-{os.getpid()}")
        return manifest, _restore_rows(fresh, target, replace) if target else replace()
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _adapt(home: Home, fresh: Path, manifest: Manifest, target: str) -> None:
    """Make the unpacked files those of this home: its database in config.toml, and its id in the chats."""
    if target or (fresh / CONFIG).exists():
        try:
            write_secret(fresh / CONFIG, with_database(fresh / CONFIG, target or None))
        except ConfigError:
            if target:
                raise  # otherwise a file that is not TOML is restored as it was
    if manifest.place and manifest.place != (place := find_place(home.path)):
        move_chats(fresh / DATABASE, manifest.place, place)


def _restore_rows(fresh: Path, target: str, replace: Callable[[], Path | None]) -> Path | None:
    """Copy the rows to the database of the URL. The files are replaced when all rows have been compared, and
    before a gateway can start on the database: until then the command can be repeated."""
    from talaria.store.copying import restore_rows

    rows, moved = fresh / "rows.db", list[Path | None]()
    (fresh / DATABASE).rename(rows)
    run_loop(restore_rows(rows, target, show_rows, lambda: moved.append(replace())))
    show_rows("", 0)
    return moved[0]


def swap(home: Home, fresh: Path, aside: Path) -> Path | None:
    """Move the old files aside and the new ones in, within one disk. The old database is moved with its log
    before the new one comes. A gateway does not start on the home until all files have been moved."""
    moved = None
    try:
        home.replacing.touch(mode=0o600)
        singles = [name for name in SINGLE_FILES if (fresh / name).exists()]
        for name in (*_REPLACED, *singles):
            if (home.path / name).exists() or (home.path / name).is_symlink():
                _move(home.path / name, aside / name)
                moved = aside
        for name in (*_REPLACED, *singles):
            if (fresh / name).exists():
                _move(fresh / name, home.path / name)
        home.replacing.unlink()
    except OSError as error:
        raise StoreError(
            f"The restore stopped in the middle: {error.strerror or error}.",
            f"Fix the disk and restore again. To undo it, move the files in {aside} back and delete "
            f"{home.replacing}.",
        ) from error
    return moved


def _move(path: Path, place: Path) -> None:
    """Rename a file or a folder, within one disk. The folders around its new place are made."""
    for folder in reversed((place.parent, place.parent.parent)):
        folder.mkdir(mode=0o700, exist_ok=True)
    path.rename(place)
