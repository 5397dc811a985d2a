"""The checks of `talaria doctor` for the machine, the home and the configuration, and the command that fixes
each issue. They change nothing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import structs

from talaria.channels.descriptor import Channel
from talaria.cli.service import ENVIRONMENT
from talaria.config.decoder import is_marked
from talaria.config.edit import write_value
from talaria.config.home import SECRETS_FILE, Home, find_distrust, open_mode
from talaria.config.issues import BadConfig, Issue, dotted
from talaria.config.load import Loaded, secret_files
from talaria.config.settings import Settings, settings_type
from talaria.core.errors import ConfigError, TalariaError
from talaria.core.problems import (
    Action,
    Do,
    Problem,
    close_command,
    install_command,
    ok,
    problem,
    run,
    shell,
    type_key,
    warn,
)
from talaria.core.program import this_version
from talaria.core.settings import SECRET_MARKS, KeyPath, Parts
from talaria.core.units import format_size
from talaria.store.home_lock import check_filesystem

LITTLE_SPACE, NO_SPACE = 1 << 30, 100 << 20


def check_machine(home: Home) -> Iterator[Problem]:
    python = f"Python {platform.python_version()} ({sys.executable})"
    yield ok("talaria", f"Talaria {this_version()} on {python}, {platform.system()}.")
    if time.time() < Path(__file__).stat().st_mtime - 86_400:
        text = time.strftime("The clock says %Y-%m-%d %H:%M, which is before this program was installed.")
        yield problem("clock", text, "", "timedatectl set-ntp true")
    else:
        yield ok("clock", time.strftime("It is %Y-%m-%d %H:%M %Z."))
    try:
        ZoneInfo("Europe/Berlin")
    except (ZoneInfoNotFoundError, OSError):
        text = "This machine has no time zone database, so agent.timezone cannot be used."
        yield warn("clock", text, "", install_command("tzdata"))
    yield _check_disk(_existing(home.path))


def _check_disk(folder: Path) -> Problem:
    try:
        check_filesystem(folder)
        free = shutil.disk_usage(folder).free
    except TalariaError as error:
        return error.problem("disk")
    except OSError as error:
        return warn("disk", f"The disk of {folder} cannot be looked at: {error.strerror}.")
    if free >= LITTLE_SPACE:
        return ok("disk", f"{format_size(free)} free.")
    level = problem if free < NO_SPACE else warn
    return level("disk", f"{format_size(free)} free.", f"Make room on the disk that holds {folder}.")


def check_trust(home: Home) -> Iterator[Problem]:
    """Yield what lets other users control the home."""
    for reason in find_distrust(home):
        otherwise = f"{reason.otherwise[:1].upper()}{reason.otherwise[1:]}."
        yield problem("home", reason.user_text, otherwise, reason.command)


def check_home(home: Home, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Check the folder. It may be mistyped, so no command here touches files that Talaria did not make."""
    path, elsewhere = home.path, "Name a folder that you can write with --home or TALARIA_HOME."
    if not path.exists():
        parent = _existing(path)
        if parent.is_dir() and os.access(parent, os.W_OK):
            yield ok("home", f"{path} is not there yet; the first start makes it.")
        else:
            yield problem("home", f"{path} cannot be made: {parent} cannot be written.", elsewhere)
    elif not path.is_dir():
        is_named = environ.get("TALARIA_HOME") and Home.find(None, environ) == home
        unset = "unset TALARIA_HOME" if is_named else ""
        yield problem("home", f"{path} is a file, not a folder.", elsewhere, unset)
    elif not os.access(path, os.W_OK | os.X_OK):
        yield problem("home", f"{path} cannot be written by this user.", elsewhere)
    else:
        if mode := open_mode(path):
            text = f"{path} is open to other users (mode {mode})."
            if _is_ours(path):
                yield warn("home", text, "", shell("chmod", "700", path))
            else:
                fix = "It does not look like a home: name a folder of its own, or close it yourself."
                yield warn("home", text, fix)
        else:
            yield ok("home", f"{path}, for this user only.")
        for folder in (home.files, home.logs):
            if folder.exists() and not folder.is_dir():
                text = f"{folder} is a file, and a folder is needed there."
                yield problem("home", text, "Talaria did not make it: move it away, or name another home.")


def _is_ours(path: Path) -> bool:
    """Return whether the folder belongs to this user and looks like a home."""
    home = Home(path)
    is_home = any(each.exists() for each in (home.lock, home.token_file, home.config))
    return is_home and path.stat().st_uid == os.getuid()


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))


