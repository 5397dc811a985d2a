"""What `talaria doctor` says of the configuration and of the HTTP token, and which command mends it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, assert_never

from talaria.cli.service import ENVIRONMENT
from talaria.config.home import Home, open_mode
from talaria.config.issues import BadConfig, Issue, IssueKind, dotted
from talaria.config.load import Loaded, secret_files
from talaria.config.settings import Settings
from talaria.core.errors import ConfigError, TalariaError
from talaria.core.findings import Finding, failed, ok, problem, shell, type_key, warn
from talaria.core.schema import KeyPath


def check_broken_config(home: Home, error: ConfigError) -> Iterator[Finding]:
    """Each problem by itself, so that each has its own way out."""
    if isinstance(error, BadConfig):
        for issue in error.issues:
            yield problem("config", issue.text, "", _remedy(issue, home.config))
    elif home.config.is_file():
        yield failed("config", error, "talaria config edit")
    else:
        yield failed("config", error)


def check_config(home: Home, loaded: Loaded, *, is_running: bool = False) -> Iterator[Finding]:
    """A running gateway has variables of its own, and is asked for them; this shell's do not matter then."""
    issues = [each for each in loaded.issues if not (is_running and each.kind is IssueKind.UNSET_VARIABLE)]
    for issue in issues:
        yield warn("config", issue.text, "", _remedy(issue, home.config))
    if not issues:
        there = "is fine" if loaded.path else "is not there; everything runs on defaults"
        yield ok("config", f"{home.config} {there}.")


def check_secret_files(home: Home, settings: Settings) -> Iterator[Finding]:
    """Files of ours that hold a secret are nobody else's to read."""
    names = [*secret_files(settings), ENVIRONMENT, home.database.name]
    for path in (home.path / name for name in names if name):
        if mode := open_mode(path):
            holds = "what was said" if path == home.database else "a secret"
            command = _close(path, home.path)
            fix = "" if command else f"It is not in the home; if it is Talaria's alone: chmod 600 {path}"
            text = f"{path} holds {holds} and is open to other users (mode {mode})."
            yield warn("secrets", text, fix, command)


def _close(path: Path, home: Path) -> str:
    """Empty for what a link or a name leads to outside of the home: others may need it."""
    is_inside = path.resolve().is_relative_to(home.resolve())
    return shell("chmod", "600", path) if is_inside else ""


def check_token(home: Home, environ: Mapping[str, str], token_env: str) -> Iterator[Finding]:
    file = home.token_file
    if token_env and token_env in environ:
        fine, anew = f"The HTTP token comes from {token_env}.", shell("unset", token_env)
    else:
        away = shell("mv", file, file.with_name("http.token.unusable")) if file.is_file() else ""
        fine, anew = f"{file}, for this user only.", away
        try:
            file.stat()
        except OSError:
            if not home.is_locked():
                yield ok("token", "There is no HTTP token yet; the first start makes one.")
            return
        if file.is_file() and (mode := open_mode(file)):
            text = f"{file} is open to other users (mode {mode})."
            yield warn("token", text, "", _close(file, home.path))
            return
    try:
        home.find_token(environ, token_env)
        yield ok("token", fine)
    except TalariaError as error:
        yield failed("token", error, anew)


def _remedy(issue: Issue, file: Path) -> str:  # noqa: PLR0911 - one for each kind
    """A command for a shell, as in `Finding.command`."""
    if issue.variable:
        return shell("unset", issue.variable)
    match issue.kind:
        case IssueKind.OPEN_FILE:
            return _close(file, file.parent)
        case IssueKind.UNKNOWN:
            return _rename(issue, file)
        case IssueKind.MISSING:
            return _supply(issue)
        case IssueKind.UNSET_VARIABLE if issue.path[:2] == ("channels", "telegram"):
            return "talaria connect telegram --wait 0"
        case IssueKind.UNSET_VARIABLE:
            return type_key(issue.instead)
        case IssueKind.NO_PRICE:
            return shell("talaria", "config", "set", issue.instead)
        case IssueKind.WRONG:
            if issue.instead:
                return shell("talaria", "config", "set", dotted(issue.path), issue.instead)
            if issue.path[-1] == "base_url":
                return shell("talaria", "config", "set", dotted(issue.path))  # nothing works without
            return shell("talaria", "config", "unset", dotted(issue.path))
        case _:
            assert_never(issue.kind)


def _supply(issue: Issue) -> str:
    match issue.path:
        case ("model",):
            return shell("talaria", "setup", "--provider", issue.instead)
        case ("providers", name):
            return shell("talaria", "setup", "--provider", name)
        case _:
            return shell("talaria", "config", "set", dotted(issue.path))


def _rename(issue: Issue, file: Path) -> str:
    """The value goes to the key that was meant, if there is one and it is free; the unknown key goes."""
    drop = shell("talaria", "config", "unset", dotted(issue.path))
    tree = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    value = _at(tree, issue.path)
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not issue.instead or not is_plain or _at(tree, tuple(issue.instead.split("."))) is not None:
        return drop
    return f"{shell('talaria', 'config', 'set', issue.instead, str(value))} && {drop}"


def _at(tree: Mapping[str, Any], path: KeyPath) -> object:
    place: object = tree
    for name in path:
        place = place.get(name) if isinstance(place, Mapping) else None
    return place
