"""The port of the store for jobs and their slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from talaria.core.ids import JobId
from talaria.core.jobs import (
    AddJob,
    AdvanceJob,
    ClaimedSlot,
    ClaimSlots,
    EditJob,
    Job,
    JobBell,
    JobCounts,
    JobPage,
    RewindJob,
    SettleSlot,
    Slot,
    SlotClaim,
    SlotPage,
)
from talaria.core.ledger import Page


class JobStore(Protocol):
    """Jobs and slots. Every order is one transaction, as in `Store`, and rings `bell` if the scheduler should
    look. The end of a turn settles its slot in the transaction that ends the turn."""

    @property
    def bell(self) -> JobBell: ...

    # -- writing
    async def add(self, order: AddJob) -> Job:
        """Add a job; see `AddJob`. Durable. A job with the same id is returned as it is."""
        ...

    async def edit(self, order: EditJob) -> Job:
        """Change a job; see `EditJob`. Durable. Raises `NotFound`, `HeadMoved`."""
        ...

    async def remove(self, job_id: JobId) -> Job:
        """Delete a job with its slots and return it. Durable. A turn that runs goes on. Raises `NotFound`."""
        ...

    async def fire(self, job_id: JobId, instant: float, *, is_manual: bool = False) -> Slot | None:
        """Write a slot that is due at once, and return it: a person asked for it, or the awaited process has
        ended and the job is done. Durable.

        Returns the slot that exists if there is one of this instant, None if the job has stopped waiting.
        Raises `NotFound`.
        """
        ...

    async def advance(self, orders: Sequence[AdvanceJob]) -> int:
        """Write slots and next instants; see `AdvanceJob`. Durable. Returns how many jobs were moved on."""
        ...

    async def rewind(self, orders: Sequence[RewindJob]) -> int:
        """Set jobs back; see `RewindJob`. Durable. Returns how many were set back."""
        ...

    async def claim(self, order: ClaimSlots) -> Sequence[ClaimedSlot]:
        """Claim due slots; see `ClaimSlots`. Durable."""
        ...

    async def renew(self, claims: Sequence[SlotClaim]) -> None:
        """Keep these claims, whose slots have no turn yet. A claim that was lost is left alone."""
        ...

    async def settle(self, order: SettleSlot) -> Slot:
        """End a slot without a turn; see `SettleSlot`. Durable."""
        ...

    async def prune(self, ended_before: float) -> int:
        """Delete slots that ended before then, but for the last one of each job, and jobs that are done since
        then; return how many (up to 100)."""
        ...

    # -- reading
    async def find(self, job_id: JobId) -> Job | None: ...

    async def due(self, now: float, limit: int) -> Sequence[Job]:
        """Return active jobs whose next instant has come, the earliest first."""
        ...

    async def ahead_of(self, now: float, limit: int) -> Sequence[Job]:
        """Return unpaused jobs that have passed a slot which lies in the future: the clock was set back."""
        ...

    async def is_any(self) -> bool:
        """Return whether there is an unfinished job, or a slot that is due or running."""
        ...

    async def is_waiting(self, now: float) -> bool:
        """Return whether a slot is due and not claimed."""
        ...

    async def next_due(self, after: float) -> float | None:
        """Return the earliest time at which a job is due, a slot is due that is not due at `after`, or a
        claim without a turn is void; None if there is none."""
        ...

    async def listing(self, page: Page, owner: str | None = None, *, is_unfinished: bool = False) -> JobPage:
        """Return jobs, oldest first: of one owner or all, and with `is_unfinished` those that are not done.
        Raises `BadRequest` for an invalid page."""
        ...

    async def finished(self, limit: int, owner: str | None = None) -> Sequence[Job]:
        """Return jobs that are done, of one owner or all, the last to finish first."""
        ...

    async def slots(self, job_id: JobId, page: Page) -> SlotPage:
        """Return the slots of a job, the latest first. Raises `BadRequest` for an invalid page."""
        ...

    async def awaiting(self, limit: int) -> Sequence[Job]:
        """Return active jobs that wait for a background process."""
        ...

    async def slot(self, job_id: JobId, instant: float) -> Slot | None: ...

    async def counts(self) -> JobCounts: ...

    async def skipped(self, since: float) -> dict[str, int]:
        """Return how many slots were skipped since then, by their reasons."""
        ...