# -- the configuration -----------------------------------------------------------------------------------


def check_broken_config(home: Home, error: ConfigError, parts: Parts) -> Iterator[Problem]:
    """Yield each problem by itself, so that each has its own command."""
    if isinstance(error, BadConfig):
        for issue in error.issues:
            yield structs.replace(issue, action=run(_command(issue, home, parts)))
    else:
        yield error.problem("config", "talaria config edit" if home.config.is_file() else "")


def check_config(home: Home, loaded: Loaded, parts: Parts, *, is_running: bool) -> Iterator[Problem]:
    """A running gateway has variables of its own and is asked for them; those of this shell do not matter
    then."""
    issues = [issue for issue in loaded.issues if not (is_running and issue.unset)]
    for issue in issues:
        yield structs.replace(issue, action=run(_command(issue, home, parts)))
    if not issues:
        there = "is fine" if loaded.path else "is not there; everything runs on defaults"
        yield ok("config", f"{home.config} {there}.")


def check_secret_files(home: Home, settings: Settings) -> Iterator[Problem]:
    """Warn of files with secrets or conversations that other users can read."""
    for name in (*secret_files(settings), ENVIRONMENT, SECRETS_FILE, home.database.name):
        path = home.path / name
        if mode := open_mode(path):
            holds = "what was said" if path == home.database else "a secret"
            command = close_command(path, home.path)
            fix = "" if command else f"It is not in the home; if it is Talaria's alone: chmod 600 {path}"
            text = f"{path} holds {holds} and is open to other users (mode {mode})."
            yield warn("secrets", text, fix, command)


def _command(issue: Issue, home: Home, parts: Parts) -> str:
    """Return the command line for the action of an issue."""
    if issue.variable:
        return shell("unset", issue.variable)
    match issue.action:
        case Action(Do.SET_KEY, key, value):
            command = shell("talaria", "config", "set", key, *filter(None, (value,)))
        case Action(Do.UNSET_KEY, key):
            command = shell("talaria", "config", "unset", key)
        case Action(Do.MOVE_KEY, _, meant):
            command = _rename(issue.path, tuple(meant.split(".")), home, parts)
        case Action(Do.SET_VARIABLE, name):
            command = _connect(issue, parts) or type_key(name)
        case Action(Do.SET_UP, provider):
            command = shell("talaria", "setup", "--provider", provider)
        case Action(Do.CLOSE_FILE, path):
            command = close_command(Path(path), home.path)
        case _:
            command = issue.command
    return command


def _connect(issue: Issue, parts: Parts) -> str:
    """Return the command that connects the channel whose table has the issue; empty if there is none."""
    for part in parts:
        if isinstance(part, Channel) and part.connector and issue.path[: len(part.table)] == part.table:
            return f"talaria connect {part.name} --wait 0"
    return ""


def _rename(old: KeyPath, meant: KeyPath, home: Home, parts: Parts) -> str:
    """Return a command that moves the value or the table to the key that was probably meant, if that key is
    free, and removes the unknown key. A table that cannot be moved, and one with a secret, which must not be
    shown, is edited by hand."""
    remove = shell("talaria", "config", "unset", dotted(old))
    tree = tomllib.loads(home.config.read_text(encoding="utf-8-sig"))
    if not (value := _at(tree, old)):
        return remove
    is_table = isinstance(value, Mapping)
    inside = value.items() if isinstance(value, Mapping) else ()
    moved = {(*meant, name): each for name, each in inside} if is_table else {meant: value}
    if any(is_marked(settings_type(parts), path, *SECRET_MARKS) for path in moved):
        return "talaria config edit"
    if not all(_is_plain(each) and _at(tree, path) is None for path, each in moved.items()):
        return "talaria config edit" if is_table else remove
    if is_table and _at(tree, meant) is None:  # its keys may need each other
        whole = ", ".join(f"{dotted((name,))} = {write_value(each)}" for name, each in inside)
        return f"{shell('talaria', 'config', 'set', dotted(meant), f'{{{whole}}}')} && {remove}"
    return " && ".join([*(_set(path, each) for path, each in moved.items()), remove])


def _set(path: KeyPath, value: object) -> str:
    text = value if isinstance(value, str) else write_value(value)
    return shell("talaria", "config", "set", dotted(path), text)


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float)


def _at(tree: Mapping[str, Any], path: KeyPath) -> object:
    place: object = tree
    for name in path:
        place = place.get(name) if isinstance(place, Mapping) else None
    return place
