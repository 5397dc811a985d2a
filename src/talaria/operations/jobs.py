"""Operations on jobs: create, list, change and run them, and list their runs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from talaria.core.errors import BadRequest, NotFound
from talaria.core.ids import ChatKey, is_session_name
from talaria.core.jobs import ASKING_CHAT, NOWHERE, Job
from talaria.gateway import Records
from talaria.jobs.desk import JobList, JobView, ProposalView, RunList, RunView
from talaria.jobs.requests import JobFields
from talaria.jobs.settings import MAX_TEXT
from talaria.operations.operation import ALL, CHAT, Link, OperationCall, PageQuery, argument, operation

if TYPE_CHECKING:
    from talaria.jobs.desk import JobAsker
    from talaria.jobs.requests import JobRequest

DEFAULT_CHAT: Final = "terminal"  # the chat of jobs that are created without a chat
_MAX_BODY: Final = 128 << 10
_ASKED_WITHIN: Final = 3600.0  # seconds in which a preview can be confirmed
_UNKNOWN = ("not_found",)
_REFUSED = ("not_found", "unclear_schedule", "limit", "no_model")
JobName = Annotated[str, argument("Job name or id.", "NAME_OR_ID")]


class JobQuery(PageQuery, frozen=True):
    unfinished: Annotated[bool, Meta(description="Return only unfinished jobs.")] = False
    finished: Annotated[
        bool, Meta(description="Return only finished jobs, most recently finished first.")
    ] = False


class JobKey(msgspec.Struct, frozen=True):
    id: JobName


class RunQuery(PageQuery, frozen=True, kw_only=True):
    id: JobName


class _ShownJob(JobFields, frozen=True):
    asked_at: Annotated[
        float | UnsetType,
        Meta(description='Start time for relative times such as "in ten minutes". Default: now.'),
    ] = UNSET


class JobBody(_ShownJob, frozen=True):
    """A new job. Its results go to `chat`, one of the caller's chats, unless `to` names another one."""

    text: (
        Annotated[str, argument("Task, optionally with its schedule.", "TEXT", max_length=MAX_TEXT)]
        | UnsetType
    ) = UNSET
    confirm: Annotated[bool, Meta(description="If false, return a preview and save nothing.")] = True
    chat: Annotated[str, Meta(description="Name of the caller's chat that requests the job.")] = DEFAULT_CHAT


class JobChange(_ShownJob, frozen=True, kw_only=True):
    """A change to a job. Fields that are not given keep their values."""

    id: JobName
    state: Annotated[
        Literal["active", "paused"] | UnsetType, Meta(description="Pause or resume the job.")
    ] = UNSET


@operation("jobs.list", "GET /api/jobs", ALL, usage=("talaria jobs list",), tool="list_jobs")
async def list_jobs(records: Records, call: OperationCall, wanted: JobQuery) -> JobList:
    """List jobs, oldest first."""
    desk, asker = records.job_desk(), asker_of(records, call)
    if wanted.finished:
        found = await desk.finished(asker, wanted.limit)
        return JobList(tuple(JobView.of(job, desk) for job in found), None)
    page = await desk.listing(asker, wanted.page, is_unfinished=wanted.unfinished)
    return JobList(tuple(JobView.of(job, desk) for job in page.items), page.next)


@operation(
    "jobs.add",
    "POST /api/jobs",
    CHAT,
    audit="job.add",
    status=201,
    also={200: ProposalView},
    errors=_REFUSED,
    example='{"text": "what is new?", "when": "every weekday at 9"}',
    links=(Link(201, "$response.body#/id", "id", ("GET /api/jobs/{id}", "DELETE /api/jobs/{id}")),),
    max_body=_MAX_BODY,
    usage=(
        'talaria jobs add "remind me in ten minutes to stretch"',
        'talaria jobs add "Call Ada." --remind --at 2026-12-24T18:00',
        'talaria jobs add "what changed in this folder?" --when "every weekday at 9"',
        'talaria jobs add "look at the log" --every 1h --check "./new-errors"',
    ),
    tool="add_job",
)
async def add_job(records: Records, call: OperationCall, wanted: JobBody) -> JobView | ProposalView:
    """Create a job. Set its schedule with `when` (plain words), `every`, `cron` or `at`. Without these, the
    schedule is read from the beginning or end of the text."""
    desk = records.job_desk()
    asker, asked_at = asker_of(records, call, wanted.chat), _asked_at(records, wanted)
    proposal = desk.propose(asker, await _request(records, wanted, asker), asked_at)
    if not wanted.confirm:
        return ProposalView.of(proposal, asked_at)
    job = await desk.add(asker, proposal)
    call.about = job.id
    return JobView.of(job, desk)


