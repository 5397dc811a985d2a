"""Jobs and runs as the API, the command line, the web page and the tool show them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from talaria.core.jobs import Job, Slot, SlotState
from talaria.core.spending import to_usd
from talaria.core.views import view_of

if TYPE_CHECKING:
    from talaria.jobs.desk import JobDesk
    from talaria.jobs.requests import JobProposal


class JobView(msgspec.Struct, frozen=True):
    """A job. `schedule` describes when it runs; `next` lists its next run times as text, in its time zone.
    `results_to` describes the chat that receives the results. `reason` says why it is paused or done."""

    id: str
    name: str
    text: str
    schedule: str
    timezone: str
    next: tuple[str, ...]
    next_at: float | None
    state: str
    reason: str
    session: str
    to: str
    results_to: str
    model: str
    tools: tuple[str, ...] | None
    check: str
    missed: str
    deadline: float
    retries: int
    overlap: str
    reminder: bool
    quiet: bool
    failures: int
    owner: str
    chat_key: str
    created_at: float

    @classmethod
    def of(cls, job: Job, desk: JobDesk) -> JobView:
        return view_of(
            cls,
            job,
            job.plan,
            job.origin,
            schedule=desk.describe(job),
            timezone=desk.zone_name(job),
            next=desk.next_runs(job),
            results_to=desk.target(job),
            reminder=job.plan.is_reminder,
        )


class ProposalView(msgspec.Struct, frozen=True):
    """A preview of a job. `lines` is the text to show to the person who confirms it. If `worded`, the time
    was given in plain words, so a person should confirm it. Send `asked_at` with the confirmation, so that
    "in ten minutes" keeps its meaning."""

    text: str
    schedule: str
    timezone: str
    next: tuple[str, ...]
    next_at: float | None
    lines: tuple[str, ...]
    reminder: bool
    worded: bool
    asked_at: float

    @classmethod
    def of(cls, proposal: JobProposal, asked_at: float) -> ProposalView:
        return view_of(
            cls,
            proposal,
            text=proposal.plan.text,
            timezone=proposal.zone,
            next=proposal.shown,
            lines=tuple(proposal.lines()),
            reminder=proposal.plan.is_reminder,
            worded=proposal.is_worded,
            asked_at=asked_at,
        )


class RunView(msgspec.Struct, frozen=True):
    """A run of a job. `slot` is its scheduled time. `reason` says why it failed or was skipped."""

    id: str
    slot: str
    state: SlotState
    turn_id: str | None
    reason: str
    attempts: int
    cost_usd: str
    due_at: float
    started_at: float | None
    ended_at: float | None
    manual: bool

    @classmethod
    def of(cls, slot: Slot) -> RunView:
        instant, cost = iso_instant(slot.instant), to_usd(slot.cost)
        return view_of(cls, slot, slot=instant, cost_usd=cost, manual=slot.is_manual)


class JobList(msgspec.Struct, frozen=True):
    items: tuple[JobView, ...]
    next: str | None


class RunList(msgspec.Struct, frozen=True):
    items: tuple[RunView, ...]
    next: str | None


def iso_instant(instant: float) -> str:
    moment = datetime.fromtimestamp(instant, UTC)
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds").replace(
        "+00:00", "Z"
    )
