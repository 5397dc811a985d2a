"""Settings from the environment: `TALARIA_POOL__MAX_AGENTS=4` stands for `max_agents` in `[pool]`."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from talaria.config.positions import KeyPath
from talaria.config.report import Override

_PREFIX = "TALARIA_"
_BETWEEN = "__"


def read_overrides(environ: Mapping[str, str], tree: Mapping[str, Any]) -> dict[KeyPath, Override]:
    """All variables that name a key, by its path. Names without a double underscore are reserved."""
    found = {}
    for name in sorted(environ):
        head, rest = name[: len(_PREFIX)].upper(), name[len(_PREFIX) :]
        if head == _PREFIX and _BETWEEN in rest:
            parts = rest.lower().split(_BETWEEN)
            found[_spell(parts, tree)] = Override(name, environ[name])
    return found


def graft(tree: Mapping[str, Any], overrides: Mapping[KeyPath, Override]) -> dict[str, Any]:
    """The tree with each override in its place; `tree` itself stays as it is."""
    grafted = deepcopy(dict(tree))
    for path, override in overrides.items():
        table = grafted
        for part in path[:-1]:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                break  # a value where a table should be: that is reported, with or without this variable
            table = inner
        else:
            table[path[-1]] = override
    return grafted


def _spell(parts: list[str], tree: Mapping[str, Any]) -> KeyPath:
    """The path as the file spells it: variables have neither dashes nor, for most people, small letters."""
    path: list[str] = []
    table: object = tree
    for part in parts:
        keys = table if isinstance(table, Mapping) else {}
        same = [key for key in keys if key.lower().replace("-", "_") == part.replace("-", "_")]
        path.append(same[0] if same else part)
        table = keys.get(path[-1])
    return tuple(path)
