"""Planted faults that three gateways on one PostgreSQL must show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from chaos.planted import Cluster, Kills, Mutant, Pauses
from soak.report import Progress

_SEEDS = (1, 2, 3)


async def strike(faults: Cluster, source: Path) -> str:
    """Strike gateways that run this source, and return what was found wrong; nothing if all is well."""
    from chaos.cluster import POINTS, ClusterRun  # noqa: PLC0415 - needs psycopg and a PostgreSQL

    for seed in _SEEDS:
        run = ClusterRun(
            faults.count,
            Progress(is_quiet=True),
            seed,
            source=source,
            points=faults.points or POINTS,
            patience=20.0,
        )
        missed = [figure for figure in await run.run() if not figure.is_reached]
        if missed:
            return ", ".join(f"{figure.value:g} {figure.name.rpartition('… ')[2]}" for figure in missed)
    return ""


def on_cluster(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the faults that kills or pauses show on one machine, and those of a cluster, all to be shown by
    faults of three gateways on PostgreSQL."""
    found = []
    for mutant in mutants:
        match mutant.caught_by:
            case Kills(points=points):
                found.append(msgspec.structs.replace(mutant, caught_by=Cluster(points=points)))
            case Pauses():
                found.append(msgspec.structs.replace(mutant, caught_by=Cluster()))
            case Cluster():
                found.append(mutant)
    return found
