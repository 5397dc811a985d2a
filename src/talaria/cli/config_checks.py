"""The checks of `talaria doctor` for the configuration, and the command that mends each issue."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from talaria.channels.descriptor import Channel
from talaria.cli.service import ENVIRONMENT
from talaria.config.decoder import is_marked
from talaria.config.edit import write_value
from talaria.config.home import Home, open_mode
from talaria.config.issues import BadConfig, Issue, dotted
from talaria.config.load import Loaded, secret_files
from talaria.config.secrets_file import SECRETS_FILE
from talaria.config.settings import Settings, settings_type
from talaria.core.errors import ConfigError
from talaria.core.gateway_part import Parts
from talaria.core.problems import Action, Do, Problem, close_command, ok, run, shell, type_key, warn
from talaria.core.setting_marks import SECRET_MARKS, KeyPath


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
