"""The rules that every store keeps, written once: how logs are numbered, which moves an order may make, and
the words in which it is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from talaria.core.entries import Entry, EntryBody, Revision, SpecSet, TitleSet, advance
from talaria.core.errors import (
    IdempotencyConflict,
    IllegalMove,
    LeaseHeld,
    NotFound,
    StaleFence,
    StoreError,
)
from talaria.core.ids import SessionId, SpecId, TurnId
from talaria.core.ledger import Begin, Commit, Start, StepWrite, TurnEnd
from talaria.core.sessions import Session
from talaria.core.turns import StepKind, StepState, Turn, TurnState, check_step_move, check_turn_move

UNSETTLED = tuple(state for state in TurnState if not state.is_final)

# `ChatSummary.sessions` shows this many, the current one included.
SUMMARY_SESSIONS = 10

# `end_unused` ends this many at a time, so that turns do not wait behind it.
END_BATCH = 100


def number(
    session_id: SessionId, head: Revision, bodies: Iterable[EntryBody], turn_id: TurnId | None, at: float
) -> tuple[Revision, tuple[Entry, ...]]:
    """The entries that follow `head`, and the head after them."""
    entries = []
    for body in bodies:
        head = advance(head, body)
        entries.append(Entry(session_id, head.seq, head.epoch, at, turn_id, body))
    return head, tuple(entries)


def begin_order(turn_id: TurnId, start: Start) -> Begin:
    return Begin(turn_id, start.owner, start.lease_seconds, start.user)


class StartEntries(NamedTuple):
    """What a beginning appends: `before` is the head in front of the user's entry, `head` that behind it."""

    before: Revision
    head: Revision
    entries: tuple[Entry, ...]
    user: Entry | None


def start_entries(session: Session, order: Begin, attempts: int, now: float) -> StartEntries:
    before = head = session.revision
    entries: tuple[Entry, ...] = ()
    said: tuple[Entry, ...] = ()
    if order.hide is not None and attempts == 0:
        before, entries = number(session.id, before, (order.hide,), order.turn_id, now)
        head = before
    if order.user is not None and attempts == 0:
        head, said = number(session.id, before, (order.user,), order.turn_id, now)
    return StartEntries(before, head, entries + said, said[0] if said else None)


def begun_turn(turn: Turn, now: float) -> Turn:
    """A turn just accepted, after its first beginning."""
    return msgspec.structs.replace(turn, state=TurnState.RUNNING, attempts=1, started_at=now)


def check_commit_shape(order: Commit) -> None:
    if order.turn_id is None and (order.steps or order.usage or order.outbox or order.end is not None):
        raise StoreError("Steps, usage, replies and an end belong to a turn, and this commit names none.")


def check_turn_commit(turn_id: TurnId, old: TurnState, end: TurnEnd | None) -> None:
    """A commit finds its turn alive; its `end`, if it has one, is a final state that the table allows."""
    check_turn_move(turn_id, old, TurnState.RUNNING if end is None else end.state)
    if end is not None and not end.state.is_final:
        raise IllegalMove(f"turn {turn_id}", old, end.state)


def check_settle(turn_id: TurnId, old: TurnState, end: TurnEnd) -> None:
    if old is not TurnState.ACCEPTED or not end.state.is_final:
        raise IllegalMove(f"turn {turn_id}", old, end.state)
    check_turn_move(turn_id, old, end.state)


def makes_step(write: StepWrite) -> bool:
    """Whether a write may be a step's first: `pending` always, and `ended` for a model's."""
    return write.state is StepState.PENDING or (
        write.state is StepState.ENDED and write.kind is StepKind.MODEL
    )


def check_step(turn_id: TurnId, write: StepWrite, old: StepState | None) -> None:
    """`old` is None for a step that does not exist yet."""
    if old is not None:
        check_step_move(turn_id, write.n, old, write.state)
        return
    if not makes_step(write):
        raise IllegalMove(f"step {turn_id}/{write.n}", "nothing", write.state)


def latest_marks(
    appended: Iterable[EntryBody], spec_id: SpecId | None, title: str
) -> tuple[SpecId | None, str]:
    """A session's spec and title after these entries."""
    for body in appended:
        if isinstance(body, SpecSet):
            spec_id = body.spec_id
        elif isinstance(body, TitleSet):
            title = body.title
    return spec_id, title


def moved_session(session: Session, head: Revision, at: float) -> Session:
    """The session after an append brought its log to `head`."""
    return Session(
        session.id,
        session.chat_key,
        session.created_at,
        at,
        head,
        session.spec_id,
        session.title,
        session.ephemeral,
        session.ended_at,
    )


def ended_turn(turn: Turn, end: TurnEnd, at: float) -> Turn:
    return msgspec.structs.replace(
        turn, state=end.state, ended_at=at, reply=end.reply, error=end.error, usage=end.usage
    )


# -- refusals ---------------------------------------------------------------------------------------------


def no_session(session_id: SessionId | None) -> NotFound:
    return NotFound(f"There is no session {session_id}.", "/sessions lists the sessions of a chat.")


def no_session_here(session_id: SessionId | None) -> NotFound:
    return NotFound(f"This chat has no session {session_id}.", "/sessions lists the sessions of a chat.")


def no_turn(turn_id: TurnId) -> NotFound:
    return NotFound(f"There is no turn {turn_id}.")


def no_spec(spec_id: SpecId) -> NotFound:
    return NotFound(f"There is no spec {spec_id}.")


def no_outbox_row(row_id: int) -> NotFound:
    return NotFound(f"There is no reply {row_id} to send.")


def key_conflict(key: str) -> IdempotencyConflict:
    return IdempotencyConflict(
        f"The key {key!r} was used for another message.", "Use a new key for a new message."
    )


def lease_held(session_id: SessionId) -> LeaseHeld:
    return LeaseHeld(f"Session {session_id} is in use.", "Try again when its turn is over.")


def stale_fence(session_id: SessionId) -> StaleFence:
    return StaleFence(f"The lease of session {session_id} is lost.")


def already_exists(what: str) -> StoreError:
    return StoreError(f"{what} exists already.")


def closed() -> StoreError:
    return StoreError("The store is closed.")
