"""`/jobs` in chats: lists jobs, shows what a new one would do, and saves it once the person says so.

A new job is said in plain words. `/jobs add` shows its next times and saves nothing; `/jobs save` saves what
the last `/jobs add` of the same person in the same session has shown. Nothing is kept in between but the
turns themselves, so a restart loses nothing, and a second `/jobs save` saves nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator

from talaria.commands.command import CommandResult, parse_command
from talaria.core.delivery import Button
from talaria.core.errors import BadRequest
from talaria.core.ids import JOB_PREFIX, TURN_PREFIX, JobId
from talaria.core.jobs import Job, JobState, Slot
from talaria.core.ledger import Page
from talaria.core.spending import to_usd
from talaria.core.text import clean_line
from talaria.core.turns import Turn, TurnState
from talaria.jobs.desk import JobAsker, JobDesk
from talaria.jobs.requests import JobRequest
from talaria.jobs.schedules import show_instant
from talaria.store.store import Store

_LISTED = 30
_SHOWN_RUNS = 5
_RECENT = 20  # turns in which the last `/jobs add` is looked for
_NAMED = ("show", "pause", "resume", "remove", "run")
_USAGE = (
    "`/jobs` lists the jobs, `/jobs add every weekday at 9 what changed here?` makes one, and `/jobs "
    "show|run|pause|resume|remove NAME` acts on one."
)


class JobCommands:
    """Answers `/jobs` for the person and the chat of a turn."""

    def __init__(self, desk: JobDesk, store: Store) -> None:
        self._desk = desk
        self._store = store

    async def answer(self, turn: Turn, args: str) -> CommandResult:
        """Raises `BadRequest`, `NotFound` and `LimitReached`, whose texts are for the person."""
        asker = JobAsker(turn.inbound.sender, turn.chat_key, turn.inbound.address)
        verb, _, rest = args.partition(" ")
        verb, rest = verb.lower(), rest.strip()
        if not args:
            return await self._list(asker)
        if verb == "add" and rest:
            proposal = self._desk.propose(asker, JobRequest(text=rest), turn.accepted_at)
            lines = [*proposal.lines(), "", "`/jobs save` saves it. Nothing is saved yet."]
            return CommandResult("\n".join(lines), buttons=(Button("Save", "/jobs save"),))
        if verb == "save" and not rest:
            return await self._save(turn, asker)
        if verb in _NAMED and rest:
            return await self._act(asker, verb, rest)
        raise BadRequest(f"/jobs does not know {clean_line(args, 60)!r}.", _USAGE)

    async def _list(self, asker: JobAsker) -> CommandResult:
        page = await self._desk.listing(asker, Page(_LISTED), is_unfinished=True)
        if not page.items:
            return CommandResult(f"There are no jobs yet. {_USAGE}")
        lines = [self._line(job) for job in page.items]
        if page.next is not None:
            lines.append("There are more: `talaria jobs list` and the page show all.")
        return CommandResult("\n".join(lines))

    def _line(self, job: Job) -> str:
        following = self._desk.next_runs(job, 1)
        state = f"next {following[0]}" if following else job.state.value
        why = f" ({job.reason})" if job.state is JobState.PAUSED and job.reason else ""
        return f"- {clean_line(job.name, 60)}: {self._desk.describe(job)}, {state}{why}"

    async def _save(self, turn: Turn, asker: JobAsker) -> CommandResult:
        for earlier in await self._store.recent_of_session(turn.session_id, _RECENT):
            command = parse_command(earlier.inbound.text)
            is_add = (
                command is not None and command.name == "jobs" and command.args.lower().startswith("add ")
            )
            is_theirs = earlier.inbound.sender.id == turn.inbound.sender.id
            if command is None or not is_add or not is_theirs or earlier.state is not TurnState.DONE:
                continue
            request = JobRequest(text=command.args[4:].strip())
            proposal = self._desk.propose(asker, request, earlier.accepted_at)
            job_id = JobId(JOB_PREFIX + earlier.id.removeprefix(TURN_PREFIX))
            job = await self._desk.add(asker, proposal, job_id)
            return CommandResult(f"Saved. {self._line(job).removeprefix('- ')}")
        raise BadRequest("There is nothing to save.", "Say first what is to be done: `/jobs add TEXT`.")

    async def _act(self, asker: JobAsker, verb: str, name: str) -> CommandResult:
        match verb:
            case "pause":
                return CommandResult(f"Paused: {(await self._desk.pause(asker, name)).name}.")
            case "resume":
                return CommandResult(self._line(await self._desk.resume(asker, name)))
            case "remove":
                return CommandResult(f"Removed: {(await self._desk.remove(asker, name)).name}.")
            case "run":
                job, _ = await self._desk.run(asker, name)
                when = f"is due. {self._desk.note}" if self._desk.note else "runs now."
                return CommandResult(f"{job.name} {when}")
        job = await self._desk.find(asker, name)
        page = await self._desk.history(asker, job.id, Page(_SHOWN_RUNS))
        return CommandResult("\n".join(self._shown(job, page.items)))

    def _shown(self, job: Job, runs: tuple[Slot, ...]) -> Iterator[str]:
        yield f"{job.name} ({job.id}, {job.state.value}): {clean_line(job.plan.text, 200)}"
        yield f"When: {self._desk.describe(job)} ({self._desk.zone_name(job)})"
        yield f"Results go to: {self._desk.target(job)}"
        yield from (f"Next: {instant}" for instant in self._desk.next_runs(job))
        if job.reason:
            yield f"Why: {job.reason}"
        for slot in runs:
            took = f", {slot.ended_at - slot.started_at:.0f} s" if slot.ended_at and slot.started_at else ""
            cost = f", {to_usd(slot.cost)} USD" if slot.cost else ""
            why = f": {clean_line(slot.reason, 100)}" if slot.reason else ""
            yield f"- {show_instant(slot.instant, self._desk.zone)}: {slot.state.value}{took}{cost}{why}"
