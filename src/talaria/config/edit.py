"""Single keys of config.toml: as people name and write them, what they are and where that comes from, and
setting them while every other line stays as it was, comments too."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from talaria.config.environment import read_overrides
from talaria.config.home import replace_file
from talaria.config.load import FILE_NAME, Loaded, load_text, read_config
from talaria.config.positions import KeyPath, key_lines
from talaria.config.report import BadConfig, dotted, nearest
from talaria.config.settings import Settings
from talaria.config.shape import kind_at, known_keys, value_of_text
from talaria.core.errors import BadRequest, ConfigError
from talaria.core.units import Size, format_duration, write_size

SECRET_KEYS = frozenset({"api_key", "token"})


class Change(msgspec.Struct, frozen=True):
    """What an edit made of a file. `loaded` is None when it is still not good, for reasons that were there
    before: `left` names them."""

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
        around = []
        for depth, name in enumerate(table):
            around.append((place, name))
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
        for outer, name in reversed(around):
            if not _is_bare(outer[name]):
                break
            outer.remove(name)
        return tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.", "`talaria config edit` opens it.") from error


def _is_bare(table: object) -> bool:
    """Whether nothing would be missed: no key, and no comment."""
    from tomlkit.items import AbstractTable  # noqa: PLC0415

    if not isinstance(table, AbstractTable) or len(table):
        return False
    return not table.trivia.comment and "#" not in table.as_string()


def replace_config(home: Path, text: str, *, is_secret: bool = False) -> None:
    """Replace the file whole, where a link leads if it is one; with a secret in it, for its owner only."""
    path = home / FILE_NAME
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        real = path.resolve()
        mode = real.stat().st_mode & 0o777 if real.exists() and not is_secret else 0o600
        replace_file(real, text.encode(), mode)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}.", "Make it a file that you may write."
        ) from error


def write_secret(path: Path, text: str) -> None:
    """A file that only its owner can read, from its first byte on. Raises `ConfigError`."""
    try:
        replace_file(path, text.encode())
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
        return Change(load_text(home, after, environ))
    except BadConfig as error:
        wrong = {remark.path for remark in error.remarks}
        known = {
            path
            for path in _wrong(home, before, environ)
            if not any(path[: len(each)] == each for each in touched)
        }
        if not wrong <= known:
            # The lines are those of a file that is never written.
            texts = [each.text.partition(": ")[2] for each in error.remarks if each.path not in known]
            raise ConfigError("\n".join(texts), "Nothing was written.") from None
        return Change(None, error.user_text)


def _wrong(home: Path, before: str, environ: Mapping[str, str]) -> set[KeyPath]:
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


# -- keys and values as people write them


class Value(msgspec.Struct, frozen=True):
    """A key with what it is now, as TOML writes it, and where that comes from."""

    path: KeyPath
    toml: str
    source: str

    @property
    def plain(self) -> str:
        """A text without its quotes, as scripts want it."""
        value = tomllib.loads(f"value = {self.toml}")["value"] if self.toml else ""
        return value if isinstance(value, str) else self.toml


def parse_key(text: str) -> KeyPath:
    """From `pool.max_agents` or `prices."mine/m".input`. Raises `BadRequest` for what is no key."""
    try:
        tree: Any = tomllib.loads(f"{text} = 0")
    except ValueError:
        raise BadRequest(
            f"{text!r} is no key.", "A key is written table.name, such as pool.max_agents."
        ) from None
    path: KeyPath = ()
    while isinstance(tree, dict) and tree:
        (name,) = tree
        path, tree = (*path, name), tree[name]
    return path


def parse_value(path: KeyPath, text: str) -> object:
    """The value that the file would have. Raises `BadRequest` for a key that there is not."""
    kind = kind_at(Settings, path)
    if kind is None:
        raise unknown_key(path)
    return value_of_text(kind, text)


def unknown_key(path: KeyPath) -> BadRequest:
    known = {dotted(key): key for key in known_keys(Settings)}
    near = nearest(dotted(path), known) or next((key for key in known if key.endswith(f".{path[-1]}")), None)
    hint = f"Did you mean {near}?" if near else "docs/configuration.md lists all keys."
    return BadRequest(f"{dotted(path)} is not a known key.", hint)


def values(settings: Settings, text: str, environ: Mapping[str, str]) -> Iterator[Value]:
    """Every key that has a value, in the order of the settings."""
    tree = tomllib.loads(text) if text else {}
    lines, overrides = key_lines(text), read_overrides(environ, tree)
    for path, value in _leaves(settings, ()):
        if path in overrides:
            source = f"environment: {overrides[path].variable}"
        elif path in lines:
            source = f"config.toml line {lines[path]}"
        else:
            source = "default"
        is_size = kind_at(Settings, path) is Size
        shown = write_size(Size(value)) if is_size and isinstance(value, int) else value
        yield Value(path, _toml(path, shown), source)


def _leaves(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(value, msgspec.Struct):
        inner: Mapping[str, object] = msgspec.structs.asdict(value)
    elif isinstance(value, dict):
        inner = value
    else:
        yield path, value
        return
    for name, each in inner.items():
        yield from _leaves(each, (*path, name))


def _toml(path: KeyPath, value: object) -> str:  # noqa: PLR0911 - one per type
    """Empty for what is not set."""
    if path[-1] in SECRET_KEYS and value:
        return '"(not shown)"'
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case timedelta():
            return f'"{format_duration(value)}"'
        case str():
            return msgspec.json.encode(value).decode()
        case tuple():
            return f"[{', '.join(_toml(path, each) for each in value)}]"
        case msgspec.Struct():
            inner = (f"{name} = {_toml(path, each)}" for name, each in msgspec.structs.asdict(value).items())
            return f"{{ {', '.join(inner)} }}"
        case _:
            return str(value)
