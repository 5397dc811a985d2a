"""Editing config.toml: sets keys of a table and leaves every other line as it was, comments too."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from talaria.config.load import FILE_NAME, Loaded, load_text, read_config
from talaria.config.positions import KeyPath
from talaria.config.report import BadConfig, dotted
from talaria.core.errors import ConfigError

SECRET_KEYS = frozenset({"api_key", "token"})


class Change(msgspec.Struct, frozen=True):
    """A file before and after an edit. `loaded` is None when it is still not good, for reasons that were
    there before: `left` names them."""

    before: str
    after: str
    loaded: Loaded | None
    left: str = ""


def change_key(home: Path, path: KeyPath, value: object | None, environ: Mapping[str, str]) -> Change:
    """Set one key of the home's file, or take it out where the value is None. The result is checked first:
    what it would break is raised as `ConfigError`, and nothing is written."""
    file = home / FILE_NAME
    before = read_config(file) or ""
    after = edited(file, before, path[:-1], {path[-1]: value})
    change = check_change(home, (path,), before, after, file_only(environ))
    replace_config(home, after, is_secret=path[-1] in SECRET_KEYS and value is not None)
    return change


def set_keys(path: Path, table: KeyPath, values: Mapping[str, object | None]) -> None:
    """Set each key of the table, or take it out where the value is None, unchecked. The file is replaced
    whole; a new one is for its owner only. Raises `ConfigError`."""
    text = edited(path, read_config(path) or "", table, values)
    replace_config(path.parent, text)


def edited(path: Path, text: str, table: KeyPath, values: Mapping[str, object | None]) -> str:
    """The text with the keys of the table set, or taken out. Raises `ConfigError` when it is no TOML."""
    import tomlkit  # noqa: PLC0415 - only where a file is edited
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        document = tomlkit.parse(text)
        place: tomlkit.TOMLDocument | tomlkit.items.Table = document
        for depth, name in enumerate(table):
            if name not in place:
                if not depth and text.strip():
                    document.add(tomlkit.nl())
                place.add(name, tomlkit.table(is_super_table=depth < len(table) - 1))
            place = place[name]
            if not hasattr(place, "remove"):
                raise ConfigError(f"{dotted(table[: depth + 1])} is no table in {path}.", "Correct it there.")
        for key, value in values.items():
            if value is not None:
                place[key] = _laid_out(value)
            elif key in place:
                place.remove(key)
        return tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.", "`talaria config edit` opens it.") from error


def replace_config(home: Path, text: str, *, is_secret: bool = False) -> None:
    """Replace the file whole, where a link leads if it is one; with a secret in it, for its owner only."""
    path = home / FILE_NAME
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(path.resolve(), text, mode=0o600 if is_secret else None)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}.", "Make it a file that you may write."
        ) from error


def write_secret(path: Path, text: str) -> None:
    """A file that only its owner can read, from its first byte on. Raises `ConfigError`."""
    try:
        _replace(path, text, mode=0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.", "Is the home yours?") from error


def file_only(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what stands over the file's keys: the file has to be good by itself."""
    return {name: value for name, value in environ.items() if not name.upper().startswith("TALARIA_")}


def check_change(
    home: Path, touched: Sequence[KeyPath], before: str, after: str, environ: Mapping[str, str]
) -> Change:
    """Raises `ConfigError` when the change breaks something, or leaves what it touches broken."""
    try:
        return Change(before, after, load_text(home, after, environ))
    except BadConfig as error:
        wrong = {remark.path for remark in error.remarks}
        before_too = _wrong_before(home, before, environ)
        known = {path for path in before_too if not any(path[: len(each)] == each for each in touched)}
        if not wrong <= known:
            # The lines are those of a file that is never written.
            texts = [each.text.partition(": ")[2] for each in error.remarks if each.path not in known]
            raise ConfigError("\n".join(texts), "Nothing was written.") from None
        return Change(before, after, None, error.user_text)


def _wrong_before(home: Path, before: str, environ: Mapping[str, str]) -> set[KeyPath]:
    try:
        load_text(home, before, environ)
    except BadConfig as error:
        return {remark.path for remark in error.remarks}
    return set()


def _laid_out(value: object) -> object:
    """A table as a value stands on its line, also in a list."""
    import tomlkit  # noqa: PLC0415

    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(_laid_out(each) for each in value)
        return array
    if not isinstance(value, dict):
        return value
    inline = tomlkit.inline_table()
    inline.update(value)
    return inline


def _replace(path: Path, text: str, mode: int | None = None) -> None:
    if mode is None:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
