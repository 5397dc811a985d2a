"""`talaria config`: shows and changes the configuration, and never leaves a broken file."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from talaria.cli.lazy import PlainGroup
from talaria.cli.options import Invocation, common

if TYPE_CHECKING:
    from talaria.config.edit import Change
    from talaria.config.home import Home
    from talaria.config.positions import KeyPath

EXAMPLES = """\b
Examples:
  talaria config get                         everything, and where it comes from
  talaria config get model.name
  talaria config set pool.max_agents 32
  talaria config unset pool.max_agents       back to the default
  talaria config edit
"""
_GET = """\b
Examples:
  talaria config get
  talaria config get pool
  talaria config get http.port
"""
_SET = """\b
Examples:
  talaria config set pool.idle_ttl 30m
  talaria config set tools.enabled files,todo
  talaria config set providers.mine.api_key     asks for it
"""


@click.group("config", cls=PlainGroup, no_args_is_help=True, epilog=EXAMPLES)
@common
def command() -> None:
    """Show and change the configuration."""


@command.command("path", epilog="\b\nExample:\n  talaria config path")
@common
@click.pass_obj
def show_path(invocation: Invocation) -> None:
    """Print the path of config.toml, whether it exists or not."""
    click.echo(invocation.home().config)


@command.command("get", epilog=_GET)
@common
@click.argument("key", required=False)
@click.pass_obj
def get_value(invocation: Invocation, key: str | None) -> None:
    """Print a key's value, and on stderr where it comes from: the file's line, a variable, the default.

    Without KEY, or with a table, print all of it as TOML. Secrets are not shown.
    """
    from talaria.config.keys import parse_key, unknown_key, values
    from talaria.config.load import load, read_config
    from talaria.config.report import dotted

    home = invocation.home()
    path = parse_key(key) if key else ()
    settings = load(home.path, os.environ).settings
    found = list(values(settings, read_config(home.config) or "", os.environ))
    exact = next((value for value in found if value.path == path), None)
    if exact is not None:
        click.echo(exact.plain)
        click.echo(f"({'not set' if not exact.toml else exact.source})", err=True)
        return
    inside = [value for value in found if value.path[: len(path)] == path and value.toml]
    if path and not inside and not _is_table(path):
        raise unknown_key(path)
    for value in inside:
        click.echo(f"{dotted(value.path)} = {value.toml}  # {value.source}")


@command.command("set", epilog=_SET)
@common
@click.argument("key")
@click.argument("value", required=False)
@click.pass_obj
def set_value(invocation: Invocation, key: str, value: str | None) -> None:
    """Set a key in config.toml, if the file is good with it. Comments stay.

    Without VALUE it is asked for; a secret is not shown while it is typed.
    """
    from talaria.config.edit import SECRET_KEYS, change_key
    from talaria.config.keys import parse_key, parse_value
    from talaria.config.report import dotted

    path = parse_key(key)
    parse_value(path, "")  # an unknown key is told before its value is asked for
    if value is None:
        value = str(click.prompt(dotted(path), hide_input=path[-1] in SECRET_KEYS and sys.stdin.isatty()))
    home = invocation.home()
    change = change_key(home.path, path, parse_value(path, value), os.environ)
    _tell(home, path, change, "set")


@command.command("unset", epilog="\b\nExample:\n  talaria config unset pool.max_agents")
@common
@click.argument("key")
@click.pass_obj
def unset_value(invocation: Invocation, key: str) -> None:
    """Take a key out of config.toml, so that its default counts again."""
    import tomllib

    from talaria.config.edit import change_key
    from talaria.config.keys import parse_key
    from talaria.config.load import read_config
    from talaria.config.positions import key_lines
    from talaria.config.report import dotted
    from talaria.core.errors import NotFound

    home, path = invocation.home(), parse_key(key)
    text = read_config(home.config) or ""
    try:
        is_there = path in key_lines(text) if tomllib.loads(text) else False
    except ValueError:
        is_there = True  # `change_key` says what is wrong with the file
    if not is_there:
        raise NotFound(f"{dotted(path)} is not set in {home.config}.", "`talaria config get` shows what is.")
    _tell(home, path, change_key(home.path, path, None, os.environ), "no longer set")


@command.command("edit", epilog="\b\nExamples:\n  talaria config edit\n  EDITOR=nano talaria config edit")
@common
@click.pass_obj
def edit_file(invocation: Invocation) -> int:
    """Open config.toml in $EDITOR. It is checked before it takes the place of the old one."""
    from talaria.cli.config_edit import edit

    return edit(invocation.home())


def _is_table(path: KeyPath) -> bool:
    from talaria.config.settings import Settings
    from talaria.config.shape import kind_at

    return kind_at(Settings, path) is not None


def _tell(home: Home, path: KeyPath, change: Change, what: str) -> None:
    from talaria.config.environment import read_overrides
    from talaria.config.live import is_live
    from talaria.config.report import dotted

    live, later = "A running gateway takes it up within seconds.", "It counts from the next start on."
    click.echo(f"{dotted(path)} is {what} in {home.config}. {live if is_live(path) else later}")
    if path in (overrides := read_overrides(os.environ, {})):
        click.echo(f"But {overrides[path].variable} is set in this shell, and counts more.", err=True)
    if change.left:
        click.echo(f"The file still cannot be used:\n{change.left}", err=True)
    if change.loaded is not None:
        for remark in change.loaded.remarks:
            if remark.path[: len(path)] == path:
                click.echo(remark.text, err=True)
