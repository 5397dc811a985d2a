"""Jobs and their runs as the API, the command line, the page and the tool show them."""

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
    """A job. `schedule` tells when it runs, `next` its next instants for people to read, in its zone.
    `results_to` names the chat that gets the results. `reason` tells why it is paused or done."""

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
    """A job that would be saved. `lines` is the text for the person who confirms it. `worded`: the time was
    said in plain words, so a person should confirm it. `asked_at` is to be sent with the confirmation, so
    that "in ten minutes" still means what was shown."""

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
    """A run of a job. `slot` is its instant. `reason` tells why it failed or was skipped."""

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
