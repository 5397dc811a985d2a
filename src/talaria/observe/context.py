"""Which turn a log record belongs to: carried by the task that runs it, added to every record it writes."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from talaria.core.ids import SessionId, TurnId

_turn: ContextVar[tuple[TurnId, SessionId] | None] = ContextVar("talaria_turn", default=None)


def log_turn(turn_id: TurnId, session_id: SessionId) -> None:
    """From now on this task, and those it starts, run this turn. Others do not notice."""
    _turn.set((turn_id, session_id))


def current_fields() -> Mapping[str, str]:
    turn = _turn.get()
    return {} if turn is None else {"turn_id": turn[0], "session_id": turn[1]}
