"""The rules of the store that are not SQL: the numbering of logs, the moves that an order may make, the
replies that a turn owes, and the texts of refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from talaria.core.delivery import OutboxRow, OutboxState
from talaria.core.entries import Entry, EntryBody, Revision, SpecSet, TitleSet, advance
from talaria.core.errors import (
    IdempotencyConflict,
    IllegalMove,
    LeaseHeld,
    LimitReached,
    NotFound,
    SessionOwes,
    StaleFence,
    SteerWaiting,
    StoreError,
    TurnElsewhere,
)
from talaria.core.ids import OwnerId, QuestionId, SessionId, SpecId, TurnId, channel_of
from talaria.core.ledger import Commit, StepWrite, TurnEnd
from talaria.core.messages import UserMessage
from talaria.core.problems import Action, Do
from talaria.core.sessions import Session, first_words
from talaria.core.turns import (
    ReplyPlace,
    StepKind,
    StepState,
    Turn,
    TurnState,
    check_step_move,
    check_turn_move,
)

UNSETTLED = tuple(state for state in TurnState if not state.is_final)

# `ChatSummary.sessions` shows this many, the current one included.
SUMMARY_SESSIONS = 10

# The most sessions or specs that one transaction ends or deletes, so that turns do not wait long behind it.
BATCH = 100

# The number of turns that one call of `Retention.forget_turns` looks at.
FORGET_BATCH = 200


def number(
    session_id: SessionId, head: Revision, bodies: Iterable[EntryBody], turn_id: TurnId | None, at: float
) -> tuple[Revision, tuple[Entry, ...]]:
    """Return the head after these entries, and the entries with their numbers."""
    entries = []
    for body in bodies:
        head = advance(head, body)
        entries.append(Entry(session_id, head.seq, head.epoch, at, turn_id, body))
    return head, tuple(entries)


def check_commit_shape(order: Commit) -> None:
    steps = order.steps or order.shortened or order.usage or order.unsent
    handed = order.delegates or order.background
    of_a_turn = steps or order.steers or order.ask or handed or order.end is not None
    if order.turn_id is None and of_a_turn:
        raise StoreError(
            "Steps, usage, questions, replies and an end belong to a turn, and this commit names none."
        )
    if (order.ask or order.delegates) and order.end is not None:
        raise StoreError("A commit cannot both park the turn and end it.")
    if any(question.turn_id != order.turn_id or question.decision for question in order.ask):
        raise StoreError("A commit puts undecided questions of its own turn only.")


def check_turn_commit(turn_id: TurnId, old: TurnState, order: Commit) -> None:
    """Raise `IllegalMove` if the turn is over, or if `end` is not a final state that the table allows."""
    end = order.end
    if end is None:
        check_turn_move(
            turn_id, old, TurnState.WAITING if order.ask or order.delegates else TurnState.RUNNING
        )
        return
    check_turn_move(turn_id, old, end.state)
    if not end.state.is_final:
        raise IllegalMove(f"turn {turn_id}", old, end.state)


def check_settle(turn_id: TurnId, old: TurnState, end: TurnEnd) -> None:
    if old is not TurnState.ACCEPTED or not end.state.is_final:
        raise IllegalMove(f"turn {turn_id}", old, end.state)
    check_turn_move(turn_id, old, end.state)


def makes_step(write: StepWrite) -> bool:
    """Return whether a write may insert its step: `pending` always, and `ended` for a model step."""
    return write.state is StepState.PENDING or (
        write.state is StepState.ENDED and write.kind is StepKind.MODEL
    )


def check_step(turn_id: TurnId, write: StepWrite, old: StepState | None) -> None:
    """Raise `IllegalMove` if the table forbids the write. `old` is None for a step that does not exist."""
    if old is not None:
        check_step_move(turn_id, write.n, old, write.state)
        return
    if not makes_step(write):
        raise IllegalMove(f"step {turn_id}/{write.n}", "nothing", write.state)


def latest_marks(
    appended: Iterable[EntryBody], spec_id: SpecId | None, title: str
) -> tuple[SpecId | None, str]:
    """Return a session's spec and title after these entries."""
    for body in appended:
        if isinstance(body, SpecSet):
            spec_id = body.spec_id
        elif isinstance(body, TitleSet):
            title = body.title
    return spec_id, title


def first_title(session: Session, user: UserMessage | None) -> str:
    """Return the title of a session that has none when a message begins a turn. Stateless calls get none."""
    return "" if user is None or session.ephemeral else first_words(user)


# -- replies ----------------------------------------------------------------------------------------------


