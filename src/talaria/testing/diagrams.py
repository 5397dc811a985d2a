"""State diagrams for docs/lifecycle.md, drawn from the tables by which things move.

`python -m talaria.testing.diagrams docs/lifecycle.md` draws them anew in their places. A move that has no
words here is an error, so a table cannot grow without its document.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from talaria.core.delivery import OUTBOX_MOVES, OutboxState
from talaria.core.turns import STEP_MOVES, TURN_MOVES, StepState, TurnState
from talaria.models.breaker import BREAKER_MOVES, BreakerState
from talaria.pool.policy import AgentState

_PLACE = re.compile(r"(<!-- diagram: (\w+) -->\n)(.*?)(<!-- end of diagram -->)", re.DOTALL)

# As seen between awaits; None is the end. tests/docs/test_lifecycle.py watches a pool make these moves.
AGENT_MOVES: Mapping[AgentState, frozenset[AgentState | None]] = {
    AgentState.BUILDING: frozenset({AgentState.BUSY, None}),
    AgentState.BUSY: frozenset({AgentState.IDLE, None}),
    AgentState.IDLE: frozenset({AgentState.BUSY, AgentState.BUILDING, None}),
}

_State = TypeVar("_State", bound=StrEnum)
_Words = Mapping[tuple[_State | None, _State | None], str]
_TURN_WORDS: _Words[TurnState] = {
    (None, TurnState.ACCEPTED): "a message comes in, durable",
    (TurnState.ACCEPTED, TurnState.RUNNING): "its lane is free, lease taken",
    (TurnState.ACCEPTED, TurnState.DONE): "a command, answered without a model",
    (TurnState.ACCEPTED, TurnState.FAILED): "a command that cannot be carried out",
    (TurnState.ACCEPTED, TurnState.CANCELLED): "stopped in the queue",
    (TurnState.RUNNING, TurnState.RUNNING): "begun again after a restart",
    (TurnState.RUNNING, TurnState.WAITING): "parked for a person",
    (TurnState.RUNNING, TurnState.DONE): "the reply is committed",
    (TurnState.RUNNING, TurnState.FAILED): "the failure is committed",
    (TurnState.RUNNING, TurnState.CANCELLED): "stopped by the user",
    (TurnState.WAITING, TurnState.RUNNING): "the person answered",
    (TurnState.WAITING, TurnState.FAILED): "given up",
    (TurnState.WAITING, TurnState.CANCELLED): "stopped by the user",
}
_STEP_WORDS: _Words[StepState] = {
    (None, StepState.PENDING): "the model asked for a call",
    (StepState.PENDING, StepState.STARTED): "committed before the tool runs",
    (StepState.PENDING, StepState.ENDED): "refused or cancelled, never ran",
    (StepState.STARTED, StepState.ENDED): "its result is committed",
}
_AGENT_WORDS: _Words[AgentState] = {
    (None, AgentState.BUILDING): "leased, and not in memory",
    (AgentState.BUILDING, AgentState.BUSY): "built from the log",
    (AgentState.BUILDING, None): "the build failed or was cancelled",
    (AgentState.BUSY, AgentState.IDLE): "the lease ended, however the turn did",
    (AgentState.BUSY, None): "the lease ended, and a release was asked for",
    (AgentState.IDLE, AgentState.BUSY): "leased: as it is, or caught up",
    (AgentState.IDLE, AgentState.BUILDING): "leased under another spec or epoch",
    (AgentState.IDLE, None): "released: cap, idle limit, bytes, end, shutdown",
}

_BREAKER_WORDS: _Words[BreakerState] = {
    (None, BreakerState.CLOSED): "the first call",
    (BreakerState.CLOSED, BreakerState.OPEN): "too many failures in a row",
    (BreakerState.OPEN, BreakerState.HALF_OPEN): "it has rested, and a call is the probe",
    (BreakerState.HALF_OPEN, BreakerState.CLOSED): "the probe is answered",
    (BreakerState.HALF_OPEN, BreakerState.OPEN): "the probe failed or was cancelled",
}


_OUTBOX_WORDS: _Words[OutboxState] = {
    (None, OutboxState.PENDING): "the turn ends: the same transaction",
    (OutboxState.PENDING, OutboxState.SENDING): "committed before the platform hears a word",
    (OutboxState.PENDING, OutboxState.FAILED): "too old",
    (OutboxState.SENDING, OutboxState.SENDING): "it may have arrived: again, with a mark",
    (OutboxState.SENDING, OutboxState.PENDING): "the platform took nothing: later",
    (OutboxState.SENDING, OutboxState.SENT): "the platform has it",
    (OutboxState.SENDING, OutboxState.FAILED): "refused, or too old",
}


def draw(
    start: _State,
    moves: Mapping[_State, Collection[_State | None]],
    words: _Words[_State],
) -> str:
    """A mermaid state diagram; a state without moves leads to the end. `KeyError`: a move has no words."""
    lines = ["stateDiagram-v2", f"    [*] --> {start}: {words[None, start]}"]
    for old, targets in moves.items():
        order = [*moves, None]
        for new in sorted(targets, key=order.index):
            lines.append(f"    {old} --> {'[*]' if new is None else new}: {words[old, new]}")
        if not targets:
            lines.append(f"    {old} --> [*]")
    return "\n".join(lines)


def diagrams() -> dict[str, str]:
    """All diagrams of the document by their names."""
    return {
        "turn": draw(TurnState.ACCEPTED, TURN_MOVES, _TURN_WORDS),
        "step": draw(StepState.PENDING, STEP_MOVES, _STEP_WORDS),
        "reply": draw(OutboxState.PENDING, OUTBOX_MOVES, _OUTBOX_WORDS),
        "agent": draw(AgentState.BUILDING, AGENT_MOVES, _AGENT_WORDS),
        "breaker": draw(BreakerState.CLOSED, BREAKER_MOVES, _BREAKER_WORDS),
    }


def places(text: str) -> list[str]:
    """The names of the diagrams that a document has a place for."""
    return [found[2] for found in _PLACE.finditer(text)]


def redraw(text: str) -> str:
    """The document with its diagrams as the tables say. Raises `KeyError` for a name that nobody knows."""
    drawn = diagrams()
    return _PLACE.sub(lambda found: f"{found[1]}```mermaid\n{drawn[found[2]]}\n```\n{found[4]}", text)


def main(arguments: Sequence[str]) -> None:
    for name in arguments:
        path = Path(name)
        path.write_text(redraw(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
