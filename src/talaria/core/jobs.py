"""Jobs, their schedules and their slots, and the moves between the states of a slot.

A *job* is a text that an agent gets at certain times. A *slot* is one of those times: a row `(job, instant)`
that exists once. The scheduler writes the row, claims it, and only then lets it run:

    due ──▶ running ──▶ done | failed | skipped
     │  ◀──┘
     └──▶ skipped

`running ──▶ due` is a claim whose process died before the slot had a turn, or another try after a failure.
Instants are seconds since the epoch (UTC). A schedule computes them in the job's time zone.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

import msgspec

from talaria.core.errors import IllegalMove
from talaria.core.ids import ChatKey, JobId, OwnerId, SessionId, TurnId
from talaria.core.spending import show_usd
from talaria.core.text import clean_line
from talaria.core.turns import NO_REPLY, ReplyPlace, RunOrder, Sender

MAX_FAILURES = 10  # in a row, after which a job is paused
JITTER = 30.0  # seconds, over which jobs that come together are spread
CLAIM_SECONDS = 60.0  # after which a claim without a turn is void, unless it was renewed


# -- schedules --------------------------------------------------------------------------------------------


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """Five fields: minute, hour, day of month, month, day of week, in the job's time zone."""

    expression: str


class Every(msgspec.Struct, frozen=True, tag="every"):
    """Every so many seconds after the instant `since`. Local time does not matter."""

    seconds: int
    since: float


class At(msgspec.Struct, frozen=True, tag="at", omit_defaults=True):
    """Once, at an instant. `local` is the local time that it was computed from, if it was."""

    instant: float
    local: str = ""


class AfterProcess(msgspec.Struct, frozen=True, tag="after"):
    """Once, when a background process of a session has ended."""

    session_id: SessionId
    process: str


Schedule: TypeAlias = Cron | Every | At | AfterProcess


# -- jobs -------------------------------------------------------------------------------------------------


class SessionMode(StrEnum):
    """The session of a run: a new one, the job's own lasting one, or the current one of the chat."""

    NEW = "new"
    SAME = "same"
    CHAT = "chat"


class Missed(StrEnum):
    """The treatment of slots that passed while no scheduler ran.

    ONCE: the last one runs, if it is at most `jobs.late` old; the others are skipped. SKIP: none runs. ALL:
    each one runs that is at most `jobs.late` old.
    """

    ONCE = "once"
    SKIP = "skip"
    ALL = "all"


class Overlap(StrEnum):
    """The treatment of a slot that comes due while another one of its job runs.

    SKIP: it is skipped. QUEUE: it waits. REPLACE: it runs, and the runner stops the earlier one. Slots that
    came due together, because they were missed, wait for each other in any case but `REPLACE`.
    """

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"


class JobState(StrEnum):
    """DONE: no instant is left."""

    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"


ASKING_CHAT = ""
NOWHERE = "none"


class JobPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a job that its owner chooses and may edit.

    `to` is the chat that gets the results: the one that asked, `NOWHERE`, or a chat key. An empty `model` is
    the agent's, `tools` None are all of them. `deadline` is in seconds, 0 for the usual time limit of a turn.
    A run begins with `check`, a command in the sandbox, if it is not empty; without output the run is over.
    The text of a reminder is sent as it is, without a run, even if it is older than `jobs.late`. A `quiet`
    job sends nothing if its run answers exactly `NO_REPLY`. New jobs are quiet only on request. Plans stored
    before the field existed lack it, and their runs relied on `NO_REPLY`, so the default is True.
    """

    text: str
    schedule: Schedule
    zone: str
    name: str = ""
    session: SessionMode = SessionMode.NEW
    to: str = ASKING_CHAT
    model: str = ""
    tools: tuple[str, ...] | None = None
    check: str = ""
    missed: Missed = Missed.ONCE
    deadline: float = 0.0
    retries: int = 0
    overlap: Overlap = Overlap.SKIP
    is_reminder: bool = False
    quiet: bool = True


def upgrade_plan(plan: JobPlan) -> JobPlan:
    """Return a stored plan by the rules of today.

    A reminder used to be a run, so it could have a check and other settings for runs. One with a check stays
    a run, because the check decides whether the person hears of it. Other reminders lose these settings.
    """
    if not plan.is_reminder:
        return plan
    if plan.check:
        return msgspec.structs.replace(plan, is_reminder=False)
    return msgspec.structs.replace(
        plan, model="", tools=None, session=SessionMode.NEW, deadline=0.0, quiet=False
    )


class JobOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The person and the chat that made a job. `owner` is the person as `access.people` names them; `sender`
    is who asked, and `address` the way back to the chat for channels that push replies."""

    owner: str
    chat_key: ChatKey
    sender: Sender
    address: str | None = None


