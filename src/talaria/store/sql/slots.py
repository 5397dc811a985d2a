"""The slots of jobs, in SQL.

A slot is written, then claimed, then bound to its turn in the transaction that accepts the turn, and settled
in the one that ends it. Each claim has a higher fence than the one before, so a process that lost its claim
cannot bind a turn.
"""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from talaria.core.errors import OverBudget, StaleFence
from talaria.core.ids import JobId, TurnId, delegates_within
from talaria.core.jobs import (
    CLAIM_SECONDS,
    JITTER,
    MAX_FAILURES,
    AdvanceJob,
    ClaimedSlot,
    ClaimSlots,
    Job,
    JobCounts,
    JobState,
    Overlap,
    RewindJob,
    SettleSlot,
    Slot,
    SlotClaim,
    SlotEnd,
    SlotPage,
    SlotState,
    check_slot_move,
    retry_delay,
    slot_id,
)
from talaria.core.ledger import Page, TurnEnd
from talaria.core.turns import Turn, TurnState
from talaria.store.sql import locks, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.jobs import JOB_COLUMNS, SKIP_DUE, find, find_or_raise, job_from, plan_has, remove
from talaria.store.sql.rows import check_limit, find_one, parse_number_cursor, prefixed
from talaria.store.sql.spending import spent_by_tree

SLOT_COLUMNS = (
    "job_id, instant, state, due_at, reason, turn_id, attempts, fence, cost, claimed_by, claimed_at, "
    "started_at, ended_at, manual"
)
_STATE, _MANUAL = 2, 13


def slot_from(row: Any) -> Slot:
    values = list(row)
    values[_STATE], values[_MANUAL] = SlotState(values[_STATE]), bool(values[_MANUAL])
    return Slot(*values)


# -- writing slots ----------------------------------------------------------------------------------------

FIND_SLOT = f"SELECT {SLOT_COLUMNS} FROM slots WHERE job_id = ? AND instant = ?"
INSERT_SLOT = f"""
INSERT INTO slots ({SLOT_COLUMNS}) VALUES (?, ?, ?, ?, ?, NULL, 0, 0, 0, '', NULL, NULL, ?, ?)
ON CONFLICT (job_id, instant) DO UPDATE SET state = 'due', due_at = excluded.due_at, reason = '',
                                                 ended_at = NULL
WHERE slots.state = 'skipped' AND excluded.state = 'due' AND slots.turn_id IS NULL
"""
MOVE_JOB = """
UPDATE jobs SET next_at = ?, state = ?, ended_at = ?
WHERE id = ? AND version = ? AND next_at = ? AND state = 'active'
"""
END_WAIT = """
UPDATE jobs SET state = 'done', session_id = NULL, ended_at = ? WHERE id = ? AND state = 'active'
"""


def advance(tx: Transaction, orders: Sequence[AdvanceJob]) -> int:
    """Write slots and next instants; see `AdvanceJob`. Durable. Returns how many jobs were moved on."""
    moved = 0
    for order in sorted(orders, key=lambda order: order.id):
        is_last = order.then_at is None
        state, ended_at = (JobState.DONE, tx.now) if is_last else (JobState.ACTIVE, None)
        known = (order.id, order.version, order.next_at)
        if not tx.execute(MOVE_JOB, (order.then_at, state.value, ended_at, *known)).rowcount:
            continue
        moved += 1
        for slot in order.slots:
            skipped = ("skipped", slot.due_at, slot.skipped, tx.now) if slot.skipped else None
            state_now, due_at, reason, ended = skipped or ("due", slot.due_at, "", None)
            tx.execute(INSERT_SLOT, (order.id, slot.instant, state_now, due_at, reason, ended, 0))
    return moved


REWIND_JOB = """
UPDATE jobs SET next_at = ?, state = 'active', ended_at = NULL
WHERE id = ? AND version = ? AND state <> 'paused' AND (next_at IS NULL OR next_at > ?)
"""


def rewind(tx: Transaction, orders: Sequence[RewindJob]) -> int:
    """Set jobs back; see `RewindJob`. Durable. Returns how many were set back."""
    return sum(
        tx.execute(REWIND_JOB, (order.next_at, order.id, order.version, order.next_at)).rowcount
        for order in sorted(orders, key=lambda order: order.id)
    )


