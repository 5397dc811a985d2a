"""`talaria config`: shows and changes the configuration, and never leaves a broken file."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import click

from talaria.cli.options import Invocation, group
from talaria.cli.text import ask_hidden
from talaria.config import edit
from talaria.config.decoder import find_hint, is_marked
from talaria.config.home import Home
from talaria.config.issues import dotted, key_lines, read_overrides
from talaria.config.load import Loaded, held_secrets, load, load_text, read_config
from talaria.config.settings import Settings, settings_type
from talaria.core.errors import ConfigError, NotFound
from talaria.core.program import spoken
from talaria.core.settings import SECRET_MARKS, KeyPath, Mark
from talaria.parts import PARTS

_NEW = """\
# Talaria's configuration. Without a line here everything runs on its default.
# All keys are in docs/configuration.md; `talaria config get` shows those that count now.
"""


@group(
    "config",
    "talaria config get                         everything, and where it comes from",
    "talaria config get model.name",
    "talaria config set pool.max_agents 32",
    "talaria config unset pool.max_agents       back to the default",
    "talaria config edit",
)
def command() -> None:
    """Show and change the configuration."""


@command.verb("path", "talaria config path")
def _path(invocation: Invocation) -> None:
    """Print the path of config.toml, whether it exists or not."""
    click.echo(invocation.any_home().config)


@command.verb("get", "talaria config get", "talaria config get pool", "talaria config get http.port")
@click.argument("key", required=False)
def _get(invocation: Invocation, key: str | None) -> None:
    """Print the value that counts, and on stderr where it comes from: the file's line, a variable, the
    default.

    Without KEY, or with a table, print all of it as TOML. Secrets are not shown.
    """
    home = invocation.home()
    path = edit.parse_key(settings_type(PARTS), key) if key else ()
    settings = load(home.path, os.environ, PARTS).settings
    found = list(edit.shown_values(settings, read_config(home.config) or "", os.environ))
    exact = next((value for value in found if value.path == path), None)
    if exact is not None:
        click.echo(exact.plain)
        click.echo(f"({exact.describe()})", err=True)
        _tell_address(home, path, exact.plain)
        return
    inside = [value for value in found if value.path[: len(path)] == path and (value.toml or value.unset)]
    if path and not inside and find_hint(type(settings), path) is None:
        raise edit.unknown_key(type(settings), path)
    if path and not inside:
        click.echo(f"(not set: {dotted(path)} has no value, and no default)", err=True)
    for value in inside:
        if value.toml:
            click.echo(f"{dotted(value.path)} = {value.toml}  # {value.describe()}")
        else:  # TOML has no word for nothing
            click.echo(f"# {dotted(value.path)} = {value.plain}  # {value.describe()}")


def _tell_address(home: Home, path: KeyPath, value: str) -> None:
    """Tell where a running gateway listens, if that is elsewhere: `serve` has options for it."""
    if path not in (("http", "host"), ("http", "port")) or not home.is_locked():
        return
    info = home.read_gateway()
    if info is not None and value not in urlsplit(info.url).netloc:
        click.echo(f"(but the running gateway listens on {info.url})", err=True)


@command.verb(
    "set",
    "talaria config set pool.idle_ttl 30m",
    "talaria config set tools.enabled files,todo",
    "talaria config set providers.mine.api_key     asks for it",
)
@click.argument("key")
@click.argument("value", required=False)
def _set(invocation: Invocation, key: str, value: str | None) -> None:
    """Set a key in config.toml, if the file is good with it. Comments stay.

    Without VALUE it is asked for; a secret is not shown while it is typed.
    """
    kind = settings_type(PARTS)
    path = edit.parse_key(kind, key)
    edit.parse_value(kind, path, "")  # an unknown key is told before its value is asked for
    if value is None:
        is_secret = is_marked(kind, path, *SECRET_MARKS)
        value = ask_hidden(dotted(path)) if is_secret else str(click.prompt(dotted(path)))
    home = invocation.home()
    parsed = edit.parse_value(kind, path, value)
    change = edit.change_key(home.path, path, parsed, os.environ, PARTS)
    _tell(home, path, change, parsed)
    if path[0] == "budgets" and change.loaded is not None:
        _tell_caps(change.loaded.settings)


def _tell_caps(settings: Settings) -> None:
    """Tell which caps refuse every call to the configured model."""
    from talaria.cli.model_checks import find_tight_caps
    from talaria.models.catalog import ModelChoice

    for text, fix in find_tight_caps(ModelChoice(settings.model.provider, settings.model.name), settings):
        click.echo(spoken(f"But {text} `{fix}` raises it."), err=True)


@command.verb("unset", "talaria config unset pool.max_agents")
@click.argument("key")
def _unset(invocation: Invocation, key: str) -> None:
    """Take a key out of config.toml, so that its default counts again."""
    home, path = invocation.home(), edit.parse_key(settings_type(PARTS), key)
    text = read_config(home.config) or ""
    try:
        is_there = path in key_lines(text) if tomllib.loads(text) else False
    except ValueError:
        is_there = True  # `change_key` says what is wrong with the file
    if not is_there:
        if find_hint(settings_type(PARTS), path) is None:
            raise edit.unknown_key(settings_type(PARTS), path)
        raise NotFound(f"{dotted(path)} is not set in {home.config}.", "`talaria config get` shows what is.")
    _tell(home, path, edit.change_key(home.path, path, None, os.environ, PARTS))


@command.verb("edit", "talaria config edit", "EDITOR=nano talaria config edit")
def _edit(invocation: Invocation) -> int:
    """Open config.toml in $EDITOR. It is checked before it takes the place of the old one."""
    home = invocation.home()
    before = _read(home)
    text = _decoded(before)
    with tempfile.TemporaryDirectory(prefix="talaria-config-") as folder:
        draft = Path(folder) / "config.toml"
        draft.write_text(text or _NEW, encoding="utf-8")
        while True:
            _open(draft)
            text = draft.read_text(encoding="utf-8", errors="replace")
            try:
                loaded = load_text(home.path, text, edit.file_only(os.environ), PARTS)
            except ConfigError as error:
                click.echo(error.user_text, err=True)
                if not _goes_on():
                    click.echo(f"Nothing was written; {home.config} is as it was.", err=True)
                    return 1
                continue
            return _write(home, before, text, loaded)


def _tell(home: Home, path: KeyPath, change: edit.Change, value: object = None) -> None:
    what = "no longer set" if value is None else "set"
    live, later = "A running gateway takes it up within seconds.", "It counts from the next start on."
    click.echo(f"{dotted(path)} is {what} in {home.config}. {live if _is_live(path, value) else later}")
    if path in (overrides := read_overrides(os.environ, {})):
        click.echo(f"But {overrides[path].variable} is set in this shell, and counts more.", err=True)
    if change.left:
        click.echo(f"The file still cannot be used:\n{change.left}", err=True)
    if change.loaded is not None:
        for issue in change.loaded.issues:
            if issue.path[: len(path)] == path:
                click.echo(issue.text, err=True)


def _is_live(path: KeyPath, value: object) -> bool:
    """Return whether a running gateway takes up the key, or each key that the table sets."""
    keys = [(*path, name) for name in value] if isinstance(value, dict) else [path]
    return all(is_marked(settings_type(PARTS), key, Mark.LIVE) for key in keys)


# -- the editor


def _write(home: Home, before: bytes, text: str, loaded: Loaded) -> int:
    for warning in loaded.warnings:
        click.echo(warning, err=True)
    if _read(home) != before:
        raise ConfigError(
            f"{home.config} was changed by someone else meanwhile; nothing was written.",
            "Run `talaria config edit` again.",
        )
    if text.encode() == (before or _NEW.encode()):
        click.echo(f"{home.config} is as it was.")
        return 0
    edit.replace_config(home.path, text, is_secret=bool(held_secrets(loaded.settings)))
    click.echo(f"{home.config} is written. A running gateway takes up what it can within seconds.")
    return 0


def _read(home: Home) -> bytes:
    try:
        return home.config.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"{home.config} cannot be read: {error.strerror}.", "Is it yours?") from error


def _decoded(data: bytes) -> str:
    """Return the text. Latin-1 is assumed for a file that is not UTF-8; it is saved as UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _open(draft: Path) -> None:
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    found = named or next((name for name in ("nano", "vim", "vi") if shutil.which(name)), None)
    if found is None:
        raise ConfigError("There is no editor.", "Name one: EDITOR=/path/to/editor talaria config edit")
    try:
        status = subprocess.run([*shlex.split(found), str(draft)], check=False).returncode  # noqa: S603
    except OSError as error:
        raise ConfigError(
            f"The editor {found} cannot be started: {error.strerror}.", "Name another in EDITOR."
        ) from None
    if status:
        raise ConfigError(f"The editor {found} ended with status {status}; nothing was written.")


def _goes_on() -> bool:
    return sys.stdin.isatty() and click.confirm("Continue editing?", default=True)