class Job(msgspec.Struct, frozen=True):
    """A job's row. `next_at` is the next instant, None if there is none or the job is paused.

    `version` grows with each edit. `failures` counts failed slots in a row. `reason` tells why a job is
    paused or done.
    """

    id: JobId
    origin: JobOrigin
    plan: JobPlan
    state: JobState
    created_at: float
    next_at: float | None = None
    version: int = 1
    failures: int = 0
    reason: str = ""

    @property
    def name(self) -> str:
        return self.plan.name or self.plan.text[:40]


# -- slots ------------------------------------------------------------------------------------------------


class SlotState(StrEnum):
    DUE = "due"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def is_final(self) -> bool:
        return not SLOT_MOVES[self]


SLOT_MOVES: dict[SlotState, frozenset[SlotState]] = {
    SlotState.DUE: frozenset({SlotState.RUNNING, SlotState.SKIPPED}),
    SlotState.RUNNING: frozenset({SlotState.DUE, SlotState.DONE, SlotState.FAILED, SlotState.SKIPPED}),
    SlotState.DONE: frozenset(),
    SlotState.FAILED: frozenset(),
    SlotState.SKIPPED: frozenset(),
}


def check_slot_move(slot: Slot, new: SlotState) -> None:
    if new not in SLOT_MOVES[slot.state]:
        raise IllegalMove(f"slot {slot.id}", slot.state, new)


class Slot(msgspec.Struct, frozen=True):
    """A slot's row. `due_at` is the instant, put off by jitter or until another try.

    `fence` grows with each claim. `turn_id` is the turn of the last try. `reason` tells why a slot was
    skipped or failed. `cost` is in nanodollars, of all tries. `is_manual`: a person asked for this run.
    """

    job_id: JobId
    instant: float
    state: SlotState
    due_at: float
    reason: str = ""
    turn_id: TurnId | None = None
    attempts: int = 0
    fence: int = 0
    cost: int = 0
    claimed_by: str = ""
    claimed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    is_manual: bool = False

    @property
    def id(self) -> str:
        """The name of the run for people and programs, and of the key of its turn."""
        return slot_id(self.job_id, self.instant)

    @property
    def claim(self) -> SlotClaim:
        return SlotClaim(self.job_id, self.instant, self.fence)


def retry_delay(attempts: int) -> float:
    """Return the seconds between a failure, after so many attempts, and the next try."""
    return float(min(60 * 2 ** (attempts - 1), 3600))


def slot_id(job_id: JobId, instant: float) -> str:
    return f"{job_id}@{instant:.3f}".removesuffix(".000")


class SlotClaim(msgspec.Struct, frozen=True):
    """The right to run a slot. It is void once another process has claimed the slot under a higher fence.

    `Accept.claim` takes it: the turn is accepted and bound to the slot in one transaction, or `StaleFence` is
    raised. A slot that has a turn of this fence already gets no second one; that turn is returned.
    """

    job_id: JobId
    instant: float
    fence: int


# -- orders -----------------------------------------------------------------------------------------------


class AddJob(msgspec.Struct, frozen=True):
    """Add a job, unless its owner has `most` unfinished ones, which raises `LimitReached`."""

    id: JobId
    origin: JobOrigin
    plan: JobPlan
    next_at: float | None
    most: int


