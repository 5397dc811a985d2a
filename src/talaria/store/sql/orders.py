"""The orders of a turn's life, in SQL: accept, begin, commit, settle, show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from talaria.core.entries import Announcement, Revision
from talaria.core.errors import RepeatedMessage
from talaria.core.ids import Fence, JobId, OwnerId, SessionId, TurnId, new_session_id, new_turn_id
from talaria.core.jobs import SettleSlot, Slot, SlotState, failure_text
from talaria.core.ledger import (
    SENT_TURN,
    Accept,
    Accepted,
    Amend,
    Began,
    Begin,
    Commit,
    Committed,
    Fresh,
    MessageName,
    SendMessage,
    SentTurn,
    StepWrite,
    TurnEnd,
    ended_turn,
)
from talaria.core.sessions import Mark, Session
from talaria.core.turns import Inbound, ReplyPlace, Sender, StepState, Turn, TurnState, check_turn_move
from talaria.store.sql import (
    announcements,
    binding,
    delegates,
    delivery,
    homes,
    leases,
    locks,
    log,
    questions,
    rules,
    slots,
    spending,
)
from talaria.store.sql.executor import Transaction
from talaria.store.sql.homes import ChatHome, TurnPlace
from talaria.store.sql.leases import GIVE_LEASE_BACK, LEASE_COLUMNS, TAKE_LEASE, Lease
from talaria.store.sql.rows import (
    SESSION_COLUMNS,
    TURN_COLUMNS,
    encode,
    encode_files,
    optional,
    prefixed,
    session_from,
    turn_from,
)

# -- messages that come again under one of several names --------------------------------------------------
# See `Accept.names`.


# ruff: noqa: S608 (statements are put together from constants only)


FIND = "SELECT turn_id FROM repeats WHERE scope = ? AND key = ? AND until > ?"
KEEP = """
INSERT INTO repeats (scope, key, turn_id, until) VALUES (?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET turn_id = excluded.turn_id, until = excluded.until
"""
FIND_OLD = f"SELECT scope, key FROM repeats WHERE until <= ? LIMIT {rules.BATCH}"
DROP = "DELETE FROM repeats WHERE scope = ? AND key = ?"


def check(tx: Transaction, scope: str, names: Sequence[MessageName]) -> None:
    """Raise `RepeatedMessage` if a message had one of these names."""
    for name in names:
        if (row := tx.execute(FIND, (scope, name.key, tx.now)).fetchone()) is not None:
            text = f"The message was accepted before, as {row[0]}."
            raise RepeatedMessage(text, "Nothing is left to do.", turn_id=row[0])


def keep(tx: Transaction, scope: str, names: Sequence[MessageName], turn_id: TurnId) -> None:
    """Remember the names of a message, and forget some that have run out."""
    for name in names:
        tx.execute(KEEP, (scope, name.key, turn_id, tx.now + name.seconds))
    for row in tx.execute(FIND_OLD, (tx.now,)).fetchall():
        tx.execute(DROP, row)


# -- the orders of a turn's life: accept, begin, commit, settle, show -------------------------------------


# ruff: noqa: S608 (statements are put together from constant column lists only)


# -- accept -----------------------------------------------------------------------------------------------

FIND_KEY = f"SELECT {TURN_COLUMNS}, digest FROM turns WHERE scope = ? AND key = ?"
FREE_KEY = "UPDATE turns SET key = NULL WHERE id = ?"
_NEW_TURN = (
    "id, chat_key, session_id, state, inbound, accepted_at, command, scope, digest, attempts, started_at, "
    "begun_by, address, member"
)
_NEW_VALUES = "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?"
INSERT_TURN = f"INSERT INTO turns ({_NEW_TURN}) VALUES ({_NEW_VALUES})"
INSERT_TURN_WITH_KEY = f"INSERT INTO turns ({_NEW_TURN}, key) VALUES ({_NEW_VALUES}, ?)"
FIND_HOST = f"""
SELECT 1 FROM turns t
WHERE t.id = ? AND t.session_id = ? AND {delegates.CAN_BE_JOINED} AND t.merged_into IS NULL
"""
SET_HOST = "UPDATE turns SET merged_into = ? WHERE id = ?"


def accept(tx: Transaction, order: Accept) -> Accepted:
    """Write the message's turn and bind it to a session; see `Accept`. Durable."""
    inbound = order.inbound
    locks.accepting(tx, order)
    if (known := _find_known(tx, order)) is not None:
        return Accepted(known, is_duplicate=True, is_new_session=False)
    bound = binding.bind_session(tx, order)
    found, lease, ended = bound.session, bound.lease, None
    if found is not None and found.updated_at < order.expire_before and leases.end_if_idle(tx, found.id):
        ended, found, lease = found.id, None, Lease()
    if order.only is not None and (found is None or found.id != order.only):
        raise rules.no_session(order.only)
    session = found or binding.make_session(tx, order)
    place = _choose_member(tx, order, session, bound.home)
    if not place.is_here:
        homes.check_room(tx, order, place.member)
    if order.response is not None:
        binding.store(tx, session, order, order.response)
    turn = Turn(
        order.turn_id, inbound.chat_key, session.id, TurnState.ACCEPTED, inbound, tx.now, order.command
    )
    began, may_begin = None, place.is_here and not place.is_behind and not lease.waiting_turn
    if order.begin is not None and may_begin and not _is_taken(tx, session.id, lease, order):
        turn = msgspec.structs.replace(turn, state=TurnState.RUNNING, attempts=1, started_at=tx.now)
        began = _take(tx, session, lease, order.begin, _Attempts())
    _insert_turn(tx, turn, order, place.member)
    if order.names:
        keep(tx, order.scope, order.names, turn.id)
    if order.claim is not None:
        slots.bind(tx, order.claim, turn.id)
    host = order.steers if place.is_here else homes.join_running(tx, order, session.id, place.member)
    if host and tx.execute(FIND_HOST, (host, session.id)).fetchone() is not None:
        tx.execute(SET_HOST, (host, turn.id))
        turn = msgspec.structs.replace(turn, merged_into=host)
    return Accepted(
        turn,
        is_duplicate=False,
        is_new_session=found is None,
        began=began,
        ended=ended,
        elsewhere=None if place.is_here or place.absent else place.member,
        waits_for_place=place.absent,
        has_loss=place.lost is not None or (bound.home is not None and bool(bound.home.lost)),
    )


def _is_taken(tx: Transaction, session_id: SessionId, lease: Lease, order: Accept) -> bool:
    assert order.begin is not None
    owner = order.begin.owner
    if not lease.is_free_for(owner, tx.now):
        return True
    return order.here is not None and _has_cut_off(tx, session_id, lease, owner)


def _choose_member(tx: Transaction, order: Accept, session: Session, home: ChatHome | None) -> TurnPlace:
    """Return the member of the cluster that the turn is for. A call without a chat is for this one."""
    if order.here is None:
        return TurnPlace()
    if session.ephemeral:
        return TurnPlace(order.here.owner)
    return homes.choose(tx, order.here, order, home)


def _find_known(tx: Transaction, order: Accept) -> Turn | None:
    """Return the turn of the message if it was accepted before. Raises `RepeatedMessage` for one that is
    known by another of its names."""
    if order.claim is not None and (turn_id := slots.bound_turn(tx, order.claim)) is not None:
        return _find_turn(tx, turn_id)[0]
    if order.names:
        check(tx, order.scope, order.names)
    key = order.inbound.key
    row = None if key is None else tx.execute(FIND_KEY, (order.scope, key)).fetchone()
    if key is None or row is None:
        return None
    known = turn_from(row[:-1])
    if tx.now - known.accepted_at >= order.key_ttl:
        tx.execute(FREE_KEY, (known.id,))
        return None
    if row[-1] != order.digest:
        raise rules.key_conflict(key)
    return known


SET_INBOUND = "UPDATE turns SET inbound = ? WHERE id = ?"


def amend(tx: Transaction, order: Amend) -> bool:
    """Replace the message of a turn that has not begun; see `Amend`. Return whether this edit is made, now or
    before. It is not made if the turn has begun, has joined another one or is a command."""
    if tx.execute(FIND, (order.scope, order.name.key, tx.now)).fetchone() is not None:
        return True
    row = tx.execute(FIND_KEY, (order.scope, order.inbound.key)).fetchone()
    if row is None or not order.may_replace:
        return False
    locks.session_of_turn(tx, turn_from(row[:-1]).id)
    turn, _, _ = _find_turn(tx, turn_from(row[:-1]).id)
    if turn.state is not TurnState.ACCEPTED or turn.merged_into is not None or turn.command:
        return False
    inbound = msgspec.structs.replace(turn.inbound, parts=order.inbound.parts)
    tx.execute(SET_INBOUND, (encode(inbound), turn.id))
    keep(tx, order.scope, (order.name,), turn.id)
    return True


def _insert_turn(tx: Transaction, turn: Turn, order: Accept, member: OwnerId) -> None:
    row = (
        turn.id,
        turn.chat_key,
        turn.session_id,
        str(turn.state),
        encode(turn.inbound),
        turn.accepted_at,
        turn.command,
        order.scope,
        order.digest,
        turn.attempts,
        turn.started_at,
        order.begin.owner if turn.attempts and order.begin else "",
        turn.inbound.address or ("-" if turn.inbound.order is not None else ""),
        member,
    )
    if turn.inbound.key is None:
        tx.execute(INSERT_TURN, row)
    else:
        tx.execute(INSERT_TURN_WITH_KEY, (*row, turn.inbound.key))


# -- begin ------------------------------------------------------------------------------------------------

FIND_TO_BEGIN = f"""
SELECT {prefixed("s", SESSION_COLUMNS)},
       t.position, t.state, t.attempts, t.forgiven, t.member, {prefixed("s", LEASE_COLUMNS)}
FROM turns t JOIN sessions s ON s.id = t.session_id WHERE t.id = ?
"""
TAKE_LEASE_AND_SET_HEAD = """
UPDATE sessions
SET lease_owner = ?, lease_fence = ?, lease_expires = ?, updated_at = ?, epoch = ?, seq = ?, title = ?
WHERE id = ?
"""
SET_RUNNING = """
UPDATE turns SET state = 'running', attempts = attempts + 1, started_at = coalesce(started_at, ?),
                 begun_at = ?, begun_by = ?, forgiven = ?
WHERE position = ?
"""
IS_CUT_OFF = """
SELECT 1 FROM turns t WHERE t.session_id = ? AND t.state = 'running' AND t.merged_into IS NULL
AND t.member <> '' AND t.position < ? LIMIT 1
"""
_LAST_POSITION = (1 << 63) - 1
RESUME_TURN = "UPDATE turns SET state = 'running', begun_at = ?, begun_by = ? WHERE position = ?"


def begin(tx: Transaction, order: Begin) -> Began:
    """Take the session's lease and set the turn running; see `Begin`."""
    locks.session_of_turn(tx, order.turn_id)
    row = tx.execute(FIND_TO_BEGIN, (order.turn_id,)).fetchone()
    if row is None:
        raise rules.no_turn(order.turn_id)
    position, state, attempts, forgiven, member = row[-9:-4]
    check_turn_move(order.turn_id, TurnState(state), TurnState.RUNNING)
    if member not in ("", order.owner):
        raise rules.turn_elsewhere(order.turn_id, member)
    session, lease = session_from(row[:-9]), Lease(*row[-4:])
    if not lease.is_free_for(order.owner, tx.now):
        raise rules.lease_held(session.id)
    if member and _has_cut_off(tx, session.id, lease, order.owner, position):
        raise rules.lease_held(session.id)
    if lease.waiting_turn not in ("", order.turn_id):
        raise rules.session_waits(session.id)
    if state == TurnState.WAITING.value:
        # The attempt that was parked goes on.
        tx.execute(RESUME_TURN, (tx.now, order.owner, position))
        earlier = attempts - 1
        return _take(tx, session, lease, order, _Attempts(earlier, min(earlier, forgiven), is_resumed=True))
    if attempts:
        spending.charge_turn(tx, order.turn_id)
    forgiven = min(attempts, forgiven + order.is_forgiven)
    tx.execute(SET_RUNNING, (tx.now, tx.now, order.owner, forgiven, position))
    return _take(tx, session, lease, order, _Attempts(attempts, forgiven))


def _has_cut_off(
    tx: Transaction, session_id: SessionId, lease: Lease, owner: OwnerId, position: int = _LAST_POSITION
) -> bool:
    """Return whether another member had the session last and left an earlier turn in the middle, which has
    to go on first."""
    if lease.owner in ("", owner):
        return False
    return tx.execute(IS_CUT_OFF, (session_id, position)).fetchone() is not None


class _Attempts(NamedTuple):
    """A turn's attempts before the one that begins, and how many of them are forgiven. `is_resumed`: the one
    that begins was parked."""

    earlier: int = 0
    forgiven: int = 0
    is_resumed: bool = False


def _take(tx: Transaction, session: Session, lease: Lease, order: Begin, attempts: _Attempts) -> Began:
    """Put the session under a new fence, and append what the turn's first attempt begins with."""
    fence = lease.fence + 1
    held = (order.owner, fence, tx.now + order.lease_seconds)
    is_first = not (attempts.earlier or attempts.is_resumed)
    bodies = [body for body in (order.hide, order.user) if body is not None and is_first]
    head, entries = rules.number(session.id, session.revision, bodies, order.turn_id, tx.now)
    if entries:
        for entry in entries:
            log.insert_entry(tx, entry)
        title = session.title or rules.first_title(session, order.user)
        tx.execute(TAKE_LEASE_AND_SET_HEAD, (*held, tx.now, head.epoch, head.seq, title, session.id))
        session = msgspec.structs.replace(session, revision=head, updated_at=tx.now, title=title)
    else:
        tx.execute(TAKE_LEASE, (*held, session.id))
    user = entries[-1] if entries and order.user is not None else None
    before = head if user is None else Revision(head.epoch, head.seq - 1)
    crashes = attempts.earlier - attempts.forgiven
    return Began(session, Fence(fence), before, user, attempts.earlier + 1, crashes)


RETITLE = "UPDATE sessions SET title = ? WHERE id = ? AND title = ?"


def retitle(tx: Transaction, session_id: SessionId, old: str, new: str) -> bool:
    """Give the session a better title than `old`, and return whether it still had that one."""
    return tx.execute(RETITLE, (new, session_id, old)).rowcount == 1


MARK = "UPDATE sessions SET mark = ? WHERE id = ?"


def mark(tx: Transaction, session_id: SessionId, to: Mark) -> bool:
    """Mark the session for people, and return whether it exists."""
    return tx.execute(MARK, (to, session_id)).rowcount == 1


# -- commit -----------------------------------------------------------------------------------------------

FIND_TO_COMMIT = """
SELECT s.epoch, s.seq, s.spec_id, s.title, s.lease_fence, s.lease_expires, t.position, t.state, t.address,
       t.job_id, EXISTS (SELECT 1 FROM turns m WHERE m.merged_into = t.id),
       EXISTS (SELECT 1 FROM reservations r WHERE r.turn_id = t.id)
FROM sessions s LEFT JOIN turns t ON t.id = ? AND t.session_id = s.id WHERE s.id = ?
"""
SET_HEAD = """
UPDATE sessions SET lease_expires = ?, updated_at = ?, epoch = ?, seq = ?, spec_id = ?, title = ? WHERE id = ?
"""
FIND_STEP = "SELECT state FROM steps WHERE turn_id = ? AND n = ?"
INSERT_STEP = """
INSERT INTO steps (turn_id, n, kind, name, state, call_id, result, ended_at)
VALUES (?, ?, ?, ?, ?, ?, nullif(?, ''), ?)
ON CONFLICT (turn_id, n) DO NOTHING
"""
START_STEP = "UPDATE steps SET state = 'started', started_at = ? WHERE turn_id = ? AND n = ?"
END_STEP = (
    "UPDATE steps SET state = 'ended', ended_at = ?, result = nullif(?, '') WHERE turn_id = ? AND n = ?"
)
SHORTEN_STEP = "UPDATE steps SET result = ? WHERE turn_id = ? AND n = ? AND state = 'ended'"
END_TURN = """
UPDATE turns SET state = ?, ended_at = ?, reply = ?, error = nullif(?, ''), usage = nullif(?, ''),
                 files = nullif(?, '')
WHERE position = ?
"""
FIND_STEERS = "SELECT position, state FROM turns WHERE merged_into = ?"
TAKE_STEER = """
UPDATE turns SET state = 'running', attempts = 1, started_at = ?
WHERE id = ? AND merged_into = ? AND state = 'accepted'
"""
FREE_STEER = "UPDATE turns SET merged_into = NULL WHERE position = ?"


def commit(tx: Transaction, order: Commit) -> Committed:
    rules.check_commit_shape(order)
    locks.session(tx, order.session_id)
    row = tx.execute(FIND_TO_COMMIT, (order.turn_id, order.session_id)).fetchone()
    if row is None:
        raise rules.no_session(order.session_id)
    epoch, seq, spec_id, title, fence, expires, position, state, address, job_id, *has = row
    if fence != order.fence or not expires:
        raise rules.stale_fence(order.session_id)
    if order.turn_id is not None:
        if position is None:
            raise rules.no_turn(order.turn_id)
        rules.check_turn_commit(order.turn_id, TurnState(state), order)
    for spec in order.specs:
        log.store_spec(tx, spec)
    if order.end is not None or order.ask or order.delegates or order.release:
        expires = 0.0
    session_id = order.session_id
    head, entries = rules.number(session_id, Revision(epoch, seq), order.entries, order.turn_id, tx.now)
    if entries:
        for entry in entries:
            log.insert_entry(tx, entry)
        log.check_specs(tx, order.entries)
        spec_id, title = rules.latest_marks(order.entries, spec_id, title)
        tx.execute(SET_HEAD, (expires, tx.now, head.epoch, head.seq, spec_id, title, session_id))
    elif not expires:
        tx.execute(GIVE_LEASE_BACK, (session_id,))
    if order.turn_id is not None:
        _commit_turn(tx, order.turn_id, order, position, has_steers=has[0], has_reserved=has[1])
        if order.end is not None and (address is not None or job_id is not None):
            _reply(tx, _find_turn(tx, order.turn_id)[0], order.end, job_id)
    return Committed(head, entries, tx.now)


def _commit_turn(
    tx: Transaction, turn_id: TurnId, order: Commit, position: int, *, has_steers: bool, has_reserved: bool
) -> None:
    _write_steps(tx, turn_id, order.steps)
    for n, result in order.shortened:
        tx.execute(SHORTEN_STEP, (encode(result), turn_id, n))
    _take_steers(tx, turn_id, order.steers)
    if order.ask or order.delegates:
        questions.park(tx, order, _find_turn(tx, turn_id)[0], position)
        delegates.hand_out(tx, turn_id, order.delegates)
    if order.background:
        delegates.hand_out(tx, turn_id, order.background)
    if order.end is not None:
        _end_turn(tx, position, order.end)
        if has_steers:
            _end_steers(tx, turn_id, order.end)
    # Money last: rows of everyone's spending are locked until the order is committed.
    spending.settle(tx, turn_id, order, has_reserved=has_reserved)


def _write_steps(tx: Transaction, turn_id: TurnId, steps: Iterable[StepWrite]) -> None:
    for step in steps:
        if rules.makes_step(step) and _insert_step(tx, turn_id, step):
            continue
        row = tx.execute(FIND_STEP, (turn_id, step.n)).fetchone()
        rules.check_step(turn_id, step, None if row is None else StepState(row[0]))
        if step.state is StepState.STARTED:
            tx.execute(START_STEP, (tx.now, turn_id, step.n))
        else:
            tx.execute(END_STEP, (tx.now, optional(step.result), turn_id, step.n))


def _insert_step(tx: Transaction, turn_id: TurnId, step: StepWrite) -> bool:
    """False when there is one already, and so the write is a move."""
    ended_at = tx.now if step.state is StepState.ENDED else None
    kind, state = str(step.kind), str(step.state)
    return bool(
        tx.execute(
            INSERT_STEP,
            (turn_id, step.n, kind, step.name, state, step.call_id, optional(step.result), ended_at),
        ).rowcount
    )


def _take_steers(tx: Transaction, turn_id: TurnId, steers: Iterable[TurnId]) -> None:
    for steer in steers:
        if not tx.execute(TAKE_STEER, (tx.now, steer, turn_id)).rowcount:
            raise rules.no_steer(steer, turn_id)


def _end_steers(tx: Transaction, turn_id: TurnId, end: TurnEnd) -> None:
    """End the steers that the turn has read together with it.

    If a steer is unread, a turn that would be `done` gets `SteerWaiting`; otherwise the unread steer becomes
    a turn of its own.
    """
    for position, state in tx.execute(FIND_STEERS, (turn_id,)).fetchall():
        if state == TurnState.RUNNING.value:
            _end_turn(tx, position, end)
        elif end.state is TurnState.DONE:
            raise rules.steer_waiting(turn_id)
        else:
            tx.execute(FREE_STEER, (position,))


def _end_turn(tx: Transaction, position: int, end: TurnEnd) -> None:
    error, usage, files = optional(end.error), optional(end.usage), encode_files(end.files)
    tx.execute(END_TURN, (str(end.state), tx.now, end.reply, error, usage, files, position))


# -- settle and show --------------------------------------------------------------------------------------

SET_ANSWERED = "UPDATE turns SET answered = 1 WHERE id = ?"
SET_SHOWN = "UPDATE turns SET shown_id = ? WHERE position = ?"
FIND_TURN = f"SELECT {TURN_COLUMNS}, position, job_id FROM turns WHERE id = ?"


def _find_turn(tx: Transaction, turn_id: TurnId) -> tuple[Turn, int, JobId | None]:
    """Return the turn, its position, and the job that it runs. Raises `NotFound`."""
    row = tx.execute(FIND_TURN, (turn_id,)).fetchone()
    if row is None:
        raise rules.no_turn(turn_id)
    return turn_from(row[:-2]), row[-2], row[-1]


def _reply(tx: Transaction, turn: Turn, end: TurnEnd, job_id: JobId | None) -> None:
    """Write the replies of a turn that ends so, and settle the slot of a job that it ran."""
    ended = slots.end_turn(tx, job_id, turn, end) if job_id is not None else None
    if (run := turn.inbound.order) is not None:
        if run.descent is not None:
            delegates.end(tx, turn, run.descent, end)
        announcements.reply_elsewhere(tx, turn, run, end, ended)
    else:
        delivery.write_replies(tx, rules.replies(turn, end, tx.now))


def settle(tx: Transaction, turn_id: TurnId, end: TurnEnd) -> Turn:
    """End a turn that never began, and return it: a turn that was stopped in the queue, or a command that
    appends nothing. Durable.

    Raises `NotFound`, and `IllegalMove` for a turn that began, a `waiting` one included: such a turn is
    ended by `commit`, under its fence.
    """
    locks.session_of_turn(tx, turn_id)
    turn, position, job_id = _find_turn(tx, turn_id)
    rules.check_settle(turn_id, turn.state, end)
    _end_turn(tx, position, end)
    _reply(tx, turn, end, job_id)
    return ended_turn(turn, end, tx.now)


def show(tx: Transaction, turn_id: TurnId, platform_id: str) -> None:
    """Note the platform's message that shows the turn. If the reply was not sent yet, it will edit that
    message. Raises `NotFound`."""
    locks.session_of_turn(tx, turn_id)
    turn, position, _ = _find_turn(tx, turn_id)
    tx.execute(SET_SHOWN, (platform_id, position))
    turn = msgspec.structs.replace(turn, shown_id=platform_id)
    if not turn.state.is_final or delivery.make_edit(tx, turn_id, platform_id):
        return
    if turn.state is TurnState.CANCELLED:  # just before it was first shown: the message says so
        delivery.write_replies(tx, rules.replies(turn, TurnEnd(turn.state, turn.reply), tx.now))


def mark_answered(tx: Transaction, turn_ids: Iterable[TurnId]) -> None:
    """Note that clients have been sent the whole answers of these turns. Unknown ids are no error."""
    for turn_id in sorted(turn_ids):
        tx.execute(SET_ANSWERED, (turn_id,))


# -- messages to a chat outside of its turns --------------------------------------------------------------
# See `core.sending`.


def send(tx: Transaction, order: SendMessage) -> SentTurn:
    """Write a message to a chat outside of its turns; see `SendMessage`. Durable."""
    inbound = Inbound(order.chat_key, order.sender, (), order.key, address=order.address)
    to_accept = Accept(
        order.turn_id,
        inbound,
        order.fresh,
        SENT_TURN,
        scope=order.scope,
        digest=order.digest,
        key_ttl=order.key_ttl,
        claim=order.claim,
    )
    accepted = accept(tx, to_accept)
    if accepted.is_duplicate:
        return SentTurn(accepted.turn, is_duplicate=True, is_logged=True)
    turn, end = accepted.turn, TurnEnd(TurnState.DONE, order.entry.text, files=order.files)
    settle(tx, turn.id, end)
    is_logged = announcements.wait(tx, turn.id, turn.session_id, order.entry)
    return SentTurn(ended_turn(turn, end, tx.now), is_logged=is_logged)


def settle_slot(tx: Transaction, order: SettleSlot) -> Slot:
    """See `slots.settle`. A failure is told to the chat that asked for the job."""
    ended = slots.settle(tx, order)
    job = ended.job
    if order.state is SlotState.FAILED and job is not None and (text := failure_text(ended, order.reason)):
        place = order.asked_in or ReplyPlace(job.origin.chat_key, job.origin.address)
        sender, fresh = Sender(f"job:{job.id}", job.name), Fresh(new_session_id(), None)
        entry = Announcement(text)
        send(tx, SendMessage(new_turn_id(), place.chat_key, sender, entry, fresh, place.address))
    return ended.slot
