"""Planted faults: each breaks one guarantee in a copy of the source, and a test or a run must catch it.

The files in `mutants/planted/` describe them as data, by function and syntax (`mutants/edits.py`). If the
syntax of a fault is gone, plant the same fault in the new code; do not delete it.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from mutants.edits import Edit, Tree
from talaria.core.failpoints import Failpoint
from talaria.workspace.sandbox.command import SandboxKind

FOLDER = Path(__file__).parent / "planted"


class Kills(msgspec.Struct, frozen=True, tag_field="by", tag="kills"):
    """Caught by kills at these points."""

    points: tuple[Failpoint, ...]


class Pauses(msgspec.Struct, frozen=True, tag_field="by", tag="pauses"):
    """Caught by pauses of four processes."""

    count: int


class Retries(msgspec.Struct, frozen=True, tag_field="by", tag="retries"):
    """Caught by clients that retry, after this number of timeouts, cuts and kills."""

    count: int


class Cluster(msgspec.Struct, frozen=True, tag_field="by", tag="cluster"):
    """Caught by this number of faults of three gateways on PostgreSQL. Kills are at `points`, or at all."""

    count: int = 15
    points: tuple[Failpoint, ...] = ()


class Commands(msgspec.Struct, frozen=True, tag_field="by", tag="commands"):
    """Caught by this number of hostile commands of these families in one sandbox."""

    backend: SandboxKind
    families: tuple[str, ...]
    count: int = 16


class PlantedFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`caught_by` is a test file or test, or a kind of run that `trial/catching.py` starts."""

    name: str
    why: str
    caught_by: str | Kills | Pauses | Retries | Cluster | Commands
    edits: tuple[Edit, ...]


@cache
def planted_faults() -> tuple[PlantedFault, ...]:
    """Return all planted faults."""
    found: list[PlantedFault] = []
    for path in sorted(FOLDER.glob("*.toml")):
        tables = tomllib.loads(path.read_text())
        shared = tables.pop("shared", {})
        found += [_read(name, table, shared) for name, table in tables.items()]
    return tuple(found)


def _read(name: str, table: dict[str, Any], shared: dict[str, dict[str, Any]]) -> PlantedFault:
    """`also` has more edits, in the same place unless they name one. `with` names an edit of `shared`."""
    told = {key: table.pop(key) for key in ("why", "caught_by")}
    first = [shared[table.pop("with")]] if "with" in table else []
    more = [{"in": table["in"]} | edit for edit in table.pop("also", ())]
    return msgspec.convert({"name": name, **told, "edits": [*first, table, *more]}, PlantedFault)


def plant(fault: PlantedFault) -> Tree:
    """Return the syntax trees with the fault. Raises `NotFound` if it cannot be planted exactly once."""
    tree = Tree()
    for edit in fault.edits:
        tree.apply(edit)
    return tree
