"""`talaria jobs`: creates, lists, changes and runs jobs, through the running gateway or in the store."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from talaria.cli.operations import YES, Verb, add_verbs, ask
from talaria.cli.options import Invocation, confirm, group
from talaria.cli.text import columns, when
from talaria.core.text import clean, clean_line
from talaria.jobs.desk import JobList, JobView, ProposalView, RunList, RunView
from talaria.operations.jobs import (
    JobBody,
    JobChange,
    JobKey,
    JobQuery,
    RunQuery,
    add_job,
    edit_job,
    show_job,
)
from talaria.operations.operation import given_fields

_TIMES = ("when", "every", "cron", "at")
_ALL = click.Option(["--all", "is_all"], is_flag=True, help="Include finished jobs.")


@group("jobs", 'talaria jobs add "what is new?" --when "every weekday at 9"', "talaria jobs list")
def command() -> None:
    """Create, list, change and run jobs: tasks that run later or repeatedly.

    Give the schedule in plain words (--when "every weekday at 9", --when "in 20 minutes"), as an interval, as
    a cron expression or as a time. You see the next three run times before the job is saved.
    """


# -- before the operation ---------------------------------------------------------------------------------


def _confirm_new(invocation: Invocation, wanted: JobBody, options: dict[str, Any]) -> JobBody:
    proposal = _preview(invocation, wanted, options)
    return msgspec.structs.replace(wanted, asked_at=proposal.asked_at)


def _confirm_change(invocation: Invocation, wanted: JobChange, options: dict[str, Any]) -> JobChange:
    fields = given_fields(wanted)
    del fields["id"]
    if not fields:
        raise click.UsageError("Nothing to change. Add an option such as --when or --text.")
    if not fields.keys() & set(_TIMES):
        return wanted
    job = ask(invocation, show_job, JobKey(wanted.id))
    shown = {"text": job.text, "check": job.check, "remind": job.reminder} | fields
    proposal = _preview(invocation, msgspec.convert(shown, JobBody), options)
    return msgspec.structs.replace(wanted, asked_at=proposal.asked_at)


def _preview(invocation: Invocation, wanted: JobBody, options: dict[str, Any]) -> ProposalView:
    """Show the preview, on stderr if the answer is JSON. Ask for confirmation if the schedule was given in
    words."""
    proposal = ask(invocation, add_job, msgspec.structs.replace(wanted, confirm=False), make=True)
    assert isinstance(proposal, ProposalView)
    for line in proposal.lines:
        click.echo(clean(invocation.spoken(line)), err=options["as_json"])
    if proposal.worded:
        confirm("Save it?", yes=options["yes"], default=True)
    return proposal


def _choose_unfinished(invocation: Invocation, wanted: JobQuery, options: dict[str, Any]) -> JobQuery:
    return msgspec.structs.replace(wanted, unfinished=not options["is_all"])


# -- answers ----------------------------------------------------------------------------------------------


def _show_saved(invocation: Invocation, wanted: JobBody, job: JobView) -> None:
    click.echo(f"Saved {job.id}.")


def _show_list(invocation: Invocation, wanted: JobQuery, found: JobList) -> None:
    if not found.items:
        click.echo(invocation.spoken("There are no jobs. `talaria jobs add` creates one."))
        return
    rows = [("NEXT", "WHEN", "NAME", "STATE", "ID")]
    for job in found.items:
        following = job.next[0] if job.next else "-"
        rows.append((following, job.schedule, clean_line(job.name, 40), job.state, job.id))
    click.echo(columns(rows))
    if found.next is not None:
        click.echo(f"… and more; --limit {min(wanted.limit * 5, 500)} shows more of them.", err=True)


def _show_job(invocation: Invocation, wanted: JobKey | JobChange, job: JobView) -> None:
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


def _show_run(invocation: Invocation, wanted: JobKey, run: RunView) -> None:
    click.echo(f"{run.id} is due now; the gateway runs it, or does when it starts.")


def _show_removed(invocation: Invocation, wanted: JobKey, job: JobView) -> None:
    click.echo(f"Removed {job.id} “{clean_line(job.name, 60)}”.")


def _show_history(invocation: Invocation, wanted: RunQuery, found: RunList) -> None:
    if not found.items:
        click.echo("The job has not run yet.")
        return
    rows = [("TIME", "STATE", "TOOK", "COST", "REASON", "TURN")]
    for run in found.items:
        took = f"{run.ended_at - run.started_at:.0f} s" if run.ended_at and run.started_at else "-"
        reason = clean_line(run.reason, 60) or "-"
        rows.append((run.slot, run.state.value, took, f"${run.cost_usd}", reason, run.turn_id or "-"))
    click.echo(columns(rows))


add_verbs(
    command,
    {
        "add": Verb(
            _confirm_new,
            _show_saved,
            (YES,),
            frozenset({"confirm", "chat", "asked_at", "tools"}),
            makes_home=True,
        ),
        "edit": Verb(_confirm_change, _show_job, (YES,), frozenset({"asked_at", "state", "tools"})),
        "list": Verb(_choose_unfinished, _show_list, (_ALL,), frozenset({"after", "unfinished", "finished"})),
        "show": Verb(show=_show_job),
        "run": Verb(show=_show_run),
        "remove": Verb(show=_show_removed),
        "history": Verb(show=_show_history, without=frozenset({"after"})),
    },
)


@command.verb("pause", "talaria jobs pause news")
@click.argument("job", metavar="NAME_OR_ID")
def _pause(invocation: Invocation, job: str) -> None:
    """Pause a job until you resume it."""
    _switch(invocation, JobChange(id=job, state="paused"))


@command.verb("resume", "talaria jobs resume news")
@click.argument("job", metavar="NAME_OR_ID")
def _resume(invocation: Invocation, job: str) -> None:
    """Resume a paused job. It runs again at its next scheduled time."""
    _switch(invocation, JobChange(id=job, state="active"))


def _switch(invocation: Invocation, wanted: JobChange) -> None:
    _show_job(invocation, wanted, ask(invocation, edit_job, wanted))
