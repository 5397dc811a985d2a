"""`talaria jobs`: makes, lists, changes and runs jobs, through the running gateway or in the store."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import click

from talaria.access.people import People
from talaria.channels.console.gateway_client import GatewayClient
from talaria.channels.http.callers import HOME_CALLER
from talaria.channels.http.job_api import DEFAULT_CHAT
from talaria.cli.home_gateway import GatewayOrStore, ask_home
from talaria.cli.options import Invocation, group
from talaria.cli.text import columns, when
from talaria.config.load import load
from talaria.config.settings import Settings
from talaria.core.clock import SystemClock
from talaria.core.display import clean, clean_line
from talaria.core.job_port import JobStore
from talaria.core.jobs import Missed, Overlap, SessionMode
from talaria.core.ledger import Page
from talaria.jobs.desk import JobAsker, JobDesk
from talaria.jobs.requests import JobRequest
from talaria.jobs.views import JobList, JobView, ProposalView, RunList, RunView
from talaria.jobs.zones import agent_zone
from talaria.parts import PARTS
from talaria.store.memory import MemoryStore

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])
Fields = dict[str, Any]


@group("jobs", 'talaria jobs add "what is new?" --when "every weekday at 9"', "talaria jobs list")
def command() -> None:
    """Make, list, change and run jobs: work for later, or again and again.

    A job says what is to be done and when, in plain words (--when "every weekday at 9", --when "in 20
    minutes"), as an interval, as cron or as a time. The next three times are shown before it is saved.
    """


def _job_options(function: F) -> F:
    """The options that `add` and `edit` share."""
    choices = click.Choice
    for option in reversed(
        (
            click.option("--when", metavar="WORDS", help='In plain words: "every weekday at 9".'),
            click.option("--every", metavar="DURATION", help="Again and again, such as 10m."),
            click.option("--cron", metavar="FIELDS", help='Five fields, such as "0 9 * * 1-5".'),
            click.option("--at", metavar="TIME", help="Once, such as 2026-12-24T18:00."),
            click.option("--name", help="A short name."),
            click.option("--timezone", metavar="ZONE", help="Default: the agent's."),
            click.option("--session", type=choices([each.value for each in SessionMode]), help="Of a run."),
            click.option("--to", metavar="CHAT", help='The chat for results, or "none".'),
            click.option("--model", metavar="NAME", help="Default: the agent's."),
            click.option("--check", metavar="COMMAND", help="Runs first; without output nothing follows."),
            click.option(
                "--missed",
                type=choices([each.value for each in Missed]),
                help="After a downtime.",
            ),
            click.option("--deadline", metavar="DURATION", help="The most time for one run."),
            click.option("--retries", type=int, help="Further tries after a failure."),
            click.option(
                "--overlap", type=choices([each.value for each in Overlap]), help="If a run still goes on."
            ),
            click.option(
                "--remind/--no-remind",
                default=None,
                help='Send the text as it is, without a model. Default: yes if it says "remind me".',
            ),
            click.option(
                "--quiet/--no-quiet",
                default=None,
                help="Send nothing if the model answers exactly NO_REPLY. Default: no.",
            ),
            click.option("--yes", is_flag=True, help="Do not ask."),
        )
    ):
        function = option(function)
    return function


@command.verb(
    "add",
    'talaria jobs add "remind me in ten minutes to stretch"',
    'talaria jobs add "Call Ada." --remind --at 2026-12-24T18:00',
    'talaria jobs add "what changed in this folder?" --when "every weekday at 9"',
    'talaria jobs add "look at the log" --every 1h --check "./new-errors"',
)
@click.argument("text")
@_job_options
def _add(invocation: Invocation, text: str, yes: bool, **options: Any) -> None:
    """Make a job. Without a time option the text says when, at its beginning or end."""
    fields = _given(options) | {"text": text}
    proposal = _with_jobs(invocation, lambda jobs: jobs.propose(fields), make=True)
    _confirm(invocation, proposal, yes=yes)
    fields["asked_at"] = proposal.asked_at
    job = _with_jobs(invocation, lambda jobs: jobs.add(fields), make=True)
    click.echo(f"Saved {job.id}.")


@command.verb("edit", 'talaria jobs edit news --when "every day at 7"')
@click.argument("job", metavar="NAME_OR_ID")
@click.option("--text", help="What is to be done.")
@_job_options
def _edit(invocation: Invocation, job: str, yes: bool, **options: Any) -> None:
    """Change a job. What is not named stays as it is."""
    fields = _given(options)
    if not fields:
        raise click.UsageError("Name what to change, such as --when or --text.")
    if {"when", "every", "cron", "at"} & fields.keys():
        found = _with_jobs(invocation, lambda jobs: jobs.job(job))
        shown = {"text": found.text, "check": found.check, "remind": found.reminder} | fields
        proposal = _with_jobs(invocation, lambda jobs: jobs.propose(shown))
        _confirm(invocation, proposal, yes=yes)
        fields["asked_at"] = proposal.asked_at
    _show_job(invocation, _with_jobs(invocation, lambda jobs: jobs.edit(job, fields)))


def _given(options: Fields) -> Fields:
    return {name: value for name, value in options.items() if value is not None}


def _confirm(invocation: Invocation, proposal: ProposalView, *, yes: bool) -> None:
    """Show what would be saved. Ask a person, if the time or the kind was said in words."""
    for line in proposal.lines:
        click.echo(clean(invocation.spoken(line)))
    if yes or not proposal.worded:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            "Cannot ask for confirmation without a terminal. If the lines above are right, add --yes."
        )
    click.confirm("Save it?", default=True, abort=True)


@command.verb("list", "talaria jobs list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500), help="How many at most.")
@click.option("--all", "is_all", is_flag=True, help="Also those that are done.")
def _list(invocation: Invocation, limit: int, is_all: bool) -> None:
    """The jobs that are not done, oldest first."""
    found = _with_jobs(invocation, lambda jobs: jobs.jobs(limit, is_unfinished=not is_all))
    if not found.items:
        click.echo(invocation.spoken("There are no jobs. `talaria jobs add` makes one."))
        return
    rows = [("NEXT", "WHEN", "NAME", "STATE", "ID")]
    for job in found.items:
        following = job.next[0] if job.next else "-"
        rows.append((following, job.schedule, clean_line(job.name, 40), job.state, job.id))
    click.echo(columns(rows))
    if found.next is not None:
        click.echo(f"… and more; --limit {min(limit * 5, 500)} shows more of them.", err=True)


@command.verb("show", "talaria jobs show news")
@click.argument("job", metavar="NAME_OR_ID")
def _show(invocation: Invocation, job: str) -> None:
    """A job with its next times."""
    _show_job(invocation, _with_jobs(invocation, lambda jobs: jobs.job(job)))


@command.verb("run", "talaria jobs run news")
@click.argument("job", metavar="NAME_OR_ID")
def _run(invocation: Invocation, job: str) -> None:
    """Run a job now, beside its schedule. It runs in the gateway."""
    run = _with_jobs(invocation, lambda jobs: jobs.run(job))
    click.echo(f"{run.id} is due now; the gateway runs it, or does when it starts.")


@command.verb("pause", "talaria jobs pause news")
@click.argument("job", metavar="NAME_OR_ID")
def _pause(invocation: Invocation, job: str) -> None:
    """Let a job rest until it is resumed."""
    _show_job(invocation, _with_jobs(invocation, lambda jobs: jobs.edit(job, {"state": "paused"})))


@command.verb("resume", "talaria jobs resume news")
@click.argument("job", metavar="NAME_OR_ID")
def _resume(invocation: Invocation, job: str) -> None:
    """Let a paused job run again, from its next time on."""
    _show_job(invocation, _with_jobs(invocation, lambda jobs: jobs.edit(job, {"state": "active"})))


@command.verb("remove", "talaria jobs remove news")
@click.argument("job", metavar="NAME_OR_ID")
def _remove(invocation: Invocation, job: str) -> None:
    """Remove a job with its history. A run that goes on ends."""
    removed = _with_jobs(invocation, lambda jobs: jobs.remove(job))
    click.echo(f"Removed {removed.id} “{clean_line(removed.name, 60)}”.")


@command.verb("history", "talaria jobs history news")
@click.argument("job", metavar="NAME_OR_ID")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 500), help="How many at most.")
def _history(invocation: Invocation, job: str, limit: int) -> None:
    """The runs of a job, the latest first."""
    found = _with_jobs(invocation, lambda jobs: jobs.runs(job, limit))
    if not found.items:
        click.echo("It has not run yet.")
        return
    rows = [("TIME", "STATE", "TOOK", "COST", "REASON", "TURN")]
    for run in found.items:
        took = f"{run.ended_at - run.started_at:.0f} s" if run.ended_at and run.started_at else "-"
        reason = clean_line(run.reason, 60) or "-"
        rows.append((run.slot, run.state.value, took, f"${run.cost_usd}", reason, run.turn_id or "-"))
    click.echo(columns(rows))


def _show_job(invocation: Invocation, job: JobView) -> None:
    state = f"{job.state}: {job.reason}" if job.reason else job.state
    kind = "Reminder" if job.reminder else "Job"
    rows = [(kind, f"{job.id} “{clean_line(job.name, 60)}”"), ("State", state)]
    rows += [("When", f"{job.schedule} ({job.timezone})")]
    rows += [("Next" if n == 0 else "", instant) for n, instant in enumerate(job.next)]
    rows += [("Text", clean_line(job.text, 200))]
    rows += [("Results go to", clean_line(invocation.spoken(job.results_to), 200))]
    for name in ("check", "model"):
        if value := getattr(job, name):
            rows.append((name.capitalize(), clean_line(value, 200)))
    rows += [("Session", job.session), ("Missed", job.missed), ("Made", when(job.created_at))]
    click.echo(columns(rows))


# -- where the jobs are -----------------------------------------------------------------------------------


class Jobs(Protocol):
    """Jobs, in a running gateway or in a store."""

    async def propose(self, fields: Fields) -> ProposalView: ...

    async def add(self, fields: Fields) -> JobView: ...

    async def edit(self, name: str, fields: Fields) -> JobView: ...

    async def remove(self, name: str) -> JobView: ...

    async def run(self, name: str) -> RunView: ...

    async def job(self, name: str) -> JobView: ...

    async def jobs(self, limit: int, *, is_unfinished: bool) -> JobList: ...

    async def runs(self, name: str, limit: int) -> RunList: ...


class GatewayJobs:
    """Jobs of a running gateway."""

    def __init__(self, client: GatewayClient) -> None:
        self._client = client

    async def propose(self, fields: Fields) -> ProposalView:
        return await self._client.ask("POST", "/api/jobs", ProposalView, fields | {"confirm": False})

    async def add(self, fields: Fields) -> JobView:
        return await self._client.ask("POST", "/api/jobs", JobView, fields)

    async def edit(self, name: str, fields: Fields) -> JobView:
        return await self._client.ask("PATCH", _path(name), JobView, fields)

    async def remove(self, name: str) -> JobView:
        return await self._client.ask("DELETE", _path(name), JobView)

    async def run(self, name: str) -> RunView:
        return await self._client.ask("POST", f"{_path(name)}/run", RunView)

    async def job(self, name: str) -> JobView:
        return await self._client.ask("GET", _path(name), JobView)

    async def jobs(self, limit: int, *, is_unfinished: bool) -> JobList:
        path = f"/api/jobs?limit={limit}{'&unfinished=1' if is_unfinished else ''}"
        return await self._client.ask("GET", path, JobList)

    async def runs(self, name: str, limit: int) -> RunList:
        return await self._client.ask("GET", f"{_path(name)}/runs?limit={limit}", RunList)


def _path(name: str) -> str:
    return f"/api/jobs/{quote(name, safe='')}"


class StoredJobs:
    """Jobs in a store that no gateway uses. They run when a gateway starts."""

    def __init__(self, desk: JobDesk, asker: JobAsker) -> None:
        self._desk = desk
        self._asker = asker

    async def propose(self, fields: Fields) -> ProposalView:
        now = SystemClock().now()
        return ProposalView.of(self._desk.propose(self._asker, _request(fields), now), now)

    async def add(self, fields: Fields) -> JobView:
        proposal = self._desk.propose(self._asker, _request(fields), fields.get("asked_at"))
        return self._view(await self._desk.add(self._asker, proposal))

    async def edit(self, name: str, fields: Fields) -> JobView:
        job = await self._desk.find(self._asker, name)
        if (state := fields.get("state")) is not None:
            change = self._desk.pause if state == "paused" else self._desk.resume
            return self._view(await change(self._asker, job.id))
        proposal = self._desk.propose_edit(self._asker, job, _request(fields), fields.get("asked_at"))
        return self._view(await self._desk.edit(self._asker, job, proposal))

    async def remove(self, name: str) -> JobView:
        return self._view(await self._desk.remove(self._asker, name))

    async def run(self, name: str) -> RunView:
        _, slot = await self._desk.run(self._asker, name)
        return RunView.of(slot)

    async def job(self, name: str) -> JobView:
        return self._view(await self._desk.find(self._asker, name))

    async def jobs(self, limit: int, *, is_unfinished: bool) -> JobList:
        page = await self._desk.listing(self._asker, Page(limit), is_unfinished=is_unfinished)
        return JobList(tuple(map(self._view, page.items)), page.next)

    async def runs(self, name: str, limit: int) -> RunList:
        page = await self._desk.history(self._asker, name, Page(limit))
        return RunList(tuple(map(RunView.of, page.items)), page.next)

    def _view(self, job: Any) -> JobView:
        return JobView.of(job, self._desk)


def _request(fields: Fields) -> JobRequest:
    return JobRequest(**{name: value for name, value in fields.items() if name not in ("asked_at", "state")})


def stored_desk(jobs: JobStore, settings: Settings) -> JobDesk:
    zone = agent_zone(settings.agent.timezone)
    return JobDesk(jobs, People(), SystemClock(), zone=zone, settings=lambda: settings.jobs)


def _with_jobs(invocation: Invocation, use: Callable[[Jobs], Awaitable[T]], *, make: bool = False) -> T:
    """Return what `use` returns, given the jobs of the running gateway or of the store."""

    def at(found: GatewayOrStore) -> Awaitable[T]:
        if isinstance(found, GatewayClient):
            return use(GatewayJobs(found))
        settings = load(invocation.home().path, os.environ, PARTS).settings
        # A home without a database has no jobs.
        store = MemoryStore(SystemClock()) if isinstance(found, Path) else found
        desk = stored_desk(store.jobs, settings)
        chat = HOME_CALLER.chat_key(settings.agent.name, DEFAULT_CHAT)
        return use(StoredJobs(desk, JobAsker(HOME_CALLER.sender, chat, in_chat=False)))

    return ask_home(invocation, at, make=make)
