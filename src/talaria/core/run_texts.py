"""The texts that a chat gets of the runs of jobs, and whether it gets one. Pure."""

from __future__ import annotations

from talaria.core.jobs import MAX_FAILURES, JobPlan, SlotEnd, SlotState
from talaria.core.spending import show_usd
from talaria.core.text import clean_line
from talaria.core.turns import NO_REPLY, RunOrder

_NAME = 60
LATE_SECONDS = 60.0  # after which a reminder says when it was due


def result_text(order: RunOrder, reply: str, cost: int) -> str:
    """Return the message with the result of a run; empty if there is nothing to send. It names the job and
    its cost in nanodollars."""
    said = reply.strip()
    if not said or (order.quiet and said == NO_REPLY):
        return ""
    if not order.job_name:
        return reply
    spent = f", {show_usd(cost)}" if cost else ""
    return f"{reply}\n\n(job {clean_line(order.job_name, _NAME)}{spent})"


def reminder_text(plan: JobPlan, due: str, late_seconds: float) -> str:
    """Return the message of a reminder: its text, and when it was `due` if it is late."""
    return f"{plan.text}\n\n(was due {due})" if late_seconds > LATE_SECONDS else plan.text


def tells_failure(failures: int) -> bool:
    """Return whether a chat is told of the failure that is the last of so many in a row: of the first, then
    of each that doubles their number, and of the one that pauses the job."""
    return failures & (failures - 1) == 0 or failures >= MAX_FAILURES


def failure_text(ended: SlotEnd, reason: str) -> str:
    """Return what the chat that asked for a job is told of a run that failed; empty if nothing."""
    if ended.slot.state is not SlotState.FAILED or ended.job is None or not tells_failure(ended.failures):
        return ""
    job = ended.job
    name = clean_line(job.name, _NAME)
    told = f"The job {name} failed: {reason.strip()}"
    if ended.failures > 1:
        told += f"\n\nIt failed {ended.failures} times in a row"
        told += "." if not ended.has_paused else f" and is paused. /jobs resume {job.id} lets it go on."
    return told
