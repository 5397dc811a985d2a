"""The section of docs/chaos.md about three gateways on PostgreSQL."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from mutants.planting import PlantedFault
from soak.report import Figure, render_markdown

_DOCS = Path(__file__).parent.parent / "docs" / "chaos.md"
SECTION = "## Three gateways on one PostgreSQL"
_NEXT = "\n## Planted faults"


def read_cluster_docs() -> str:
    """Return the section as the last run with `--docs` wrote it, without its heading."""
    _, found, rest = _DOCS.read_text().partition(f"{SECTION}\n")
    return f"\n{rest.partition(_NEXT)[0]}" if found else "\n"


def write_cluster_docs(figures: Sequence[Figure], faults: Sequence[PlantedFault]) -> None:
    """Replace the section. The rest of the page comes from another run, and stays."""
    page = _DOCS.read_text()
    start = page.find(f"{SECTION}\n")
    end = page.index(_NEXT)
    before = page[: end + 1] if start < 0 else page[:start]
    _DOCS.write_text(f"{before}{SECTION}\n{_render(figures, faults)}{page[end:]}")


def _render(figures: Sequence[Figure], faults: Sequence[PlantedFault]) -> str:
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    names = "; ".join(fault.name for fault in faults)
    return f"""
Written by `./dev chaos --store postgres --docs` ({machine}). Three real gateways serve one PostgreSQL, with
leases of a second. People write over HTTP to all three, each message to a gateway at random, and again
elsewhere until one has accepted it; others write on a chat platform that one gateway at a time may ask. Jobs
come due, messages kill the gateway that runs them, and strangers try tokens that count for nothing. Meanwhile
gateways are killed (at random or at a labelled point), stopped past their leases, drained; their sessions in
the database are ended; PostgreSQL is restarted or crashes, and is gone for up to two leases.

Each gateway has a role of its own in the database, where a trigger notes who wrote each entry under whose
lease. In the end every message must be answered, or its failure told, in the order of its chat; no turn may
go on after another has begun in its log; no tool may have run twice; every job has run once.

{render_markdown(figures)}

These planted faults, one at a time, are caught here too (`./dev chaos --store postgres
--mutants`): {names}.
"""
