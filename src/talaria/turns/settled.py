"""The end of a turn, told to those who follow it."""

from __future__ import annotations

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import TalariaError
from talaria.core.events import Cancelled, Done, Event, Failed
from talaria.core.ids import channel_of
from talaria.core.ledger import TurnEnd
from talaria.core.messages import TokenUsage
from talaria.core.turns import Turn, TurnState
from talaria.observe.metrics import Metrics
from talaria.turns.live import LiveTurn

INTERNAL = TalariaError(
    "Something went wrong inside the gateway.", "The log has the details; please report it."
)


def failure(error: TalariaError, usage: TokenUsage | None = None) -> TurnEnd:
    info = error.info()
    return TurnEnd(TurnState.FAILED, reply=info.sentence(), error=info, usage=usage)


def ended(turn: Turn, end: TurnEnd, now: float) -> Turn:
    """The turn's row after `end` was committed."""
    return msgspec.structs.replace(
        turn, state=end.state, reply=end.reply, error=end.error, usage=end.usage, ended_at=now
    )


def final_event(turn: Turn) -> Event:
    match turn.state:
        case TurnState.DONE:
            return Done(turn.reply or "")
        case TurnState.CANCELLED:
            return Cancelled(turn.reply or "")
        case _:
            assert turn.error is not None
            return Failed(turn.error)


def tell(live: LiveTurn, turn: Turn, metrics: Metrics, clock: Clock) -> None:
    metrics.turn_ended(turn.state, channel_of(turn.chat_key), max(0.0, clock.now() - turn.accepted_at))
    live.settle(turn, final_event(turn))
