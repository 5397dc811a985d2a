"""Jobs, in SQL."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from talaria.core.errors import HeadMoved, LimitReached, NotFound
from talaria.core.ids import JobId
from talaria.core.jobs import (
    AddJob,
    AfterProcess,
    EditJob,
    Job,
    JobOrigin,
    JobPage,
    JobPlan,
    JobState,
    upgrade_plan,
)
from talaria.core.ledger import Page
from talaria.store.sql import locks
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import check_limit, encode, find_one, parse_number_cursor

_origin = msgspec.json.Decoder(JobOrigin).decode
_plan = msgspec.json.Decoder(JobPlan).decode

JOB_COLUMNS = "id, origin, plan, state, created_at, next_at, version, failures, reason"


def plan_has(table: str, part: str) -> str:
    """Return the SQL condition that the plan in a row of jobs has this part of its JSON. A text inside the
    plan cannot be taken for it, because quotes in texts are escaped."""
    return f"replace({table}.plan, '{part}', '') <> {table}.plan"


def job_from(row: Any) -> Job:
    key, origin, plan, state, *rest = row
    return Job(key, _origin(origin), upgrade_plan(_plan(plan)), JobState(state), *rest)


# -- jobs -------------------------------------------------------------------------------------------------

FIND_JOB = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?"
COUNT_OF_OWNER = "SELECT count(*) FROM jobs WHERE owner = ? AND state <> 'done'"
INSERT_JOB = f"""
INSERT INTO jobs ({JOB_COLUMNS}, owner, overlap, session_id)
VALUES (?, ?, ?, ?, ?, ?, 1, 0, '', ?, ?, nullif(?, ''))
"""
EDIT_JOB = """
UPDATE jobs
SET plan = ?, state = ?, next_at = ?, version = version + 1, failures = 0, reason = ?, overlap = ?,
    session_id = nullif(?, ''), ended_at = ?
WHERE id = ?
"""
SKIP_DUE = """
UPDATE slots SET state = 'skipped', reason = ?, ended_at = ?
WHERE job_id = ? AND state = 'due' AND ended_at IS NULL
"""
DROP_GRANTS = "DELETE FROM job_grants WHERE job_id = ?"
DROP_JOB = "DELETE FROM jobs WHERE id = ?"
DROP_SLOTS = "DELETE FROM slots WHERE job_id = ?"


def find_or_raise(tx: Transaction | Connection, job_id: JobId) -> Job:
    job = find(tx, job_id)
    if job is None:
        raise no_job(job_id)
    return job


def no_job(job_id: str) -> NotFound:
    return NotFound(f"There is no job {job_id}.", "`talaria jobs list` and /jobs show the jobs.")


def _awaited(plan: JobPlan, state: JobState) -> str:
    """Return the session whose process the job waits for, or an empty text."""
    is_waiting = isinstance(plan.schedule, AfterProcess) and state is JobState.ACTIVE
    return plan.schedule.session_id if is_waiting and isinstance(plan.schedule, AfterProcess) else ""


def add(tx: Transaction, order: AddJob) -> Job:
    locks.names(tx, "jobs of", order.origin.owner)
    if (known := find(tx, order.id)) is not None:
        return known
    (count,) = tx.execute(COUNT_OF_OWNER, (order.origin.owner,)).fetchone()
    if count >= order.most:
        raise LimitReached(
            f"You have {count} jobs already, and {order.most} is the most for one person.",
            "Remove one that is not needed (`talaria jobs remove`), or raise jobs.max_jobs.",
        )
    plan, state = order.plan, JobState.ACTIVE
    job = Job(order.id, order.origin, plan, state, tx.now, order.next_at)
    tx.execute(
        INSERT_JOB,
        (
            job.id,
            encode(job.origin),
            encode(plan),
            state.value,
            tx.now,
            job.next_at,
            job.origin.owner,
            plan.overlap.value,
            _awaited(plan, state),
        ),
    )
    return job


def edit(tx: Transaction, order: EditJob) -> Job:
    locks.jobs(tx, order.id)
    job = find_or_raise(tx, order.id)
    if job.version != order.version:
        raise HeadMoved("The job was changed meanwhile.", "Look at it again, then repeat your change.")
    ended_at = tx.now if order.state is JobState.DONE else None
    awaited = _awaited(order.plan, order.state)
    tx.execute(
        EDIT_JOB,
        (
            encode(order.plan),
            order.state.value,
            order.next_at,
            order.reason if order.state is not JobState.ACTIVE else "",
            order.plan.overlap.value,
            awaited,
            ended_at,
            order.id,
        ),
    )
    if order.reason:
        tx.execute(SKIP_DUE, (order.reason, tx.now, order.id))
    return find_or_raise(tx, order.id)


def remove(tx: Transaction, job_id: JobId) -> Job:
    """Delete a job with its slots and return it. Durable. A turn that runs goes on. Raises `NotFound`."""
    locks.jobs(tx, job_id)
    job = find_or_raise(tx, job_id)
    for statement in (DROP_SLOTS, DROP_GRANTS, DROP_JOB):
        tx.execute(statement, (job_id,))
    return job


# -- reading ----------------------------------------------------------------------------------------------

FIND_DUE_JOBS = f"SELECT {JOB_COLUMNS} FROM jobs WHERE next_at <= ? ORDER BY next_at LIMIT ?"
LIST_JOBS = f"""
SELECT {JOB_COLUMNS}, position FROM jobs WHERE position > ? AND state <> ? ORDER BY position LIMIT ?
"""
LIST_JOBS_OF = f"""
SELECT {JOB_COLUMNS}, position FROM jobs
WHERE owner = ? AND position > ? AND state <> ? ORDER BY position LIMIT ?
"""
LIST_FINISHED = f"""
SELECT {JOB_COLUMNS} FROM jobs
WHERE ended_at > 0 AND owner = coalesce(?, owner) ORDER BY ended_at DESC LIMIT ?
"""
AWAITING = f"SELECT {JOB_COLUMNS} FROM jobs WHERE session_id IS NOT NULL ORDER BY session_id LIMIT ?"


def find(db: Connection | Transaction, job_id: JobId) -> Job | None:
    return find_one(job_from, db.execute(FIND_JOB, (job_id,)))


def due(db: Connection, now: float, limit: int) -> Sequence[Job]:
    """Return active jobs whose next instant has come, the earliest first."""
    return [job_from(row) for row in db.execute(FIND_DUE_JOBS, (now, limit))]


def listing(db: Connection, page: Page, owner: str | None = None, *, is_unfinished: bool = False) -> JobPage:
    """Return jobs, oldest first: of one owner or all, and with `is_unfinished` those that are not done.
    Raises `BadRequest` for an invalid page."""
    limit, after = check_limit(page), parse_number_cursor(page.after)
    place = (after, JobState.DONE.value if is_unfinished else "", limit + 1)
    if owner is None:
        rows = db.execute(LIST_JOBS, place).fetchall()
    else:
        rows = db.execute(LIST_JOBS_OF, (owner, *place)).fetchall()
    following = str(rows[limit - 1][-1]) if len(rows) > limit else None
    return JobPage(tuple(job_from(row[:-1]) for row in rows[:limit]), following)


def finished(db: Connection, limit: int, owner: str | None = None) -> Sequence[Job]:
    """Return jobs that are done, of one owner or all, the last to finish first."""
    return [job_from(row) for row in db.execute(LIST_FINISHED, (owner, limit))]


def awaiting(db: Connection, limit: int) -> Sequence[Job]:
    """Return active jobs that wait for a background process."""
    return [job_from(row) for row in db.execute(AWAITING, (limit,))]