def fire(tx: Transaction, job_id: JobId, instant: float, *, is_manual: bool = False) -> Slot | None:
    locks.jobs(tx, job_id)
    find_or_raise(tx, job_id)
    if not is_manual and not tx.execute(END_WAIT, (tx.now, job_id)).rowcount:
        return None
    tx.execute(INSERT_SLOT, (job_id, instant, "due", tx.now, "", None, int(is_manual)))
    return slot(tx, job_id, instant)


# -- claiming ---------------------------------------------------------------------------------------------

_IS_CLAIMED = "state = 'running' AND ended_at IS NULL AND turn_id IS NULL"
_FREE = f"UPDATE slots SET state = 'due', claimed_by = '' WHERE {_IS_CLAIMED}"
FREE_DEAD = f"{_FREE} AND (claimed_at <= ? OR claimed_at > ?)"
FREE_OTHERS = f"{_FREE} AND claimed_by <> ?"
FREE_CLAIMS = f"{_FREE} AND claimed_by = ?"
# The subquery does not depend on the slot, so that an engine runs it once for all slots.
IS_JOB_RUNNING = "job_id IN (SELECT job_id FROM slots WHERE state = 'running' AND ended_at IS NULL)"
# A job whose missed slots all run keeps those that are due later than others of the same absence: they were
# written in another batch, perhaps after a kill.
SKIP_OVERLAPPING = f"""
UPDATE slots SET state = 'skipped', ended_at = ?,
                 reason = CASE WHEN slots.{IS_JOB_RUNNING}
                     THEN 'an earlier run had not ended' ELSE 'an earlier run still waited to begin' END
WHERE state = 'due' AND ended_at IS NULL AND due_at <= ? AND attempts = 0
  AND EXISTS (
      SELECT 1 FROM jobs j WHERE j.id = slots.job_id AND j.overlap = '{Overlap.SKIP}'
        AND NOT (slots.due_at > slots.instant + {JITTER} AND {plan_has("j", '"missed":"all"')})
  )
  AND EXISTS (
      SELECT 1 FROM slots o WHERE o.job_id = slots.job_id AND o.ended_at IS NULL AND o.due_at < slots.due_at
  )
"""
# A turn that waits for a person uses nothing.
COUNT_RUNNING = """
SELECT count(*) FROM slots s LEFT JOIN turns t ON t.id = s.turn_id
WHERE s.state = 'running' AND s.ended_at IS NULL AND (t.state IS NULL OR t.state <> 'waiting')
"""
FIND_DUE_SLOTS = f"""
SELECT {prefixed("s", SLOT_COLUMNS)}, {prefixed("j", JOB_COLUMNS)}
FROM slots s JOIN jobs j ON j.id = s.job_id
WHERE s.state = 'due' AND s.ended_at IS NULL AND s.due_at <= ?
  AND (j.overlap = '{Overlap.REPLACE}' OR NOT s.{IS_JOB_RUNNING})
ORDER BY {plan_has("j", '"is_reminder":true')} DESC, s.due_at, s.job_id, s.instant LIMIT ?
"""
CLAIM_SLOT = """
UPDATE slots
SET state = 'running', turn_id = NULL, attempts = attempts + 1, fence = fence + 1, claimed_by = ?,
    claimed_at = ?
WHERE job_id = ? AND instant = ? AND state = 'due'
"""
FIND_RUNNING = f"""
SELECT {SLOT_COLUMNS} FROM slots WHERE job_id = ? AND ended_at IS NULL AND state = 'running' ORDER BY instant
"""
RENEW_CLAIM = """
UPDATE slots SET claimed_at = ?
WHERE job_id = ? AND instant = ? AND fence = ? AND state = 'running' AND turn_id IS NULL
"""


