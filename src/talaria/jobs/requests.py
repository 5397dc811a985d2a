"""Requests for jobs as people and models write them, and the checks of their fields. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from talaria.core.errors import BadRequest
from talaria.core.ids import JOB_PREFIX, ChatAddress, ChatKey, SessionId
from talaria.core.jobs import (
    NOWHERE,
    AfterProcess,
    At,
    Cron,
    Every,
    JobPlan,
    Missed,
    Overlap,
    Schedule,
    SessionMode,
)
from talaria.core.units import DURATION_FORMS, format_duration, parse_duration
from talaria.jobs.schedules import local_instant
from talaria.jobs.settings import MAX_TEXT
from talaria.jobs.words import UnclearSchedule, read_when

# -- the fields of a job as people, models and programs write them ----------------------------------------
# They have their own module, because the HTTP API describes them before the first job is loaded.


MaybeText = str | UnsetType


def _help(text: str, choices: type[StrEnum] | None = None, metavar: str = "") -> Meta:
    """Describe a field. `metavar` is the placeholder for its value in the command line help."""
    names = None if choices is None else {"enum": [choice.value for choice in choices]}
    return Meta(description=text, extra_json_schema=names, extra={"metavar": metavar or None})


class JobFields(msgspec.Struct, frozen=True):
    """The fields of a new job, or of a change. Unset fields keep their values."""

    text: Annotated[str, Meta(max_length=MAX_TEXT, description="Task of the job.")] | UnsetType = UNSET
    when: Annotated[
        MaybeText, _help('Schedule in plain words, such as "every weekday at 9".', metavar="WORDS")
    ] = UNSET
    every: Annotated[MaybeText, _help("Interval, such as 10m or 1h.", metavar="DURATION")] = UNSET
    cron: Annotated[
        MaybeText, _help('Cron schedule with five fields, such as "0 9 * * 1-5".', metavar="FIELDS")
    ] = UNSET
    at: Annotated[MaybeText, _help("Time of a single run, such as 2026-12-24T18:00.", metavar="TIME")] = UNSET
    name: Annotated[MaybeText, _help("Short name for the job.")] = UNSET
    timezone: Annotated[
        MaybeText, _help("Time zone, such as Europe/Berlin. Default: the agent's.", metavar="ZONE")
    ] = UNSET
    session: Annotated[
        MaybeText,
        _help("Session for each run: a new one (default), one kept for the job, or the chat's.", SessionMode),
    ] = UNSET
    to: Annotated[
        MaybeText,
        _help('Chat that receives the results, or "none". Default: the current chat.', metavar="CHAT"),
    ] = UNSET
    model: Annotated[MaybeText, _help("Model for the runs. Default: the agent's.", metavar="NAME")] = UNSET
    tools: Annotated[
        tuple[str, ...] | UnsetType | None, _help("Tools that runs may use. Default: all of the agent's.")
    ] = UNSET
    check: Annotated[
        MaybeText,
        _help("Command to run first. If it prints nothing, no model is called.", metavar="COMMAND"),
    ] = UNSET
    missed: Annotated[
        MaybeText, _help("Runs missed during a downtime: run the last one (default), none or all.", Missed)
    ] = UNSET
    deadline: Annotated[MaybeText, _help("Time limit for one run, such as 10m.", metavar="DURATION")] = UNSET
    retries: Annotated[int | UnsetType, _help("Number of retries after a failed run. Default: 0.")] = UNSET
    overlap: Annotated[
        MaybeText,
        _help("If a run is due while another is running: skip it (default), queue it, or replace.", Overlap),
    ] = UNSET
    remind: Annotated[
        bool | UnsetType,
        _help('Send the text as it is, without a model. Default: yes if the text says "remind me".'),
    ] = UNSET
    quiet: Annotated[
        bool | UnsetType, _help("Send nothing if the model answers exactly NO_REPLY. Default: no.")
    ] = UNSET


# -- requests for jobs as people and models write them, and the checks of their fields --------------------


MAX_NAME, MAX_CHECK = 80, 4000  # characters
MAX_RETRIES = 5
MAX_DEADLINE = timedelta(hours=24)
_CRON = re.compile(r"[\d*/,-]+ [\d*/,-]+( [\w*/,#-]+){3}", re.ASCII)
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}T")


class JobRequest(JobFields, frozen=True):
    """A new job or a change, as a person or a model wrote it.

    One of `when` (plain words), `every`, `cron`, `at` and `after` (a background process of `session_id`) says
    when. Without any of them a new job's text does, as in "remind me in ten minutes to stretch".
    """

    after: MaybeText = UNSET
    session_id: SessionId | UnsetType = UNSET

    @property
    def is_any(self) -> bool:
        """Whether anything is set."""
        return self != JobRequest()

    @property
    def named_times(self) -> list[str]:
        """The fields that say when."""
        names = ("when", "every", "cron", "at", "after")
        return [name for name in names if getattr(self, name) is not UNSET]


def request_at(when: str) -> JobRequest:
    """Return a request with the time that one text names: a cron expression, an ISO time or plain words."""
    text = when.strip()
    if _CRON.fullmatch(text):
        return JobRequest(cron=text)
    if _ISO.match(text):
        return JobRequest(at=text)
    return JobRequest(when=text)


class JobProposal(msgspec.Struct, frozen=True):
    """A checked job that is not saved. `shown` are its next instants, in its zone. `asked_in` names the chat
    that asks for it. `is_worded`: it was said in plain words, so a person has to confirm what they were taken
    for. `note` is told with it."""

    plan: JobPlan
    schedule: str
    zone: str
    shown: tuple[str, ...]
    next_at: float | None
    asked_in: str
    is_worded: bool = False
    note: str = ""

    def lines(self) -> list[str]:
        """Return the proposal for a person to read before it is saved."""
        plan = self.plan
        lines = [f"Job: {plan.text}"]
        if plan.is_reminder:
            lines = [f"Reminder: {plan.text}", "Sent as it is, without a model."]
        lines.append(f"When: {self.schedule} ({self.zone})")
        lines += [f"{'Next' if n == 0 else 'then'}: {instant}" for n, instant in enumerate(self.shown)]
        if plan.check:
            lines.append(f"Check, run first each time; without output nothing follows: {plan.check}")
        lines.append(f"Results go to: {name_target(plan, self.asked_in)}")
        if self.note:
            lines.append(self.note)
        return lines


def name_target(plan: JobPlan, asked_in: str) -> str:
    """Return who gets the results of a job. `asked_in` names the chat that asked for it."""
    if plan.to == NOWHERE:
        return "nobody"
    return name_chat(ChatKey(plan.to)) if plan.to else asked_in


def name_chat(key: ChatKey) -> str:
    """Return how people know a chat, and where they find it if the gateway serves it itself."""
    address = ChatAddress.parse(key)
    if address.channel != "http":
        return f"the {address.channel} chat {address.chat}"
    if address.thread is not None:  # a chat of a token
        return f"the chat {address.thread}"
    return f"the chat {address.chat} (on the page, or `talaria chat --session {address.chat}`)"


def read_schedule(request: JobRequest, zone: tzinfo, now: float) -> Schedule:
    """Return the schedule that the request names. Raise `BadRequest`, `UnclearSchedule`."""
    named = request.named_times
    if len(named) > 1:
        raise BadRequest(f"{' and '.join(named)} both say when.", "Give one of them.")
    match named[0]:
        case "when":
            return read_when(str(request.when), zone, now)
        case "every":
            return Every(round(_duration(request.every).total_seconds()), float(round(now)))
        case "cron":
            return Cron(" ".join(str(request.cron).split()))
        case "at":
            return _at(str(request.at), zone)
        case _:
            if not isinstance(request.session_id, str):
                raise BadRequest("A process belongs to a session.", "Ask for it in the chat that started it.")
            return AfterProcess(SessionId(request.session_id), str(request.after))


def fill_plan(plan: JobPlan, request: JobRequest) -> JobPlan:
    """Return the plan with the fields of the request but for its text, its schedule and its chat. Raise
    `BadRequest`."""
    changes: dict[str, object] = {}
    for field, kind in (("session", SessionMode), ("missed", Missed), ("overlap", Overlap)):
        if (value := getattr(request, field)) is not UNSET:
            known = [each.value for each in kind]
            if value not in known:
                raise BadRequest(f"{field} is {value!r}.", f"It is one of {', '.join(known)}.")
            changes[field] = kind(value)
    if request.deadline is not UNSET:
        changes["deadline"] = _deadline(request.deadline)
    if request.retries is not UNSET:
        if not 0 <= request.retries <= MAX_RETRIES:
            raise BadRequest(f"retries is {request.retries}.", f"It is a number from 0 to {MAX_RETRIES}.")
        changes["retries"] = request.retries
    copied = {"zone": "timezone", "tools": "tools", "is_reminder": "remind", "quiet": "quiet"}
    given = {field: getattr(request, name) for field, name in copied.items()}
    changes |= {field: value for field, value in given.items() if value is not UNSET}
    for field in ("name", "model", "check"):
        if (value := getattr(request, field)) is not UNSET:
            changes[field] = value.strip()
    plan = msgspec.structs.replace(plan, **changes)
    if plan.session is SessionMode.CHAT and plan.model:
        raise BadRequest(
            "A run in the chat's session uses the model of that session.",
            "Leave the model out, or let the job run in a session of its own: new or same.",
        )
    _check_texts(plan)
    return plan


def run_settings(plan: JobPlan) -> list[str]:
    """Return the names of the settings in the plan that only a run by a model can follow."""
    used = {
        "model": plan.model,
        "tools": plan.tools is not None,
        "check": plan.check,
        "session": plan.session is not SessionMode.NEW,
        "deadline": plan.deadline,
        "quiet": plan.quiet,
    }
    return [name for name, is_used in used.items() if is_used]


def check_reminder(plan: JobPlan) -> None:
    """Raise `BadRequest` if a reminder has a setting that it cannot follow."""
    if not plan.is_reminder:
        return
    if used := run_settings(plan):
        raise BadRequest(
            f"A reminder is sent without a model, so it takes no {' and no '.join(used)}.",
            f"Leave out {' and '.join(used)}, or let a model run it as a job (remind = false, --no-remind).",
        )
    if plan.to == NOWHERE:
        raise BadRequest("A reminder needs a chat to be sent to.", "Leave out `to`, or name a chat.")


def _check_texts(plan: JobPlan) -> None:
    if not plan.text.strip():
        raise BadRequest("The job has no text.", "Say what is to be done when its time has come.")
    for what, text, most in (
        ("text", plan.text, MAX_TEXT),
        ("name", plan.name, MAX_NAME),
        ("check", plan.check, MAX_CHECK),
    ):
        if len(text) > most:
            raise BadRequest(f"The {what} has {len(text)} characters, and {most} is the most.", "Shorten it.")
    if plan.name.startswith(JOB_PREFIX):
        raise BadRequest(f"A name cannot begin with {JOB_PREFIX!r}, as ids do.", "Choose another one.")


def _duration(text: object) -> timedelta:
    try:
        return parse_duration(str(text).strip())
    except ValueError:
        raise BadRequest(f"{str(text)!r} is not a duration.", f"Write {DURATION_FORMS}.") from None


def _deadline(text: object) -> float:
    if not text:
        return 0.0
    deadline = _duration(text)
    if not timedelta(seconds=1) <= deadline <= MAX_DEADLINE:
        raise BadRequest(
            f"A run has between 1s and {format_duration(MAX_DEADLINE)} to end.", "Give another deadline."
        )
    return deadline.total_seconds()


def _at(text: str, zone: tzinfo) -> At:
    """Read an ISO time: with an offset it is an instant, without one it is local."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadRequest(f"{text!r} is not a date with a time.", "Write it as 2026-12-24T18:00.") from None
    if len(text.strip()) <= len("2026-12-24"):
        raise UnclearSchedule("At what time of that day?", "Write it as 2026-12-24T18:00.")
    if moment.tzinfo is not None:
        return At(moment.astimezone(UTC).timestamp())
    return At(local_instant(moment, zone), moment.isoformat())
