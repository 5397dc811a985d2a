"""`talaria uninstall`: ends all that runs, removes the service, and keeps or deletes the data."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import click

from talaria.cli.options import Invocation, confirm, run_loop, verb
from talaria.cli.service import ENVIRONMENT, Service, find_service, run_command, wait_for
from talaria.cli.text import columns, count
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.errors import ConfigError
from talaria.core.installation import own_script, remove_command
from talaria.core.problems import end_command
from talaria.core.text import clean_line
from talaria.core.units import format_size
from talaria.models.local.weights import MANIFEST, WeightsCache
from talaria.parts import PARTS
from talaria.store.home_lock import HomeLock
from talaria.store.settings import is_file, shown_url
from talaria.workspace.network import end_networks
from talaria.workspace.places import remove_tree
from talaria.workspace.processes import end_all, find_running
from talaria.workspace.quota import measure

_STOP_SECONDS = 60  # running turns may finish
_SHOWN = 8


@verb("uninstall", "talaria uninstall", "talaria uninstall --yes --delete-data")
@click.option("--yes", is_flag=True, help="Do not ask. Data is kept, unless --delete-data is given.")
@click.option(
    "--keep-data/--delete-data",
    "keeps_data",
    default=None,
    help="Keep the home and the downloaded models, or delete them. Without it you are asked; default: keep.",
)
def command(invocation: Invocation, yes: bool, keeps_data: bool | None) -> None:
    """Stop the gateway and its agents' processes, and remove the service.

    Background processes of agents outlive the gateway; this ends them too. Your data stays, unless you agree
    to delete it. The last line is the command that removes the program itself.
    """
    home, service, cache = invocation.any_home(), find_service(invocation), WeightsCache.find(os.environ)
    is_home = _is_home(home)
    click.echo(columns(_found(home, service, cache.folder)))
    confirm("Stop the gateway and its processes, and remove the service?", yes=yes)
    _remove_service(service, home)
    _stop_gateway(home)
    if is_home:
        with HomeLock(home.path):  # no gateway starts meanwhile
            run_loop(end_all(home.path.resolve()))
            end_networks(home.path)
    click.echo("Nothing runs any more.")
    _settle_data(home, cache, is_home=is_home, yes=yes, keeps=keeps_data)
    if own_script() is not None and (link := _link()) is not None:
        link.unlink()
    click.echo(f"To remove the program: {remove_command()}")


def _found(home: Home, service: Service, cache: Path) -> list[tuple[str, str]]:
    """Return what there is, as rows of a table."""
    rows = [("service", str(service.file) if service.file.exists() else "none")]
    info = home.read_gateway() if home.is_locked() else None
    rows.append(("gateway", f"runs at {info.url} (pid {info.pid})" if info else "not running"))
    running = find_running(home.path)
    rows.append(("processes", count(len(running), "background process", "background processes")))
    rows += [("", f"{each.pid}  {clean_line(each.command, 60)}") for each in running[:_SHOWN]]
    for name, folder in (("data", home.path), ("models", cache)):
        rows.append((name, f"{folder}, {format_size(_size(folder))}" if folder.exists() else "none"))
    inside = sorted(home.path.iterdir(), key=_size, reverse=True) if home.path.is_dir() else []
    rows[-1:-1] = [
        ("", f"{clean_line(each.name, 40)}, {format_size(_size(each))}") for each in inside[:_SHOWN]
    ]
    with suppress(ConfigError):
        store = load(home.path, os.environ, PARTS).settings.store
        rows += [] if is_file(store.url) else [("database", f"{shown_url(store.url)} (always kept)")]
        rows += [("files", f"{store.shared} (always kept)")] if store.shared else []
    if (link := _link()) is not None:
        rows.append(("link", str(link)))
    return rows


def _remove_service(service: Service, home: Home) -> None:
    if service.file.exists():
        for line in service.stop if service.is_usable else ():
            run_command(line, quiet_failure=True)
        service.file.unlink()
        (home.path / ENVIRONMENT).unlink(missing_ok=True)


def _stop_gateway(home: Home) -> None:
    """Ask the gateway to end, then to end at once. Raises `ConfigError` if a process keeps the home."""
    for _ in range(2):
        info = home.read_gateway()
        if home.is_locked() and info is not None and end_command(info.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(info.pid, signal.SIGTERM)
        if wait_for(lambda: not home.is_locked(), _STOP_SECONDS if info else 0):
            return
    raise ConfigError(
        f"A process holds the home {home.path} and cannot be stopped from here.",
        "Stop it where it runs (in a container, or a `talaria chat` in another terminal), and try again.",
    )


def _settle_data(home: Home, cache: WeightsCache, *, is_home: bool, yes: bool, keeps: bool | None) -> None:
    folders = [path for path in (home.path, cache.folder) if path.exists()]
    if keeps is None and not yes and folders:
        names = " and ".join(map(str, folders))
        question = f"Delete {names} too? All messages, files, settings and keys are lost."
        keeps = not click.confirm(question, default=False)
    if keeps is not False:
        for folder in folders:
            click.echo(f"Kept: {folder}")
        return
    for weights in MANIFEST:
        cache.remove(weights)
        cache.path(weights).with_suffix(".lock").unlink(missing_ok=True)
    with suppress(OSError):  # it has other files, too
        cache.folder.rmdir()
    if home.path.exists() and not is_home:
        text = f"{home.path} was not deleted: it is not a Talaria home, or it contains other things."
        raise ConfigError(text, "Delete it by hand.")
    if home.path.exists():
        remove_tree(home.path.resolve())
        if not home.path.exists():
            home.path.unlink(missing_ok=True)  # a link to the home
    for folder in folders:
        click.echo(f"{'Kept, because it has other files' if folder.exists() else 'Deleted'}: {folder}")


def _is_home(home: Home) -> bool:
    """Return whether the folder is a home of its own, and not one that others live in."""
    program = own_script()
    others = [Path.home(), Path(sys.prefix), *([program.parent] if program else [])]
    marks = (home.lock, home.database, home.token_file)
    return any(mark.exists() for mark in marks) and not any(
        other.resolve().is_relative_to(home.path.resolve()) for other in others
    )


def _link() -> Path | None:
    """Return the link of `./dev link` that starts this copy of the program."""
    link = Path.home() / ".local" / "bin" / "talaria"
    return link if link.is_symlink() and link.resolve().is_relative_to(Path(sys.prefix).resolve()) else None


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    is_folder = path.is_dir() and not path.is_symlink()
    return measure(path, sys.maxsize)[0] if is_folder else path.lstat().st_size
