"""The history of one turn, for people who ask what happened; and the progress of forgetting turns."""

from __future__ import annotations

import msgspec

from talaria.core.ids import OwnerId
from talaria.core.ledger import TurnRecord
from talaria.core.messages import TokenUsage


class StepUsage(msgspec.Struct, frozen=True):
    """The usage of the calls of one model at step `n`; `at` is when the first was recorded. The usage of
    `estimated` of the calls is an estimate. `cost` is None if a price is not known."""

    n: int
    provider: str
    model: str
    calls: int
    tokens: TokenUsage
    at: float
    cost: int | None = None
    estimated: int = 0


class TurnHistory(msgspec.Struct, frozen=True):
    """A turn's record with more detail. `ahead` is how many turns of its session were unsettled when it was
    accepted. `begun_at` and `begun_by` are those of its latest attempt; an owner is one process."""

    record: TurnRecord
    usage: tuple[StepUsage, ...] = ()
    ahead: int = 0
    begun_at: float | None = None
    begun_by: OwnerId = OwnerId("")


class PruneProgress(msgspec.Struct, frozen=True):
    """The result of one batch of forgetting: how many turns were forgotten, and the position to go on from;
    None when no more are left."""

    position: int | None
    turns: int
