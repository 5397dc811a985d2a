"""Jobs of hermes-agent: `cron/jobs.json`. They are imported paused, because hermes-agent still runs them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

from talaria.core.errors import BadRequest, LimitReached
from talaria.core.ids import JOB_PREFIX, ChatAddress, ChatKey, JobId
from talaria.core.jobs import (
    ASKING_CHAT,
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
from talaria.imports.hermes_home import HermesHome, table
from talaria.imports.hermes_sessions import CHAT, chat_of, derived_id
from talaria.imports.item import ImportItem, ImportKind, ImportState
from talaria.imports.target import Planned, Target
from talaria.jobs.schedules import agent_zone, check_schedule, find_zone, is_zone, local_instant
from talaria.jobs.settings import MAX_TEXT

_PAUSED: Final = "imported from hermes-agent"
_MAX_NAME: Final = 80
_IGNORED: Final = ("script", "context_from", "workdir", "enabled_toolsets", "model", "attach_to_session")


async def plan_jobs(home: HermesHome, target: Target) -> list[Planned]:
    """Return an item for each job. A job that was imported before is not changed."""
    text = home.text("cron/jobs.json")
    if text is None:
        return []
    found = home.json("cron/jobs.json")
    jobs = table(found).get("jobs") if isinstance(found, dict) else found
    if not isinstance(jobs, list):
        item = ImportItem("file:cron/jobs.json", ImportKind.FILE, "cron/jobs.json", ImportState.SKIPPED)
        return [(item.skip("It is not a list of jobs, or not valid JSON."), None)]
    channels, zone = _home_channels(home, target.agent), str(home.config().get("timezone") or "")
    return [await _plan(target, table(job), index, channels, zone) for index, job in enumerate(jobs)]


async def _plan(
    target: Target, job: Mapping[str, Any], index: int, channels: Mapping[str, ChatKey], zone: str
) -> Planned:
    key = str(job.get("id") or f"number-{index}")
    job_id = JobId(JOB_PREFIX + derived_id("job", f"{key}:{job.get('created_at')}"))
    name = clean_line(str(job.get("name") or job.get("prompt") or key), _MAX_NAME)
    item = ImportItem(f"job:{clean_line(key)}", ImportKind.JOB, name, ImportState.PLANNED, job_id)
    known = await target.store.jobs.find(job_id)
    if known is not None and not (known.state is JobState.ACTIVE and known.next_at is None):
        return item.skip("It was imported before."), None
    try:
        plan, origin, notes = _read(target, job, name, channels, zone)
    except BadRequest as error:
        return item.skip(f"{error.user_text} {error.hint}".strip()), None
    item = ImportItem(item.id, item.kind, name, item.state, job_id, note=" ".join(notes))
    return item, partial(_apply, target, item, plan, origin)


async def _apply(target: Target, item: ImportItem, plan: JobPlan, origin: JobOrigin) -> ImportItem:
    """Add the job without a next time, then pause it: it never runs, wherever the import is killed."""
    jobs = target.store.jobs
    try:
        most = target.settings.jobs.max_jobs
        job = await jobs.add(AddJob(JobId(item.target), origin, plan, None, most))
    except LimitReached as error:
        return item.skip(f"{error.user_text} {error.hint}")
    await jobs.edit(EditJob(job.id, job.version, job.plan, JobState.PAUSED, None, _PAUSED))
    return item.done()


def _read(
    target: Target, job: Mapping[str, Any], name: str, channels: Mapping[str, ChatKey], zone: str
) -> tuple[JobPlan, JobOrigin, list[str]]:
    """Return the plan, the origin, and what a person should know. Raises `BadRequest` for a job that cannot
    be imported."""
    text, skills = str(job.get("prompt") or "").strip(), job.get("skills") or []
    if job.get("no_agent"):
        raise BadRequest(
            f"It runs the script {job.get('script')!r} without a model.", "Write it as a job anew."
        )
    if skills and isinstance(skills, list):
        text = f"Use these skills: {', '.join(map(str, skills))}.\n\n{text}"
    text = text.encode("utf-8", "replace").decode()
    if not text or len(text) > MAX_TEXT:
        raise BadRequest(f"Its text has {len(text)} characters.", f"A job here has 1 to {MAX_TEXT}.")
    notes = [f"Its {field} is not imported." for field in _IGNORED if job.get(field)]
    repeat = table(job.get("repeat")).get("times")
    if repeat and table(job.get("schedule")).get("kind") != "once":
        notes.append(f"hermes-agent runs it {repeat} times in all; here it has no such limit.")
    zone = zone if is_zone(zone) else ""
    origin_chat = chat_of(target.agent, table(job.get("origin")))
    chat = origin_chat or ChatAddress(target.agent, "http", "api", CHAT).key()
    to = _delivery(target, str(job.get("deliver") or "local"), origin_chat, channels, notes)
    plan = JobPlan(text, _schedule(job, zone, target), zone, name=_name(name), to=to)
    return plan, _origin(target, chat, table(job.get("origin"))), notes


def _name(name: str) -> str:
    return f"_{name}"[:_MAX_NAME] if name.startswith(JOB_PREFIX) else name


def _origin(target: Target, chat: ChatKey, origin: Mapping[str, Any]) -> JobOrigin:
    address = ChatAddress.parse(chat)
    if address.channel == "http":
        sender = Sender("owner", is_operator=True)
        return JobOrigin(target.people.of_sender(sender, chat), chat, sender)
    sender = Sender(str(origin.get("user_id") or address.chat), str(origin.get("user_name") or ""))
    try:
        place = target.address_of(address)
    except BadRequest:
        place = None
    return JobOrigin(target.people.of_sender(sender, chat), chat, sender, place)


def _schedule(job: Mapping[str, Any], zone_name: str, target: Target) -> Schedule:
    given, now = table(job.get("schedule")), target.store.clock.now()
    zone = find_zone(zone_name) if zone_name else agent_zone(target.settings.agent.timezone)
    match given.get("kind"):
        case "cron":
            schedule: Schedule = Cron(" ".join(str(given.get("expr")).split()))
        case "interval":
            schedule = Every(_minutes(given.get("minutes")) * 60, _instant(job.get("created_at"), now))
        case "once":
            moment = _moment(given.get("run_at"))
            instant = local_instant(moment, zone) if moment.tzinfo is None else moment.timestamp()
            schedule = At(instant)
        case kind:
            raise BadRequest(f"Its schedule is of the unknown kind {kind!r}.")
    check_schedule(schedule, zone, now, target.settings.jobs.min_interval)
    return schedule


def _minutes(value: object) -> int:
    if not isinstance(value, int) or value < 1:
        raise BadRequest(f"Its interval is {value!r} minutes.")
    return value


def _moment(value: object) -> datetime:
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise BadRequest(f"Its time {value!r} is not a date.") from None


def _instant(value: object, otherwise: float) -> float:
    try:
        return float(round(datetime.fromisoformat(str(value)).timestamp()))
    except (ValueError, OverflowError):
        return float(round(otherwise))


# -- delivery ---------------------------------------------------------------------------------------------


def _delivery(
    target: Target, deliver: str, origin: ChatKey | None, channels: Mapping[str, ChatKey], notes: list[str]
) -> str:
    """Return the chat that gets the results. A job here has one; others are noted."""
    first, *others = [each.strip() for each in deliver.split(",") if each.strip()] or ["local"]
    if others:
        notes.append(f"It has one receiver here, {first}; these are left out: {', '.join(others)}.")
    if first == "local":
        return NOWHERE
    if first == "origin" and origin is not None:
        return ASKING_CHAT
    platform, _, place = first.partition(":")
    chat, _, thread = place.partition(":")
    origin_like = {"platform": platform, "chat_id": chat, "thread_id": thread or None}
    origin_like["chat_type"] = "group" if chat.startswith("-") or platform != "telegram" else "dm"
    key = chat_of(target.agent, origin_like) if chat else channels.get(platform)
    if key is None:
        notes.append(f"Its receiver {first!r} is not a chat that is known here, so nobody gets its results.")
        return NOWHERE
    try:
        target.address_of(ChatAddress.parse(key))
    except BadRequest as error:
        notes.append(f"Connect {platform} before you resume it: {error.user_text}")
    return key


def _home_channels(home: HermesHome, agent: str) -> dict[str, ChatKey]:
    """Return the chat that `deliver: PLATFORM` means, by platform."""
    found = {}
    environ, platforms = home.environ(), table(home.config().get("platforms"))
    for platform in (*(str(name) for name in platforms), "telegram", "discord", "slack"):
        own = table(table(platforms.get(platform)).get("home_channel"))
        chat = str(own.get("chat_id") or environ.get(f"{platform.upper()}_HOME_CHANNEL") or "")
        kind = "dm" if platform == "telegram" and not chat.startswith("-") else "group"
        origin = {"platform": platform, "chat_id": chat, "chat_type": kind, "thread_id": own.get("thread_id")}
        if (key := chat_of(agent, origin)) is not None:
            found[platform] = key
    return found