@operation("jobs.show", "GET /api/jobs/{id}", ALL, errors=_UNKNOWN, usage=("talaria jobs show news",))
async def show_job(records: Records, call: OperationCall, wanted: JobKey) -> JobView:
    """Show a job and its next run times."""
    return JobView.of(await _find(records, call, wanted.id), records.job_desk())


@operation(
    "jobs.edit",
    "PATCH /api/jobs/{id}",
    CHAT,
    audit="job.edit",
    errors=(*_REFUSED, "head_moved"),
    example='{"state": "paused"}',
    max_body=_MAX_BODY,
    usage=('talaria jobs edit news --when "every day at 7"',),
)
async def edit_job(records: Records, call: OperationCall, wanted: JobChange) -> JobView:
    """Change, pause or resume a job. Fields that are not given keep their values."""
    desk, asker = records.job_desk(), asker_of(records, call)
    job = await _find(records, call, wanted.id)
    change, asked_at = await _request(records, wanted, asker), _asked_at(records, wanted)
    if change.is_any:
        job = await desk.edit(asker, job, desk.propose_edit(asker, job, change, asked_at))
    if wanted.state is not UNSET:
        switch = desk.pause if wanted.state == "paused" else desk.resume
        job = await switch(asker, job.id)
    return JobView.of(job, desk)


@operation(
    "jobs.remove",
    "DELETE /api/jobs/{id}",
    CHAT,
    audit="job.remove",
    errors=_UNKNOWN,
    usage=("talaria jobs remove news",),
)
async def remove_job(records: Records, call: OperationCall, wanted: JobKey) -> JobView:
    """Delete a job with its history. A run in progress is stopped."""
    job, desk = await _find(records, call, wanted.id), records.job_desk()
    return JobView.of(await desk.remove(asker_of(records, call), job.id), desk)


@operation(
    "jobs.run",
    "POST /api/jobs/{id}/run",
    CHAT,
    audit="job.run",
    status=202,
    errors=_UNKNOWN,
    usage=("talaria jobs run news",),
)
async def run_job(records: Records, call: OperationCall, wanted: JobKey) -> RunView:
    """Run a job now, in addition to its schedule. The run takes place in the gateway."""
    job = await _find(records, call, wanted.id)
    _, slot = await records.job_desk().run(asker_of(records, call), job.id)
    return RunView.of(slot)


@operation(
    "jobs.history", "GET /api/jobs/{id}/runs", ALL, errors=_UNKNOWN, usage=("talaria jobs history news",)
)
async def list_runs(records: Records, call: OperationCall, wanted: RunQuery) -> RunList:
    """List the runs of a job, newest first."""
    job = await _find(records, call, wanted.id)
    page = await records.job_desk().history(asker_of(records, call), job.id, wanted.page)
    return RunList(tuple(map(RunView.of, page.items)), page.next)


async def _find(records: Records, call: OperationCall, name: str) -> Job:
    call.about = name
    return await records.job_desk().find(asker_of(records, call), name)


def asker_of(records: Records, call: OperationCall, chat: str = DEFAULT_CHAT) -> JobAsker:
    from talaria.jobs.desk import JobAsker  # noqa: PLC0415 - with the first job

    if not is_session_name(chat):
        raise BadRequest(f"{chat!r} is not a valid chat name.", "Use a name such as terminal.")
    chat_key = call.caller.chat_key(records.settings.agent.name, chat)
    return JobAsker(call.caller.sender, chat_key, in_chat=False)


def _asked_at(records: Records, wanted: _ShownJob) -> float:
    """Return the time from which words count: when they were shown, or now."""
    now = records.clock.now()
    if wanted.asked_at is UNSET:
        return now
    if not now - _ASKED_WITHIN <= wanted.asked_at <= now + 1:
        raise BadRequest("The preview is out of date.", "Request a new preview, then confirm it.")
    return wanted.asked_at


async def _request(records: Records, wanted: JobFields, asker: JobAsker) -> JobRequest:
    from talaria.jobs.requests import JobRequest  # noqa: PLC0415

    fields = {name: getattr(wanted, name) for name in JobFields.__struct_fields__}
    if wanted.to is not UNSET and wanted.to not in (ASKING_CHAT, NOWHERE):
        fields["to"] = await _find_chat(records, wanted.to, asker)
    return JobRequest(**fields)


async def _find_chat(records: Records, name: str, asker: JobAsker) -> ChatKey:
    """Return the chat. Raises the same `NotFound` if there is none and if the asker may not see it."""
    with suppress(NotFound):
        if records.job_desk().reaches(asker, key := await records.sender.find_chat(name)):
            return key
    raise NotFound(f"There is no chat {name} among your chats.", "Results go to your own chats only.")


JOB_OPERATIONS: Final = (list_jobs, add_job, show_job, edit_job, remove_job, run_job, list_runs)
