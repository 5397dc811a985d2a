"""`talaria config edit`: a copy in the editor, checked, and only then put in the file's place."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from talaria.config.edit import SECRET_KEYS, file_only, replace_config
from talaria.config.home import Home
from talaria.config.load import Loaded, load_text
from talaria.core.errors import ConfigError

_NEW = """\
# Talaria's configuration. Without a line here everything runs on its default.
# All keys are in docs/configuration.md; `talaria config get` shows those that count now.
"""


def edit(home: Home) -> int:
    """The status: 0 when the file is good, written or as it was."""
    before = _read(home)
    text = _decoded(before)
    with tempfile.TemporaryDirectory(prefix="talaria-config-") as folder:
        draft = Path(folder) / "config.toml"
        draft.write_text(text or _NEW, encoding="utf-8")
        while True:
            _open(draft)
            text = draft.read_text(encoding="utf-8", errors="replace")
            try:
                loaded = load_text(home.path, text, file_only(os.environ))
            except ConfigError as error:
                click.echo(error.user_text, err=True)
                if not _goes_on():
                    click.echo(f"Nothing was written; {home.config} is as it was.", err=True)
                    return 1
                continue
            return _write(home, before, text, loaded)


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
    replace_config(home.path, text, is_secret=any(f"{key} =" in text for key in SECRET_KEYS))
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
    """A file in another encoding is shown as well as it can be, and saved as UTF-8."""
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
    return sys.stdin.isatty() and click.confirm("Go on editing?", default=True)
