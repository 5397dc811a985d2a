"""Waiting for a model that is still on its way to this machine, before a turn begins.

The turn stays accepted all the while: a crash meanwhile is not counted against it, its deadline has not
begun, and whoever sent it is told how long it takes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from talaria.core.errors import TalariaError
from talaria.core.events import ModelLoading
from talaria.core.specs import AgentSpec
from talaria.turns.live import LiveTurn, StopReason

if TYPE_CHECKING:
    from talaria.turns.parts import Parts


class NothingComes:
    """The `PendingModels` of a gateway all of whose models are elsewhere."""

    is_any = False

    def is_coming(self, provider: str, model: str) -> bool:
        return False

    async def arrival(self, tell: Callable[[ModelLoading], None]) -> bool:
        return True

    def let_go(self) -> None:
        pass


NOTHING_COMES = NothingComes()


async def await_model(live: LiveTurn, parts: Parts) -> bool:
    """False: the gateway ends, and the turn is left for the next start. A person's wish to stop it ends the
    wait, and the turn is cancelled as any other."""
    if not parts.arrivals.is_any or live.head_start is not None or live.was_stopped_by(StopReason.USER):
        return True
    spec = await _spec_of(live, parts)
    if spec is None or not parts.arrivals.is_coming(spec.provider, spec.model):
        return True
    live.enter()
    live.began_at = math.inf
    try:
        return await parts.arrivals.arrival(live.emit)
    except asyncio.CancelledError:
        if not live.was_stopped_by(StopReason.USER):
            raise
        live.calm()
        return True
    finally:
        live.leave()
        live.began_at = parts.clock.elapsed()


async def _spec_of(live: LiveTurn, parts: Parts) -> AgentSpec | None:
    """Which model the turn will ask; None when that cannot be told, and the turn itself says why."""
    try:
        if (wish := live.turn.inbound.model) is None:
            session = await parts.store.session(live.turn.session_id)
            if session is not None and session.spec_id is not None:
                return (await parts.builder.pinned(session.spec_id)).spec
        return parts.specs.resolve(wish).spec
    except TalariaError:
        return None