class EditJob(msgspec.Struct, frozen=True):
    """Change a job. Its slots that are due and belong to the old plan are skipped if `reason` is given.

    `version` is the one that the caller has read; `HeadMoved` is raised if there is a newer one.
    """

    id: JobId
    version: int
    plan: JobPlan
    state: JobState
    next_at: float | None
    reason: str = ""


class NewSlot(msgspec.Struct, frozen=True):
    """A slot to write: `due` at `due_at`, or `skipped` if there is a `skipped` reason."""

    instant: float
    due_at: float
    skipped: str = ""


class AdvanceJob(msgspec.Struct, frozen=True):
    """Write the slots of a job up to now, and its next instant.

    Nothing is done if the job is not at `version` and `next_at` any more: another process did it, or the job
    was edited. A slot whose row exists stays as it is, unless it was skipped: it was met before the clock was
    set back, and is due now. Without `then_at` the job becomes `done`.
    """

    id: JobId
    version: int
    next_at: float
    then_at: float | None
    slots: tuple[NewSlot, ...]


class RewindJob(msgspec.Struct, frozen=True):
    """Set an unpaused job back to an earlier instant, because the clock was set back. Nothing is done if the
    job is not at `version` any more."""

    id: JobId
    version: int
    next_at: float


class ClaimSlots(msgspec.Struct, frozen=True):
    """Claim due slots, the earliest first, as long as fewer than `max_running` slots run. Reminders are
    claimed first and always, because sending one uses nothing.

    A slot whose job has an earlier one open follows the job's `Overlap`. Slots that run without a turn and
    whose claim is not from the last `CLAIM_SECONDS` are due again first: their claimer has died.
    """

    owner: OwnerId
    max_running: int
    limit: int = 50


class ClaimedSlot(msgspec.Struct, frozen=True):
    """A slot that the caller must run now. `replaces` are running slots of the job that it must stop."""

    job: Job
    slot: Slot
    replaces: tuple[Slot, ...] = ()


class SettleSlot(msgspec.Struct, frozen=True):
    """End a slot that has no turn, under the claim's fence; with `DUE`, give the claim back instead.

    A failure makes the slot due again later, if the plan has another try; else the chat that asked for the
    job, at `asked_in` if it is given, is told. Raises `IllegalMove`, and
    `StaleFence` also for a slot that has a turn, whose end settles it.
    """

    claim: SlotClaim
    state: SlotState
    reason: str = ""
    asked_in: ReplyPlace | None = None


class SlotEnd(msgspec.Struct, frozen=True):
    """A slot after a try ended: it is over, or due again. `job` is None if the job was removed. `failures`
    counts failed slots of the job in a row, this one included."""

    slot: Slot
    job: Job | None
    failures: int = 0
    has_paused: bool = False


class SlotPage(msgspec.Struct, frozen=True):
    items: tuple[Slot, ...]
    next: str | None


class JobPage(msgspec.Struct, frozen=True):
    items: tuple[Job, ...]
    next: str | None


class JobCounts(msgspec.Struct, frozen=True):
    """`oldest_due` is the time since which a slot waits to run, None if none does."""

    jobs: dict[str, int]
    slots: dict[str, int]
    oldest_due: float | None = None


class JobBell:
    """Tells the scheduler of this process that an instant may have come nearer or a slot may have ended.
    `tell_others` tells those of the other members of a cluster."""

    def __init__(self) -> None:
        self._watchers: list[Callable[[], None]] = []
        self.tell_others: Callable[[], None] | None = None

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` at each ring. Returns the function that ends it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    @property
    def is_watched(self) -> bool:
        """Whether this process has a scheduler."""
        return bool(self._watchers)

    def ring(self) -> None:
        self.hear()
        if self.tell_others is not None:
            self.tell_others()

    def hear(self) -> None:
        """Another member has rung, or has left what it was about to run."""
        for watcher in self._watchers:
            watcher()


# -- the texts that a chat gets of the runs of jobs, and whether it gets one ------------------------------
# Pure.


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
        told += "." if not ended.has_paused else f" and is paused. /jobs resume {job.id} lets it continue."
    return told
