"""Jobs of other programs. They are imported paused, because the other program still runs them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from talaria.core.errors import BadRequest, LimitReached
from talaria.core.ids import JOB_PREFIX, ChatAddress, ChatKey, JobId
from talaria.core.jobs import (
    NOWHERE,
    AddJob,
    At,
    Cron,
    EditJob,
    Every,
    JobOrigin,
    JobPlan,
    JobState,
    Schedule,
)
from talaria.core.text import clean_line
from talaria.core.turns import Sender
from talaria.imports.item import ImportItem, ImportKind, ImportState
from talaria.imports.logs import derived_id
from talaria.imports.source import clean_text
from talaria.imports.target import Planned, Target
from talaria.jobs.schedules import agent_zone, check_schedule, find_zone, is_zone, local_instant
from talaria.jobs.settings import MAX_TEXT

_MAX_NAME: Final = 80


class FoundJob(msgspec.Struct, frozen=True):
    """A job of a source. `to` is the chat that gets the results, `sender` the person who asked for it in
    `chat`, and `notes` are what a person should know."""

    text: str
    schedule: Schedule
    zone: str
    to: str
    chat: ChatKey
    sender: Sender
    notes: tuple[str, ...] = ()


class SourceJob(msgspec.Struct, frozen=True):
    """How a job is known. The same `program`, `id` and `created` give the same job here."""

    program: str
    title: str  # of the program
    id: str
    created: str
    name: str


async def plan_job(target: Target, key: SourceJob, read: Callable[[], FoundJob]) -> Planned:
    """Return the item of a job. A job that was imported before is not changed. `read` raises `BadRequest` for
    one that cannot be imported."""
    job_id = JobId(JOB_PREFIX + derived_id(key.program, "job", f"{key.id}:{key.created}"))
    name = clean_line(key.name or key.id, _MAX_NAME)
    item = ImportItem(f"job:{clean_line(key.id)}", ImportKind.JOB, name, ImportState.PLANNED, job_id)
    known = await target.store.jobs.find(job_id)
    if known is not None and not (known.state is JobState.ACTIVE and known.next_at is None):
        return item.skip("It was imported before."), None
    try:
        found = read()
        text = _checked(found.text)
        zone = find_zone(found.zone) if found.zone else agent_zone(target.settings.agent.timezone)
        check_schedule(found.schedule, zone, target.store.clock.now(), target.settings.jobs.min_interval)
    except BadRequest as error:
        return item.skip(f"{error.user_text} {error.hint}".strip()), None
    name = f"_{name}"[:_MAX_NAME] if name.startswith(JOB_PREFIX) else name
    plan = JobPlan(text, found.schedule, found.zone, name=name, to=found.to)
    item = msgspec.structs.replace(item, note=" ".join(found.notes))
    return item, partial(_apply, target, item, plan, _origin(target, found), key.title)


def _checked(text: str) -> str:
    text = clean_text(text).strip()
    if not text or len(text) > MAX_TEXT:
        raise BadRequest(f"Its text has {len(text)} characters.", f"A job here has 1 to {MAX_TEXT}.")
    return text


async def _apply(
    target: Target, item: ImportItem, plan: JobPlan, origin: JobOrigin, title: str
) -> ImportItem:
    """Add the job without a next time, then pause it: it never runs, wherever the import is killed."""
    jobs = target.store.jobs
    try:
        most = target.settings.jobs.max_jobs
        job = await jobs.add(AddJob(JobId(item.target), origin, plan, None, most))
    except LimitReached as error:
        return item.skip(f"{error.user_text} {error.hint}")
    if job.state is JobState.PAUSED:
        return item.skip("It is the same job as another one.")
    await jobs.edit(EditJob(job.id, job.version, job.plan, JobState.PAUSED, None, f"imported from {title}"))
    return item.done()


def _origin(target: Target, found: FoundJob) -> JobOrigin:
    address = ChatAddress.parse(found.chat)
    owner = target.people.of_sender(found.sender, found.chat)
    if address.channel == "http":
        return JobOrigin(owner, found.chat, found.sender)
    try:
        place = target.address_of(address)
    except BadRequest:
        place = None
    return JobOrigin(owner, found.chat, found.sender, place)


def find_receiver(target: Target, key: ChatKey | None, named: str, notes: list[str]) -> str:
    """Return the chat that gets the results of a job, and note what is missing for that."""
    if key is None:
        notes.append(f"Its receiver {named!r} is not a chat that is known here, so nobody gets its results.")
        return NOWHERE
    try:
        target.address_of(ChatAddress.parse(key))
    except BadRequest as error:
        notes.append(f"Before you resume it: {error.user_text} {error.hint}")
    return key


# -- schedules --------------------------------------------------------------------------------------------


def known_zone(name: object) -> str:
    return name if isinstance(name, str) and is_zone(name) else ""


def cron(text: object) -> Cron:
    return Cron(" ".join(str(text).split()))


def every(seconds: object, since: float) -> Every:
    if not isinstance(seconds, int) or seconds < 60:
        raise BadRequest(f"Its interval is {seconds!r} seconds.")
    return Every(seconds, float(round(since)))


def once(text: object, zone: str, target: Target) -> At:
    """Return the schedule of a single run. A time without an offset is in the zone."""
    try:
        moment = datetime.fromisoformat(str(text))
        zone_here = find_zone(zone) if zone else agent_zone(target.settings.agent.timezone)
        at = local_instant(moment, zone_here) if moment.tzinfo is None else moment.timestamp()
    except (ValueError, OverflowError):
        at = -1.0
    if at < 0:
        raise BadRequest(f"Its time {str(text)[:80]!r} is not a date.")
    return At(at)


def instant(text: object, otherwise: float) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return otherwise
