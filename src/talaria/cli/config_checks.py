"""The checks of `talaria doctor` for the configuration, and the command that mends each issue."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from talaria.channels.descriptor import Channel
from talaria.cli.service import ENVIRONMENT
from talaria.config.decoder import is_marked
from talaria.config.edit import write_value
from talaria.config.home import Home, open_mode
from talaria.config.issues import BadConfig, Issue, IssueKind, dotted
from talaria.config.load import Loaded, secret_files
from talaria.config.secrets_file import SECRETS_FILE
from talaria.config.settings import Settings, settings_type
from talaria.core.errors import ConfigError
from talaria.core.gateway_part import Parts
from talaria.core.problems import Problem, close_command, ok, problem, shell, type_key, warn
from talaria.core.setting_marks import SECRET_MARKS, KeyPath


def check_broken_config(home: Home, error: ConfigError, parts: Parts) -> Iterator[Problem]:
    """Yield a finding for each problem, so that each has its own remedy."""
    if isinstance(error, BadConfig):
        for issue in error.issues:
            yield problem("config", issue.text, "", _remedy(issue, home, parts))
    else:
        yield error.problem("config", "talaria config edit" if home.config.is_file() else "")


def check_config(home: Home, loaded: Loaded, parts: Parts, *, is_running: bool) -> Iterator[Problem]:
    """A running gateway has variables of its own and is asked for them; those of this shell do not matter
    then."""
    issues = [each for each in loaded.issues if not (is_running and each.kind is IssueKind.UNSET_VARIABLE)]
    for issue in issues:
        yield warn("config", issue.text, "", _remedy(issue, home, parts))
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


def _remedy(issue: Issue, home: Home, parts: Parts) -> str:
    """Return a command for a shell, as in `Problem.command`."""
    if issue.variable:
        return shell("unset", issue.variable)
    change = ("talaria", "config", "set", dotted(issue.path))
    match issue.kind:
        case IssueKind.OPEN_FILE:
            command = close_command(home.config, home.path)
        case IssueKind.UNKNOWN:
            command = _rename(issue, home, parts)
        case IssueKind.MISSING:
            provider = issue.instead if issue.path == ("model",) else issue.path[-1]
            is_model = issue.path[0] in ("model", "providers")
            command = shell("talaria", "setup", "--provider", provider) if is_model else shell(*change)
        case IssueKind.UNSET_VARIABLE:
            command = _connect(issue, parts) or type_key(issue.instead)
        case IssueKind.NO_PRICE:
            command = shell("talaria", "config", "set", issue.instead)
        case IssueKind.WRONG if issue.instead:
            command = shell(*change, issue.instead)
        case IssueKind.WRONG if issue.path[-1] == "base_url":  # nothing works without
            command = shell(*change)
        case IssueKind.WRONG:
            command = shell("talaria", "config", "unset", dotted(issue.path))
        case _:
            assert_never(issue.kind)
    return command


def _connect(issue: Issue, parts: Parts) -> str:
    """Return the command that connects the channel whose table has the issue; empty if there is none."""
    for part in parts:
        if isinstance(part, Channel) and part.connector and issue.path[: len(part.table)] == part.table:
            return f"talaria connect {part.name} --wait 0"
    return ""


def _rename(issue: Issue, home: Home, parts: Parts) -> str:
    """Return a command that moves the value or the table to the key that was probably meant, if that key is
    free, and removes the unknown key. A table that cannot be moved, and one with a secret, which must not be
    shown, is edited by hand."""
    remove = shell("talaria", "config", "unset", dotted(issue.path))
    tree = tomllib.loads(home.config.read_text(encoding="utf-8-sig"))
    value, meant = _at(tree, issue.path), tuple(issue.instead.split("."))
    if not issue.instead or not value:
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
