"""`talaria backup`: the home in one file, also while the gateway runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from talaria.channels.descriptor import connected_files
from talaria.cli.operations import open_carrier
from talaria.cli.options import Invocation, run_loop, verb
from talaria.cli.service import ENVIRONMENT
from talaria.cluster.places import find_place
from talaria.config.edit import with_database
from talaria.config.home import SECRETS_FILE, Home
from talaria.config.load import held_secrets, load
from talaria.config.shared_files import KNOWN, examine_shared_files
from talaria.core.errors import BadRequest, ConfigError, NotFound, TalariaError
from talaria.core.problems import Severity
from talaria.core.program import this_version
from talaria.core.text import clean_line, list_some
from talaria.core.units import format_size
from talaria.mcp.pins import FOLDER, PINS_FILE
from talaria.operations.operation import Nothing
from talaria.operations.status import copy_database
from talaria.parts import PARTS
from talaria.store.archive import CONFIG, Manifest, Packing, pack
from talaria.store.part import describe_engine, read_places

SECRET_FILES = (*connected_files(PARTS), SECRETS_FILE)
SINGLE_FILES = (*SECRET_FILES, f"{FOLDER}/{PINS_FILE}")
_MOST_NAMED = 5


@verb(
    "backup",
    "talaria backup                              talaria-DATE-TIME.tar.gz in this folder",
    "talaria backup ~/backups                    in that folder, which is made if it is missing",
    "talaria backup /backups/home.tar.gz --force",
)
@click.argument("path", required=False)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def command(invocation: Invocation, path: str | None, force: bool) -> None:
    """Save the home in one file: sessions, files, memory and configuration.

    PATH is a folder, or a file if its name has an ending, such as .tar.gz. Missing folders are made.

    You can run it while the gateway runs, with the database in the home or on PostgreSQL. Only you can read
    the file. It contains config.toml with the keys that are written there, and the secrets of chat platforms.
    It does not contain store.url, the HTTP token, the variables of the service and the logs.
    """
    home = invocation.read_home()
    target = _target(path)
    manifest = run_loop(save_home(home, target, force))
    size = format_size(target.stat().st_size)
    click.echo(f"Saved {len(manifest.members)} files ({format_size(manifest.size)}) in {target}, {size}.")
    if manifest.left_out:
        why = "links, special or unreadable files, and folders that are nested too deeply"
        click.echo(f"Left out ({why}): {_shorten(manifest.left_out)}", err=True)
    if secret := find_secrets(home):
        what = f"It holds secrets, those in {' and '.join(secret)}"
        click.echo(f"{what}: keep it as safe as they are.", err=True)
    if manifest.elsewhere:
        click.echo(_describe_elsewhere(invocation, manifest.elsewhere), err=True)
    kept = (home.token_file.name, ENVIRONMENT, home.logs.name)
    absent = [name for name in kept if (home.path / name).exists()]
    if absent:
        makers = ["a start"] * (absent != [ENVIRONMENT]) + ["`talaria service install`"] * (
            ENVIRONMENT in absent
        )
        them = "it" if len(absent) == 1 else "them"
        text = f"Not in it: {', '.join(absent)}; {' or '.join(makers)} makes {them} anew."
        click.echo(invocation.spoken(text))
    click.echo(invocation.spoken(f"`talaria restore {target}` brings it back."))


def _target(named: str | None) -> Path:
    """Return the file to write. A path without an ending names a folder, unless it is a file."""
    path = Path(named or ".")
    is_folder = path.is_dir() or not (path.exists() or path.suffix) or str(named).endswith("/")
    return (path / time.strftime("talaria-%Y%m%d-%H%M%S.tar.gz") if is_folder else path).absolute()


async def save_home(home: Home, target: Path, force: bool) -> Manifest:
    """Save the home in a new file and read it back. Raises `NotFound` for a home without a database."""
    async with open_carrier(home) as carry_out:
        if (missing := carry_out.missing) is not None:
            raise NotFound(f"There is nothing to save: {missing} is not there.", "Name the home with --home.")
        copy = Path((await carry_out(copy_database, Nothing())).database)
        try:
            packing = _plan(home, copy)
            _make_folder(target.parent)
            with progress("saving") as tick:
                return pack(packing, target, overwrite=force, on_progress=tick)
        finally:
            copy.unlink(missing_ok=True)  # noqa: ASYNC240 - nothing else runs in this loop


def _plan(home: Home, copy: Path) -> Packing:
    shared, places = _find_shared(home), read_places(copy)
    place = find_place(home.path) if places else ""
    elsewhere = [] if shared else [key for key, where in places.items() if where != place]
    return Packing(
        home.path,
        copy,
        this_version(),
        describe_engine().schema,
        time.time(),
        SINGLE_FILES,
        config=_config(home),
        shared=shared,
        place=place,
        elsewhere=tuple(elsewhere),
    )


def _config(home: Home) -> bytes | None:
    """Return config.toml without the address of the database, which may have a password; None if that is not
    needed or the file is missing. Raises `ConfigError` if it has an address and cannot be read."""
    try:
        content = home.config.read_bytes()
        return with_database(home.config, None).encode()
    except ConfigError:
        if b"postgres" in content:
            raise
    except OSError:
        pass
    return None


def _describe_elsewhere(invocation: Invocation, keys: Sequence[str]) -> str:
    chats = "1 chat" if len(keys) == 1 else f"{len(keys)} chats"
    text = f"Not in it: the files of {chats}, which other gateways keep: {_shorten(keys)}."
    return f"{text} {invocation.spoken('Run `talaria backup` there too.')}"


def _shorten(names: Sequence[str]) -> str:
    return list_some([clean_line(name) for name in names], _MOST_NAMED)


def _make_folder(folder: Path) -> None:
    """Make the folder of the backup, for its user only. Raises `BadRequest`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(
            f"The folder {folder} cannot be made: {error.strerror or error}.",
            "Name a folder that you can write.",
        ) from None


def _find_shared(home: Home) -> Path | None:
    """Return the folder of `store.files`. Raises `ConfigError` if it is not there or not known."""
    try:
        store = load(home.path, os.environ, PARTS).settings.store
    except TalariaError:
        if (home.path / KNOWN).exists():  # the home has used such a folder
            raise
        return None
    for finding in examine_shared_files(home, store):
        if finding.severity is Severity.PROBLEM:
            raise ConfigError(finding.text, finding.hint)
    return store.shared


def find_secrets(home: Home) -> list[str]:
    """Return the names of the files with secrets that a backup contains. It does not contain `store.url`. A
    broken config.toml may contain one."""
    try:
        held = held_secrets(load(home.path, {}, PARTS).settings)
        has_keys = any(path != ("store", "url") for path in held)
    except TalariaError:
        has_keys = True
    return [CONFIG] * has_keys + [each for each in SECRET_FILES if (home.path / each).is_file()]


@contextmanager
def progress(verb: str) -> Iterator[Callable[[int, str], None]]:
    """Show the progress on one line of a terminal; nothing is shown elsewhere."""
    is_shown, done = sys.stderr.isatty(), 0

    def tick(size: int, name: str) -> None:
        nonlocal done
        done += size
        if is_shown:
            click.echo(f"\r\x1b[K{verb} … {format_size(done)}", nl=False, err=True)

    try:
        yield tick
    finally:
        if is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)
