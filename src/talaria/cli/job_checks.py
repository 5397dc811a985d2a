"""The checks of `talaria doctor` for jobs: those that are paused, late, or cannot run or be heard."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial

from talaria.channels.console.gateway_client import GatewayClient
from talaria.channels.descriptor import find_address
from talaria.cli.operations import open_records
from talaria.cli.text import count
from talaria.config.home import Home
from talaria.config.settings import Settings
from talaria.core.errors import TalariaError
from talaria.core.gateway_part import Parts
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.jobs import MAX_FAILURES, NOWHERE, JobState
from talaria.core.problems import Problem, ok, shell, warn
from talaria.core.text import clean_line
from talaria.jobs.views import JobView
from talaria.jobs.zones import agent_zone, is_zone, zone_name
from talaria.operations.jobs import JobQuery, list_jobs
from talaria.store.engines import read_jobs
from talaria.store.home_lock import HomeLock

_LOOKED_AT = 500  # jobs
_NAMED = 3  # jobs in a finding
_GRACE = 120.0  # seconds that a job may be late


async def find_jobs(home: Home, settings: Settings, client: GatewayClient | None) -> tuple[JobView, ...]:
    """Return the unfinished jobs of the running gateway, or of the database that no process uses; none of a
    database that cannot be read now, of which other checks tell. Read-only."""
    if client is not None:
        return (await client.carry_out(list_jobs, JobQuery(limit=_LOOKED_AT, unfinished=True))).items
    if settings.store.url or not home.database.exists():
        return ()
    lock = HomeLock(home.path)
    try:
        lock.acquire()
    except TalariaError:
        return ()
    try:
        async with open_records(home, None) as records:
            desk = records.job_desk()
            return tuple(JobView.of(job, desk) for job in read_jobs(home.database, _LOOKED_AT))
    except TalariaError:
        return ()
    finally:
        lock.release()


async def check_jobs(
    jobs: Sequence[JobView], home: Home, settings: Settings, parts: Parts, *, is_running: bool
) -> AsyncIterator[Problem]:
    """Yield what keeps jobs from running, and results from arriving. Nothing if there are no jobs."""
    if not jobs:
        return
    active = [job for job in jobs if job.state == JobState.ACTIVE]
    found = [*_paused(jobs), *_unknown_zones(jobs, settings)]
    found += _unreachable(active, settings, parts)
    late = [job for job in active if job.next_at is not None and job.next_at < time.time() - _GRACE]
    if late and not is_running:
        found.append(
            warn(
                "jobs",
                f"{count(len(late), 'job')} should have run: {_names(late)}. No gateway runs.",
                "`talaria serve` runs jobs, also those that were missed.",
            )
        )
    if checked := [job for job in active if job.check]:
        from talaria.workspace.sandbox.choice import choose

        choice = await choose(settings.tools.sandbox, home.path)
        if choice.sandbox is None:
            text = f"There is no sandbox for the checks of {_names(checked)}, so these jobs fail."
            found.append(warn("jobs", text, choice.hint, choice.command))
    for finding in found or [ok("jobs", f"{count(len(active), 'job')} active.")]:
        yield finding


def _paused(jobs: Iterable[JobView]) -> Iterator[Problem]:
    for job in _first(job for job in jobs if job.state == JobState.PAUSED and job.failures >= MAX_FAILURES):
        text = f"The job {_names([job])} is paused: {job.reason}."
        fix = f"`talaria jobs history {shell(job.id)}` tells why. When it is mended:"
        yield warn("jobs", text, fix, f"talaria jobs resume {shell(job.id)}")


def _unknown_zones(jobs: Iterable[JobView], settings: Settings) -> Iterator[Problem]:
    usual = zone_name(agent_zone(settings.agent.timezone))
    for job in _first(job for job in jobs if job.timezone != usual and not is_zone(job.timezone)):
        text = f"The job {_names([job])} has a time zone that this machine does not know: {job.timezone}."
        yield warn("jobs", text, "Give it another one:", f"talaria jobs edit {job.id} --timezone UTC")


def _unreachable(jobs: Iterable[JobView], settings: Settings, parts: Parts) -> Iterator[Problem]:
    find = partial(find_address, parts, settings.of, settings.agent.name)
    told: set[str] = set()
    for job in jobs:
        chat = job.to or job.chat_key
        if chat == NOWHERE or chat in told or len(told) == _NAMED:
            continue
        try:
            find(ChatAddress.parse(ChatKey(chat)))
        except TalariaError as error:
            told.add(chat)
            yield warn("jobs", f"Results of {_names([job])} cannot arrive: {error.user_text}", error.hint)


def _first(jobs: Iterable[JobView]) -> list[JobView]:
    return [*jobs][:_NAMED]


def _names(jobs: list[JobView]) -> str:
    named = ", ".join(f"“{clean_line(job.name, 40)}”" for job in jobs[:_NAMED])
    return f"{named} and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else named
