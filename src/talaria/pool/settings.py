"""`[pool]`: how many warm agents may stay in memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec

from talaria.core.units import Size
from talaria.pool.policy import PoolLimits


class PoolSettings(msgspec.Struct, frozen=True):
    """`max_bytes` bounds the transcript bytes of all warm agents together."""

    max_agents: Annotated[int, msgspec.Meta(ge=1)] = 128
    idle_ttl: timedelta = timedelta(hours=1)
    max_bytes: Size = Size(256 << 20)

    @property
    def limits(self) -> PoolLimits:
        return PoolLimits(self.max_agents, self.idle_ttl.total_seconds(), self.max_bytes)
