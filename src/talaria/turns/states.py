"""The states of a turn as this process holds it, and the moves between them.

The store knows what a turn has committed (`core.turns.TurnState`). This table knows what this process does
with it, from the moment the turn is accepted or recovered here until it is settled or let go:

    QUEUED ──▶ STARTING ──▶ RUNNING ──▶ SETTLED
                 ▲  ▲         │ │
                 │  └─ LOST ◀─┘ │
                 └─── PARKED ◀──┘

The rules:

- QUEUED: the turn waits in its chat's lane, or joined another turn. Nothing of it runs here.
- STARTING: the lane has reached the turn. It waits for the quarantine, for a model that is still being
  fetched, or for the session's lease; or it is about to be tried again. Its time limit does not count yet.
- RUNNING: the turn is begun in the store under a lease of this process. Only this time counts towards the
  turn's time limit.
- PARKED: the turn waits for a person. It keeps its lane and nothing else: no store lease, no agent, no
  permit.
- STOPPING, OVERDUE: a person stopped the turn, or its time limit passed. The work is cancelled, then the turn
  is ended in the store as cancelled or failed. Neither wish is ever taken back, not even if the store fails.
- LOST: the session's lease was lost. The work is cancelled, then the turn is tried again.
- SETTLED: the turn has its final state in the store. A turn that joined another is settled with that one.
- LET_GO: this process does nothing more with the turn, which is not settled: the gateway shuts down, or
  another process has the session. The turn is resumable.

A turn in any state but the last two can be let go. A store that fails takes a RUNNING turn back to STARTING.
Which states cancel the work (`INTERRUPTIONS`) follows from the table: they are entered from outside, by
`LiveTurn.interrupt`, while the work runs. Every other move is made by the code that runs the turn.
"""

from __future__ import annotations

from enum import StrEnum, auto


class LiveState(StrEnum):
    QUEUED = auto()
    STARTING = auto()
    RUNNING = auto()
    PARKED = auto()
    STOPPING = auto()
    OVERDUE = auto()
    LOST = auto()
    SETTLED = auto()
    LET_GO = auto()

    @property
    def is_over(self) -> bool:
        """Whether this process is done with the turn."""
        return not MOVES[self]


_S = LiveState
MOVES: dict[LiveState, frozenset[LiveState]] = {
    _S.QUEUED: frozenset({_S.STARTING, _S.STOPPING, _S.SETTLED, _S.LET_GO}),
    _S.STARTING: frozenset({_S.RUNNING, _S.PARKED, _S.STOPPING, _S.SETTLED, _S.LET_GO}),
    _S.RUNNING: frozenset({_S.STARTING, _S.PARKED, _S.STOPPING, _S.OVERDUE, _S.LOST, _S.SETTLED, _S.LET_GO}),
    _S.PARKED: frozenset({_S.STARTING, _S.STOPPING, _S.LET_GO}),
    _S.STOPPING: frozenset({_S.SETTLED, _S.LET_GO}),
    _S.OVERDUE: frozenset({_S.SETTLED, _S.LET_GO}),
    _S.LOST: frozenset({_S.STARTING, _S.STOPPING, _S.SETTLED, _S.LET_GO}),
    _S.SETTLED: frozenset(),
    _S.LET_GO: frozenset(),
}

INTERRUPTIONS = frozenset({_S.STOPPING, _S.OVERDUE, _S.LOST})
ENDING = frozenset({_S.STOPPING, _S.OVERDUE})


class IllegalTransition(RuntimeError):
    """The table has no such move. A programming error: nothing was changed."""


def check_move(old: LiveState, new: LiveState) -> None:
    """Raises `IllegalTransition`."""
    if new not in MOVES[old]:
        raise IllegalTransition(f"a live turn cannot go from {old.name} to {new.name}")