def claim(tx: Transaction, order: ClaimSlots) -> Sequence[ClaimedSlot]:
    """Claim due slots; see `ClaimSlots`. Durable."""
    locks.whole(tx, locks.SLOT_CLAIMS)
    tx.execute(FREE_DEAD, (tx.now - CLAIM_SECONDS, tx.now + CLAIM_SECONDS))
    tx.execute(SKIP_OVERLAPPING, (tx.now, tx.now))
    (running,) = tx.execute(COUNT_RUNNING).fetchone()
    room = order.max_running - running
    claimed: list[ClaimedSlot] = []
    taken = set[JobId]()
    for row in tx.execute(FIND_DUE_SLOTS, (tx.now, order.limit)).fetchall():
        width = len(row) - len(JOB_COLUMNS.split(","))
        found, job = slot_from(row[:width]), job_from(row[width:])
        if job.id in taken and job.plan.overlap is not Overlap.REPLACE:
            continue
        if room <= 0 and not job.plan.is_reminder:
            continue
        replaced: tuple[Slot, ...] = ()
        if job.plan.overlap is Overlap.REPLACE:
            replaced = tuple(map(slot_from, tx.execute(FIND_RUNNING, (job.id,)).fetchall()))
        if not tx.execute(CLAIM_SLOT, (order.owner, tx.now, found.job_id, found.instant)).rowcount:
            continue  # it was skipped or removed meanwhile
        taken.add(job.id)
        claimed.append(ClaimedSlot(job, _again(tx, found), replaced))
        room -= 0 if job.plan.is_reminder else 1
    return claimed


def renew(tx: Transaction, claims: Iterable[SlotClaim]) -> None:
    """Keep these claims, whose slots have no turn yet. A claim that was lost is left alone."""
    for held in sorted(claims, key=lambda held: (held.job_id, held.instant)):
        tx.execute(RENEW_CLAIM, (tx.now, held.job_id, held.instant, held.fence))


# -- turns ------------------------------------------------------------------------------------------------

BIND_SLOT = (
    "UPDATE slots SET turn_id = ?, started_at = coalesce(started_at, ?) WHERE job_id = ? AND instant = ?"
)
MARK_TURN = "UPDATE turns SET job_id = ? WHERE id = ?"
FIND_BOUND = f"""
SELECT {SLOT_COLUMNS} FROM slots
WHERE job_id = ? AND ended_at IS NULL AND state = 'running' AND turn_id = ?
"""


def _check(tx: Transaction, held: SlotClaim) -> Slot:
    """Return the slot. Raise `StaleFence` if the claim is void."""
    found = slot(tx, held.job_id, held.instant)
    if found is None or found.fence != held.fence or found.state is not SlotState.RUNNING:
        raise StaleFence(f"The claim of slot {slot_id(held.job_id, held.instant)} is lost.")
    return found


def bound_turn(tx: Transaction, held: SlotClaim) -> TurnId | None:
    """Return the turn that the claimed slot has already. Raise `StaleFence` if the claim is void."""
    return _check(tx, held).turn_id


def bind(tx: Transaction, held: SlotClaim, turn_id: TurnId) -> None:
    """Bind a turn, which was just inserted, to the claimed slot."""
    tx.execute(BIND_SLOT, (turn_id, tx.now, held.job_id, held.instant))
    tx.execute(MARK_TURN, (held.job_id, turn_id))


def end_turn(tx: Transaction, job_id: JobId, turn: Turn, end: TurnEnd) -> SlotEnd | None:
    """Settle the slot of a turn that ends. A turn whose slot is gone has nothing to settle. A run that was
    stopped by its cap is not tried again: the cap holds for all tries."""
    locks.jobs(tx, job_id)
    row = tx.execute(FIND_BOUND, (job_id, turn.id)).fetchone()
    if row is None:
        return None
    cost = spent_by_tree(tx, turn.id, delegates_within(turn.chat_key, turn.id))
    found = slot_from(row)
    found = msgspec.structs.replace(found, cost=found.cost + cost)
    error = end.error
    match end.state:
        case TurnState.DONE:
            return _end(tx, found, SlotState.DONE, "")
        case TurnState.CANCELLED:
            return _end(tx, found, SlotState.FAILED, "it was stopped", is_counted=False)
        case _ if error is None:
            return _end(tx, found, SlotState.FAILED, "it failed")
        case _:
            is_last = error.type == OverBudget.type
            return _end(tx, found, SlotState.FAILED, error.message, is_last=is_last)


def settle(tx: Transaction, order: SettleSlot) -> SlotEnd:
    locks.jobs(tx, order.claim.job_id)
    locks.slot(tx, order.claim.job_id, order.claim.instant)
    found = _check(tx, order.claim)
    if found.turn_id is not None:
        raise StaleFence(f"Slot {found.id} has a turn, which settles it.")
    check_slot_move(found, order.state)
    if order.state is not SlotState.DUE:
        return _end(tx, found, order.state, order.reason)
    # The claim is given back, and the attempt does not count.
    tx.execute(GIVE_BACK, (found.job_id, found.instant))
    return SlotEnd(_again(tx, found), find(tx, found.job_id))


