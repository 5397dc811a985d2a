"""Which command mends what is wrong in the configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

from talaria.cli.findings import shell
from talaria.config.positions import KeyPath
from talaria.config.report import Fault, Remark, dotted


def remedy(remark: Remark, file: Path) -> str:  # noqa: PLR0911 - one per fault
    """A command for a shell, as in `Finding.command`."""
    if remark.variable:
        return shell("unset", remark.variable)
    match remark.fault:
        case Fault.OPEN:
            return shell("chmod", "600", file)
        case Fault.UNKNOWN:
            return _rename(remark, file)
        case Fault.MISSING:
            return _supply(remark)
        case Fault.EMPTY_VARIABLE if remark.path[:2] == ("channels", "telegram"):
            return "talaria connect telegram --wait 0"
        case Fault.EMPTY_VARIABLE:
            # Typed in, not pasted: a key does not belong into a shell's history.
            return f"read -r {remark.instead} && export {remark.instead}"
        case Fault.NO_PRICE:
            return shell("talaria", "config", "set", remark.instead)
        case Fault.WRONG:
            if remark.instead:
                return shell("talaria", "config", "set", dotted(remark.path), remark.instead)
            if remark.path[-1] == "base_url":
                return shell("talaria", "config", "set", dotted(remark.path))  # nothing works without
            return shell("talaria", "config", "unset", dotted(remark.path))
        case _:
            assert_never(remark.fault)


def _supply(remark: Remark) -> str:
    match remark.path:
        case ("model",):
            return shell("talaria", "setup", "--provider", remark.instead)
        case ("providers", name):
            return shell("talaria", "setup", "--provider", name)
        case _:
            return shell("talaria", "config", "set", dotted(remark.path))


def _rename(remark: Remark, file: Path) -> str:
    """The value goes to the key that was meant, if there is one and it is free; the unknown key goes."""
    drop = shell("talaria", "config", "unset", dotted(remark.path))
    tree = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    value = _at(tree, remark.path)
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not remark.instead or not is_plain or _at(tree, tuple(remark.instead.split("."))) is not None:
        return drop
    return f"{shell('talaria', 'config', 'set', remark.instead, str(value))} && {drop}"


def _at(tree: Mapping[str, Any], path: KeyPath) -> object:
    place: object = tree
    for name in path:
        place = place.get(name) if isinstance(place, Mapping) else None
    return place
