"""`JobDesk`: what people and models do with jobs. The tool, the commands, the API and the page all ask here.

A request is checked and becomes a proposal with its next instants. The person sees it, and `add` or `edit`
saves it. A person sees the jobs of the chats that they may see from the chat they ask in, and changes their
own; the owner of the gateway changes all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, NoReturn

import msgspec
from msgspec import UNSET

from talaria.access.people import People
from talaria.core.access import OWNER, PersonId
from talaria.core.clock import Clock
from talaria.core.errors import BadRequest, NotFound
from talaria.core.ids import JOB_PREFIX, ChatAddress, ChatKey, JobId, new_job_id
from talaria.core.jobs import (
    NOWHERE,
    AddJob,
    At,
    EditJob,
    Job,
    JobOrigin,
    JobPage,
    JobPlan,
    JobState,
    Slot,
    SlotPage,
    SlotState,
)
from talaria.core.ledger import Page
from talaria.core.spending import to_usd
from talaria.core.text import did_you_mean
from talaria.core.turns import Sender
from talaria.core.views import view_of
from talaria.jobs.requests import (
    JobProposal,
    JobRequest,
    check_reminder,
    fill_plan,
    name_chat,
    name_target,
    read_schedule,
    run_settings,
)
from talaria.jobs.schedules import (
    check_schedule,
    describe_schedule,
    find_zone,
    local_instant,
    next_instant,
    next_shown,
    show_instant,
    zone_name,
    zone_of,
)
from talaria.jobs.settings import CHECKED_INTERVAL, JobSettings
from talaria.jobs.words import UnclearSchedule, parse_sentence, suggest_reminder
from talaria.store.store import JobStore

if TYPE_CHECKING:
    from talaria.jobs.requests import JobProposal


_LOOKED_AT = 500  # jobs, when one is looked for by its name


@dataclass(frozen=True, slots=True)
class JobAsker:
    """The person who acts, and the chat that they act from. `address` is the way back to that chat. A person
    who is not `in_chat` acts for it from elsewhere, such as a command line."""

    sender: Sender
    chat_key: ChatKey
    address: str | None = None
    in_chat: bool = True


class JobDesk(msgspec.Struct, eq=False):
    """`zone` is the agent's. `check_model` raises for a model that does not exist."""

    _jobs: JobStore
    _people: People
    _clock: Clock
    zone: tzinfo
    settings: Callable[[], JobSettings] = JobSettings
    check_model: Callable[[str], object] = lambda name: None

    @property
    def note(self) -> str:
        """A warning for people if no scheduler runs in this process; empty if one does."""
        if self._jobs.bell.is_watched:
            return ""
        return "Jobs run in `talaria serve`, which does not run now."

    # -- proposing ------------------------------------------------------------------------------------------

    def propose(self, asker: JobAsker | None, request: JobRequest, now: float | None = None) -> JobProposal:
        """Check a new job. Raise `BadRequest`, and `UnclearSchedule` if a question is left. Without an asker
        it is not checked whether the results may go to the chat.

        `now` is the time from which words such as "in ten minutes" count, by default this moment. The words
        "remind me" suggest a reminder if the request leaves that open and has no setting for a run.
        """
        now = self._clock.now() if now is None else now
        zone = self._zone(request)
        text, suggested = request.text or "", None
        if not request.named_times:
            worded = parse_sentence(text, zone, now) if text else None
            if worded is None:
                raise UnclearSchedule(
                    "When should it run?",
                    'Say it with the text ("every weekday at 9 …", "remind me in ten minutes to …"), or '
                    "apart from it.",
                )
            schedule, text, reminds = worded
            suggested = text if reminds else None
        else:
            schedule, suggested = read_schedule(request, zone, now), suggest_reminder(text)
            if suggested is None and suggest_reminder(request.when or "") is not None:
                suggested = text
        is_worded = not request.named_times or request.when is not UNSET
        plan = self._filled(asker, JobPlan(text, schedule, "", quiet=False), request)
        is_open = request.remind is UNSET and not run_settings(plan)
        if suggested is not None and (plan.is_reminder or is_open):
            plan = msgspec.structs.replace(plan, text=suggested, is_reminder=True)
            is_worded = is_worded or is_open
        asked_in = "this chat" if asker is None else _asked_in(asker, asker.chat_key)
        return self._proposal(plan, now, asked_in, is_worded=is_worded)

    def propose_edit(
        self, asker: JobAsker, job: Job, request: JobRequest, now: float | None = None
    ) -> JobProposal:
        """Check a change of a job. Raise as `propose` does."""
        now = self._clock.now() if now is None else now
        plan = job.plan
        if request.text:
            plan = msgspec.structs.replace(plan, text=request.text)
        zone = self._zone(request) if request.timezone is not UNSET else zone_of(plan, self.zone)
        if request.named_times:
            plan = msgspec.structs.replace(plan, schedule=read_schedule(request, zone, now))
        elif isinstance(plan.schedule, At) and plan.schedule.local and request.timezone is not UNSET:
            moment = datetime.fromisoformat(plan.schedule.local)
            schedule = At(local_instant(moment, zone), plan.schedule.local)
            plan = msgspec.structs.replace(plan, schedule=schedule)
        plan = self._filled(asker, plan, request)
        asked_in = _asked_in(asker, job.origin.chat_key)
        return self._proposal(plan, now, asked_in, is_worded=request.when is not UNSET)

    def _proposal(self, plan: JobPlan, now: float, asked_in: str, *, is_worded: bool) -> JobProposal:
        check_reminder(plan)
        zone = find_zone(plan.zone) if plan.zone else self.zone
        shortest = self.settings().min_interval
        if plan.check:
            shortest = min(shortest, CHECKED_INTERVAL)
        check_schedule(plan.schedule, zone, now, shortest)
        return JobProposal(
            plan,
            describe_schedule(plan.schedule, zone),
            zone_name(zone),
            next_shown(plan.schedule, zone, now),
            next_instant(plan.schedule, zone, now),
            asked_in,
            is_worded,
            self.note,
        )

    def _zone(self, request: JobRequest) -> tzinfo:
        return find_zone(request.timezone) if request.timezone else self.zone

    def _filled(self, asker: JobAsker | None, plan: JobPlan, request: JobRequest) -> JobPlan:
        plan = fill_plan(plan, request)
        if request.to is not UNSET:
            plan = msgspec.structs.replace(plan, to=self._chat(asker, request.to.strip()))
        if request.model:
            self.check_model(plan.model)
        return plan

    def _chat(self, asker: JobAsker | None, to: str) -> str:
        """Return the chat that gets the results. It must be one that the asker may see."""
        if to in ("", NOWHERE):
            return to
        try:
            ChatAddress.parse(ChatKey(to))
        except ValueError:
            raise BadRequest(
                f"{to!r} is not a chat.",
                f'Give the key of a chat, or "{NOWHERE}" for no chat. '
                "`talaria sessions list` shows the keys.",
            ) from None
        if asker is not None and not self.reaches(asker, ChatKey(to)):
            raise BadRequest(f"{to} is not one of your chats.", "Results go to your own chats only.")
        return to

    def reaches(self, asker: JobAsker, chat: ChatKey) -> bool:
        """Return whether results may go to the chat."""
        return self._people.reach(asker.chat_key).includes(chat)

    # -- changing -------------------------------------------------------------------------------------------

    async def add(self, asker: JobAsker, proposal: JobProposal, job_id: JobId | None = None) -> Job:
        """Save a new job. With the `job_id` of an earlier call, the job of that call is returned. Raise
        `LimitReached`."""
        origin = JobOrigin(self._person(asker), asker.chat_key, asker.sender, asker.address)
        most = self.settings().max_jobs
        return await self._jobs.add(
            AddJob(job_id or new_job_id(), origin, proposal.plan, proposal.next_at, most)
        )

    async def edit(self, asker: JobAsker, job: Job, proposal: JobProposal) -> Job:
        """Save a change. A run that is due by the old plan is skipped. Raise `HeadMoved`."""
        self._check_own(asker, job)
        is_same_time = proposal.plan.schedule == job.plan.schedule and proposal.plan.zone == job.plan.zone
        next_at = job.next_at if is_same_time else proposal.next_at
        state = JobState.PAUSED if job.state is JobState.PAUSED else JobState.ACTIVE
        if state is JobState.PAUSED:
            next_at = None
        elif job.state is JobState.DONE:
            next_at = proposal.next_at
        reason = "" if is_same_time else "the job was edited"
        return await self._jobs.edit(EditJob(job.id, job.version, proposal.plan, state, next_at, reason))

    async def pause(self, asker: JobAsker, name: str) -> Job:
        job = await self._own(asker, name)
        if job.state is not JobState.ACTIVE:
            return job
        order = EditJob(job.id, job.version, job.plan, JobState.PAUSED, None, "the job was paused")
        return await self._jobs.edit(order)

    async def resume(self, asker: JobAsker, name: str) -> Job:
        """Let a paused job run again, from its next instant on. Raise `BadRequest` if it has none."""
        job = await self._own(asker, name)
        if job.state is JobState.ACTIVE:
            return job
        asked_in = _asked_in(asker, job.origin.chat_key)
        proposal = self._proposal(job.plan, self._clock.now(), asked_in, is_worded=False)
        order = EditJob(job.id, job.version, job.plan, JobState.ACTIVE, proposal.next_at)
        return await self._jobs.edit(order)

    async def remove(self, asker: JobAsker, name: str) -> Job:
        job = await self._own(asker, name)
        return await self._jobs.remove(job.id)

    async def run(self, asker: JobAsker, name: str) -> tuple[Job, Slot]:
        """Run a job now, beside its schedule. A paused job may be run too."""
        job = await self._own(asker, name)
        instant = round(self._clock.now(), 3)
        if instant.is_integer():
            instant += 0.001  # scheduled instants are whole seconds, and this one is none of them
        slot = await self._jobs.fire(job.id, instant, is_manual=True)
        assert slot is not None
        return job, slot

    # -- looking --------------------------------------------------------------------------------------------

    async def find(self, asker: JobAsker, name: str) -> Job:
        """Return a job by its id or its name. Raise `NotFound`, and `BadRequest` if several have the name."""
        if name.startswith(JOB_PREFIX):
            job = await self._jobs.find(JobId(name))
            if job is not None and self._sees(asker, job):
                return job
            _no_job(name, ())
        named, known = [], list[str]()
        for is_unfinished in (True, False):  # a reminder that is over does not stand for a new one
            page = await self.listing(asker, Page(_LOOKED_AT), is_unfinished=is_unfinished)
            known = [job.name for job in page.items]
            if named := [job for job in page.items if job.name == name]:
                break
        if not named:
            _no_job(name, known)
        if len(named) > 1:
            ids = ", ".join(job.id for job in named[:5])
            raise BadRequest(f"{len(named)} jobs have the name {name!r}.", f"Name one by its id: {ids}.")
        return named[0]

    async def listing(self, asker: JobAsker, page: Page, *, is_unfinished: bool = False) -> JobPage:
        """Return the jobs that the asker may see from the chat, oldest first; with `is_unfinished` those that
        are not done."""
        person = self._person(asker)
        reach = self._people.reach(asker.chat_key)
        if reach.roots is None:
            return await self._jobs.listing(page, is_unfinished=is_unfinished)
        found = await self._jobs.listing(page, person, is_unfinished=is_unfinished)
        return JobPage(tuple(job for job in found.items if self._sees(asker, job)), found.next)

    async def finished(self, asker: JobAsker, limit: int) -> tuple[Job, ...]:
        """Return the jobs that are done and that the asker may see, the last to finish first."""
        owner = None if self._people.reach(asker.chat_key).roots is None else self._person(asker)
        found = await self._jobs.finished(limit, owner)
        return tuple(job for job in found if self._sees(asker, job))

    async def history(self, asker: JobAsker, name: str, page: Page) -> SlotPage:
        """Return the runs of a job, the latest first."""
        job = await self.find(asker, name)
        return await self._jobs.slots(job.id, page)

    def next_runs(self, job: Job, count: int = 3) -> tuple[str, ...]:
        """Return the next instants of a job for people to read, in its zone."""
        if job.next_at is None:
            return ()
        zone = zone_of(job.plan, self.zone)
        first = show_instant(job.next_at, zone)
        return (first, *next_shown(job.plan.schedule, zone, job.next_at, count - 1))

    def describe(self, job: Job) -> str:
        """Return when a job runs, in a few words."""
        return describe_schedule(job.plan.schedule, zone_of(job.plan, self.zone))

    def target(self, job: Job) -> str:
        """Return who gets the results of a job."""
        return name_target(job.plan, name_chat(job.origin.chat_key))

    def zone_name(self, job: Job) -> str:
        return job.plan.zone or zone_name(self.zone)

    # -- rights ---------------------------------------------------------------------------------------------

    def _person(self, asker: JobAsker) -> PersonId:
        return self._people.of_sender(asker.sender, asker.chat_key)

    def _sees(self, asker: JobAsker, job: Job) -> bool:
        return self._people.reach(asker.chat_key).includes(job.origin.chat_key)

    async def _own(self, asker: JobAsker, name: str) -> Job:
        job = await self.find(asker, name)
        self._check_own(asker, job)
        return job

    def _check_own(self, asker: JobAsker, job: Job) -> None:
        person = self._person(asker)
        if person not in (OWNER, job.origin.owner):
            raise BadRequest(f"The job {job.name!r} is another person's.", "Only they can change it.")


def _asked_in(asker: JobAsker, chat_key: ChatKey) -> str:
    """Return how the asker knows the chat that a job belongs to."""
    return "this chat" if asker.in_chat and asker.chat_key == chat_key else name_chat(chat_key)


def _no_job(name: str, known: tuple[()] | list[str]) -> NoReturn:
    raise NotFound(
        f"There is no job {name!r}.",
        did_you_mean(name, known, "`talaria jobs list` and /jobs show the jobs."),
    )


# -- jobs and runs as the API, the command line, the web page and the tool show them ----------------------


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