def _again(tx: Transaction, found: Slot) -> Slot:
    """Return the slot as its row is now."""
    now = slot(tx, found.job_id, found.instant)
    assert now is not None
    return now


GIVE_BACK = """
UPDATE slots SET state = 'due', claimed_by = '', attempts = attempts - 1 WHERE job_id = ? AND instant = ?
"""
END_SLOT = "UPDATE slots SET state = ?, reason = ?, cost = ?, ended_at = ? WHERE job_id = ? AND instant = ?"
TRY_AGAIN = """
UPDATE slots SET state = 'due', reason = ?, cost = ?, due_at = ? WHERE job_id = ? AND instant = ?
"""
COUNT_FAILURE = "UPDATE jobs SET failures = failures + 1 WHERE id = ? RETURNING failures, state"
CLEAR_FAILURES = "UPDATE jobs SET failures = 0 WHERE id = ? AND failures > 0"
PAUSE_JOB = "UPDATE jobs SET state = 'paused', next_at = NULL, reason = ? WHERE id = ?"


def _end(
    tx: Transaction,
    found: Slot,
    state: SlotState,
    reason: str,
    *,
    is_counted: bool = True,
    is_last: bool = False,
) -> SlotEnd:
    """End the slot, or make it due again if its plan has another try and this one was not the last."""
    key, job, failures, has_paused = (found.job_id, found.instant), find(tx, found.job_id), 0, False
    if state is SlotState.FAILED and is_counted:
        if job is not None and found.attempts <= job.plan.retries and not is_last:
            tx.execute(TRY_AGAIN, (reason, found.cost, tx.now + retry_delay(found.attempts), *key))
            return SlotEnd(_again(tx, found), job)
        failures, has_paused = _count_failure(tx, found.job_id)
    elif state is SlotState.DONE:
        tx.execute(CLEAR_FAILURES, (found.job_id,))
    tx.execute(END_SLOT, (state.value, reason, found.cost, tx.now, *key))
    return SlotEnd(_again(tx, found), job, failures, has_paused)


def _count_failure(tx: Transaction, job_id: JobId) -> tuple[int, bool]:
    """Return the failures in a row, and whether the job is paused because of them."""
    row = tx.execute(COUNT_FAILURE, (job_id,)).fetchone()
    if row is None:
        return 0, False
    failures, state = row
    if failures < MAX_FAILURES or state != JobState.ACTIVE.value:
        return failures, False
    reason = f"it failed {MAX_FAILURES} times in a row"
    tx.execute(PAUSE_JOB, (reason, job_id))
    tx.execute(SKIP_DUE, (reason, tx.now, job_id))
    return failures, True


# -- forgetting -------------------------------------------------------------------------------------------

FIND_OLD_SLOTS = f"""
SELECT job_id, instant FROM slots
WHERE ended_at < ?
  AND EXISTS (SELECT 1 FROM slots n WHERE n.job_id = slots.job_id AND n.instant > slots.instant)
ORDER BY ended_at LIMIT {rules.BATCH}
"""
DROP_SLOT = "DELETE FROM slots WHERE job_id = ? AND instant = ?"
FIND_OLD_JOBS = f"""
SELECT id FROM jobs WHERE ended_at < ?
  AND NOT EXISTS (SELECT 1 FROM slots s WHERE s.job_id = jobs.id AND s.ended_at IS NULL)
ORDER BY ended_at LIMIT {rules.BATCH}
"""


def prune(tx: Transaction, ended_before: float) -> int:
    """Delete slots that ended before then, but for the last one of each job, and jobs that are done since
    then; return how many (up to 100)."""
    slots_gone = tx.execute(FIND_OLD_SLOTS, (ended_before,)).fetchall()
    for key in slots_gone:
        tx.execute(DROP_SLOT, key)
    jobs_gone = tx.execute(FIND_OLD_JOBS, (ended_before,)).fetchall()
    if locks.jobs(tx, *(row[0] for row in jobs_gone)):
        locked = set(jobs_gone)
        jobs_gone = [row for row in tx.execute(FIND_OLD_JOBS, (ended_before,)).fetchall() if row in locked]
    for (job_id,) in jobs_gone:
        remove(tx, job_id)
    return max(len(slots_gone), len(jobs_gone))


