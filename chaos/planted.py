"""The types of planted faults: an edit of the source, and what must catch it."""

from __future__ import annotations

import msgspec

from talaria.core.failpoints import Failpoint
from talaria.workspace.sandbox.port import SandboxKind


class Edit(msgspec.Struct, frozen=True):
    """A replacement in a file below src/talaria."""

    path: str
    old: str
    new: str


class Kills(msgspec.Struct, frozen=True):
    """Caught by kills at these points."""

    points: tuple[Failpoint, ...]


class Pauses(msgspec.Struct, frozen=True):
    """Caught by pauses of four processes."""

    count: int = 12


class Retries(msgspec.Struct, frozen=True):
    """Caught by clients that retry, after so many timeouts, cuts and kills."""

    count: int = 40


class Tests(msgspec.Struct, frozen=True):
    """Caught by this test."""

    node: str


class Cluster(msgspec.Struct, frozen=True):
    """Caught by so many faults of three gateways on PostgreSQL. Kills are at `points`, or at all."""

    count: int = 15
    points: tuple[Failpoint, ...] = ()


class Commands(msgspec.Struct, frozen=True):
    """Caught by so many hostile commands of these families in one sandbox."""

    backend: SandboxKind
    families: tuple[str, ...]
    count: int = 16


class Mutant(msgspec.Struct, frozen=True):
    name: str
    why: str
    edits: tuple[Edit, ...]
    caught_by: Kills | Pauses | Retries | Commands | Cluster | Tests
