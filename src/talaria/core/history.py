"""What the ledger knows of one turn, for people who ask why, and what it may forget."""

from __future__ import annotations

import msgspec

from talaria.core.ids import OwnerId
from talaria.core.ledger import TurnRecord
from talaria.core.messages import TokenUsage


class StepUsage(msgspec.Struct, frozen=True):
    """What the model calls of step `n` used together, and when the first of them was written down."""

    n: int
    provider: str
    model: str
    calls: int
    tokens: TokenUsage
    at: float


class TurnHistory(msgspec.Struct, frozen=True):
    """A turn's whole record. `ahead` turns of its session were unsettled when it came. `begun_at` and
    `begun_by` are of its latest attempt; an owner is one process."""

    record: TurnRecord
    usage: tuple[StepUsage, ...] = ()
    ahead: int = 0
    begun_at: float | None = None
    begun_by: OwnerId = OwnerId("")


class PruneProgress(msgspec.Struct, frozen=True):
    """How far one order of forgetting came, and how many turns it forgot; `position` None: that was all."""

    position: int | None
    turns: int
