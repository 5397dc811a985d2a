"""Where values come from: the lines of config.toml, and environment variables such as
`TALARIA_POOL__MAX_AGENTS=4`, which stands for `max_agents` in `[pool]`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import msgspec

from talaria.core.setting_marks import KeyPath

_PREFIX = "TALARIA_"
_SEPARATOR = "__"
_TOKEN = re.compile(
    r'''
    (?P<string> """(?:\\.|[^\\])*?"{3,5} | \'\'\'.*?\'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*' )
  | (?P<newline> \n )
  | (?P<blank> [ \t\r]+ | \#[^\n]* )
  | (?P<mark> [\[\]{}=,.] )
  | (?P<bare> [^\s\[\]{}=,.\#"']+ )
    ''',
    re.VERBOSE | re.DOTALL,
)


class Override(msgspec.Struct, frozen=True):
    """The text of an environment variable, in the place of the file's value."""

    variable: str
    text: str


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each key and table by its whole path, because `tomllib` does not tell.

    `text` must be valid TOML. For a table that is opened several times it is the first line. Keys in arrays
    of tables count as keys of the array.
    """
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    path: KeyPath = ()
    opened: list[tuple[str, KeyPath]] = []  # the open brackets of the current value, each with its key
    is_key, line = True, 1
    for match in _TOKEN.finditer(text.replace("\r\n", "\n")):
        kind, piece = match.lastgroup, match[0]
        if piece in ("]", "}") and opened:
            (_, path), is_key = opened.pop(), False
        elif piece == "\n" and not opened:
            path, is_key = table, True
        elif is_key:
            if kind in ("string", "bare"):
                path = (*path, tomllib.loads(f"key = {piece}")["key"] if kind == "string" else piece)
                found.setdefault(path, line)
            elif piece == "[":  # the head of a table, which ends with the other bracket
                path = ()
            elif piece == "]":
                table = path
            is_key = piece != "="
        elif piece in ("[", "{"):
            opened.append((piece, path))
            is_key = piece == "{"
        elif piece == "," and opened[-1][0] == "{":
            path, is_key = opened[-1][1], True
        line += piece.count("\n")
    return found


def read_overrides(environ: Mapping[str, str], tree: Mapping[str, Any]) -> dict[KeyPath, Override]:
    """Return the variables that name a key, by its path. Names without a double underscore are reserved."""
    found = {}
    for name in sorted(environ):
        head, rest = name[: len(_PREFIX)].upper(), name[len(_PREFIX) :]
        if head == _PREFIX and _SEPARATOR in rest:
            found[_spell(rest.lower().split(_SEPARATOR), tree)] = Override(name, environ[name])
    return found


def apply_overrides(tree: Mapping[str, Any], overrides: Mapping[KeyPath, Override]) -> dict[str, Any]:
    """Return a copy of the tree with each override in its place."""
    applied = deepcopy(dict(tree))
    for path, override in overrides.items():
        table = applied
        for name in path[:-1]:
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                break  # a value where a table should be: that is reported, with or without this variable
            table = inner
        else:
            table[path[-1]] = override
    return applied


def _spell(names: list[str], tree: Mapping[str, Any]) -> KeyPath:
    """Return the path as the file spells it: variables have no dashes and usually no lower case."""
    path: list[str] = []
    table: object = tree
    for name in names:
        keys = table if isinstance(table, Mapping) else {}
        same = [key for key in keys if key.lower().replace("-", "_") == name.replace("-", "_")]
        path.append(same[0] if same else name)
        table = keys.get(path[-1])
    return tuple(path)
