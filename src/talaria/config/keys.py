"""Single keys as people name and write them: `pool.max_agents`, `prices."mine/m".input`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from talaria.config.edit import SECRET_KEYS
from talaria.config.environment import read_overrides
from talaria.config.positions import KeyPath, key_lines
from talaria.config.report import dotted, nearest
from talaria.config.settings import Settings
from talaria.config.shape import kind_at, known_keys, value_of_text
from talaria.core.errors import BadRequest
from talaria.core.units import format_duration


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
    """Raises `BadRequest` for what is no key."""
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
        yield Value(path, _toml(path, value), source)


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