def replies(turn: Turn, end: TurnEnd, now: float) -> tuple[OutboxRow, ...]:
    """Return the outbox rows of a turn that ends so.

    There are none if the turn has no address (the sender fetches the reply), if it was merged into another,
    and if it was stopped before it showed anything.
    """
    address, body = turn.inbound.address, end.reply or ""
    if address is None or turn.merged_into is not None:
        return ()
    if end.state is TurnState.CANCELLED:
        body = f"{body}\n\n[Stopped.]".strip() if turn.shown_id is not None else ""
    rows = []
    if body:
        rows.append(_reply(turn, address, body, now))
    rows += [_reply(turn, address, "", now, file.copy_path) for file in end.files]
    if rows:
        rows[0] = msgspec.structs.replace(rows[0], buttons=end.buttons)
    return tuple(rows)


def replies_elsewhere(
    turn: Turn, place: ReplyPlace, text: str, end: TurnEnd, now: float
) -> tuple[OutboxRow, ...]:
    """Return the outbox rows of a run whose reply goes to a chat that did not wait for it."""
    address, channel = place.address or "", channel_of(place.chat_key)
    rows = [_reply(turn, address, text, now)] if text else []
    rows += [_reply(turn, address, "", now, file.copy_path) for file in end.files]
    return tuple(msgspec.structs.replace(row, channel=channel) for row in rows)


def _reply(turn: Turn, address: str, body: str, now: float, file: str | None = None) -> OutboxRow:
    return OutboxRow(
        id=0,
        turn_id=turn.id,
        chat_key=turn.chat_key,
        channel=channel_of(turn.chat_key),
        address=address,
        body=body,
        state=OutboxState.PENDING,
        written_at=now,
        due_at=now,
        edits=turn.shown_id if file is None else None,
        file=file,
    )


def split_reply(row: OutboxRow, bodies: Sequence[str], file: str | None = None) -> tuple[OutboxRow, ...]:
    """Return the rows that replace one; the last one has the buttons and `file`. Raises `IllegalMove` for a
    row that was tried already."""
    if row.state is not OutboxState.PENDING or row.attempts or row.part:
        raise IllegalMove(f"reply {row.id}", row.state, "split")
    last = len(bodies) - 1
    return tuple(
        msgspec.structs.replace(
            row,
            body=body,
            part=part,
            edits=row.edits if part == 0 else None,
            buttons=row.buttons if part == last else (),
            file=file if part == last else None,
        )
        for part, body in enumerate(bodies)
    )


# -- refusals ---------------------------------------------------------------------------------------------


_LIST, _STOP = Action(Do.LIST_SESSIONS), Action(Do.STOP_TURN)


def no_session(session_id: SessionId | None) -> NotFound:
    return NotFound(f"There is no session {session_id}.", str(_LIST), action=_LIST)


def no_session_here(session_id: SessionId | None) -> NotFound:
    return NotFound(f"This chat has no session {session_id}.", str(_LIST), action=_LIST)


def chat_full(waiting: int) -> LimitReached:
    return LimitReached(
        f"{waiting} messages of this chat wait already, so this one was not taken.",
        f"Wait for an answer, or {_STOP}.",
        action=_STOP,
    )


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


def turn_elsewhere(turn_id: TurnId, member: OwnerId) -> TurnElsewhere:
    return TurnElsewhere(
        f"Turn {turn_id} is for the gateway {member}.", "`talaria top --cluster` shows the gateways."
    )


def turn_owed(session_id: SessionId, turn_id: TurnId) -> SessionOwes:
    return SessionOwes(
        f"A turn of {session_id} is not over, so the session cannot be deleted.",
        f"Wait for {turn_id} or stop it (POST /api/turns/{turn_id}/cancel, or /stop in the chat), then try "
        "again.",
    )


def reply_owed(session_id: SessionId, turn_id: TurnId) -> SessionOwes:
    return SessionOwes(
        f"A reply of {session_id} is not sent yet, so the session cannot be deleted.",
        f"Try again when it is sent or has failed; `talaria why {turn_id}` tells what it waits for.",
    )


def session_waits(session_id: SessionId) -> LeaseHeld:
    return LeaseHeld(
        f"A turn of session {session_id} waits for a person's decision.",
        "Answer its question, or stop the turn.",
    )


def no_question(question_id: QuestionId) -> NotFound:
    return NotFound(f"There is no question {question_id}.")


def stale_fence(session_id: SessionId) -> StaleFence:
    return StaleFence(f"The lease of session {session_id} is lost.")


def no_steer(turn_id: TurnId, host: TurnId) -> NotFound:
    return NotFound(f"Turn {turn_id} does not wait to steer turn {host}.")


def steer_waiting(turn_id: TurnId) -> SteerWaiting:
    return SteerWaiting(f"A message to steer turn {turn_id} waits to be read.")


def closed() -> StoreError:
    return StoreError("The store is closed.")