# -- reading ----------------------------------------------------------------------------------------------

NEXT_JOB = "SELECT min(next_at) FROM jobs WHERE next_at IS NOT NULL"
NEXT_SLOT = "SELECT min(due_at) FROM slots WHERE state = 'due' AND ended_at IS NULL AND due_at > ?"
OLDEST_CLAIM = f"SELECT min(claimed_at) FROM slots WHERE {_IS_CLAIMED}"
LIST_SLOTS = f"""
SELECT {SLOT_COLUMNS} FROM slots WHERE job_id = ? AND instant < ? ORDER BY instant DESC LIMIT ?
"""
FIND_AHEAD = f"""
SELECT DISTINCT {prefixed("j", JOB_COLUMNS)} FROM slots s JOIN jobs j ON j.id = s.job_id
WHERE s.instant > ? AND s.manual = 0
  AND (j.next_at > s.instant OR (j.state = 'done' AND s.state = 'skipped')) LIMIT ?
"""
IS_UNFINISHED = "SELECT 1 FROM jobs WHERE state IN ('active', 'paused') LIMIT 1"
IS_OPEN = "SELECT 1 FROM slots WHERE ended_at IS NULL LIMIT 1"
IS_WAITING = "SELECT 1 FROM slots WHERE state = 'due' AND ended_at IS NULL AND due_at <= ? LIMIT 1"
COUNT_JOBS = "SELECT state, count(*) FROM jobs GROUP BY state"
COUNT_SLOTS = "SELECT state, count(*) FROM slots WHERE ended_at IS NULL GROUP BY state"
OLDEST_DUE = "SELECT min(due_at) FROM slots WHERE state = 'due' AND ended_at IS NULL"


def slot(db: Connection | Transaction, job_id: JobId, instant: float) -> Slot | None:
    return find_one(slot_from, db.execute(FIND_SLOT, (job_id, instant)))


def next_due(db: Connection, after: float) -> float | None:
    """Return the earliest time at which a job is due, a slot is due that is not due at `after`, or a
    claim without a turn is void; None if there is none."""
    (job,) = db.execute(NEXT_JOB).fetchone()
    (waiting,) = db.execute(NEXT_SLOT, (after,)).fetchone()
    (claimed,) = db.execute(OLDEST_CLAIM).fetchone()
    times = [job, waiting, None if claimed is None else claimed + CLAIM_SECONDS]
    return min((time for time in times if time is not None), default=None)


def ahead_of(db: Connection, now: float, limit: int) -> Sequence[Job]:
    """Return unpaused jobs that have passed a slot which lies in the future: the clock was set back."""
    return [job_from(row) for row in db.execute(FIND_AHEAD, (now, limit))]


def is_any(db: Connection) -> bool:
    """Return whether there is an unfinished job, or a slot that is due or running."""
    return any(db.execute(sql).fetchone() is not None for sql in (IS_UNFINISHED, IS_OPEN))


def is_waiting(db: Connection, now: float) -> bool:
    """Return whether a slot is due and not claimed."""
    return db.execute(IS_WAITING, (now,)).fetchone() is not None


def slots(db: Connection, job_id: JobId, page: Page) -> SlotPage:
    """The place in the list is the instant of the last slot, in milliseconds."""
    limit = check_limit(page)
    before = parse_number_cursor(page.after) / 1000 if page.after is not None else float("inf")
    found = [slot_from(row) for row in db.execute(LIST_SLOTS, (job_id, before, limit + 1))]
    following = str(round(found[limit - 1].instant * 1000)) if len(found) > limit else None
    return SlotPage(tuple(found[:limit]), following)


COUNT_SKIPPED = """
SELECT reason, count(*) FROM slots WHERE ended_at >= ? AND state = 'skipped' GROUP BY reason
"""


def skipped(db: Connection, since: float) -> dict[str, int]:
    """Return how many slots were skipped since then, by their reasons."""
    return dict(db.execute(COUNT_SKIPPED, (since,)).fetchall())


def counts(db: Connection) -> JobCounts:
    (oldest,) = db.execute(OLDEST_DUE).fetchone()
    return JobCounts(
        dict(db.execute(COUNT_JOBS).fetchall()), dict(db.execute(COUNT_SLOTS).fetchall()), oldest
    )
