"""Jobs of hermes-agent: `cron/jobs.json`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from talaria.core.errors import BadRequest
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.jobs import ASKING_CHAT, NOWHERE, Schedule
from talaria.core.turns import Sender
from talaria.imports.hermes_sessions import PROGRAM
from talaria.imports.jobs import (
    FoundJob,
    SourceJob,
    cron,
    every,
    find_receiver,
    instant,
    known_zone,
    once,
    plan_job,
)
from talaria.imports.logs import chat_of, plain_chat
from talaria.imports.source import SourceHome, clean_text, table, text_of
from talaria.imports.target import Planned, Target

_FILE: Final = "cron/jobs.json"
_IGNORED: Final = (
    *("script", "context_from", "workdir", "enabled_toolsets", "model", "provider", "base_url"),
    "attach_to_session",
)


async def plan_jobs(home: SourceHome, config: Mapping[str, Any], target: Target) -> list[Planned]:
    """Return an item for each job."""
    found = home.json(_FILE)
    jobs = table(found).get("jobs") if isinstance(found, dict) else found
    if not isinstance(jobs, list):
        if found is not None:
            home.note(_FILE, "It is not a list of jobs.")
        return []
    channels, zone = _home_channels(home, config, target), known_zone(config.get("timezone"))
    planned = []
    for index, job in enumerate(map(table, jobs)):
        name = text_of(job.get("name") or job.get("prompt"))
        key = SourceJob(
            PROGRAM,
            "hermes-agent",
            text_of(job.get("id")) or f"number-{index}",
            str(job.get("created_at")),
            name,
        )
        planned.append(await plan_job(target, key, partial(_read, target, job, channels, zone)))
    return planned


def _read(target: Target, job: Mapping[str, Any], channels: Mapping[str, ChatKey], zone: str) -> FoundJob:
    if job.get("no_agent"):
        raise BadRequest("It runs a script without a model.", "Write it as a job anew.")
    text, skills = text_of(job.get("prompt")).strip(), job.get("skills") or job.get("skill") or []
    names = [text_of(each) for each in (skills if isinstance(skills, list) else [skills])]
    if any(names):
        text = f"Use these skills: {', '.join(filter(None, names))}.\n\n{text}"
    notes = [f"Its {field} is not imported." for field in _IGNORED if job.get(field)]
    if job.get("enabled") is False or job.get("state") == "paused":
        notes.append("It is paused in hermes-agent too.")
    schedule = table(job.get("schedule"))
    repeat = table(job.get("repeat")).get("times")
    if repeat and schedule.get("kind") != "once":
        notes.append(f"hermes-agent runs it {text_of(repeat)} times in all; here it has no such limit.")
    origin = table(job.get("origin"))
    origin_chat = chat_of(target.agent, target.channels, origin)
    chat = origin_chat or plain_chat(target.agent, PROGRAM)
    person = text_of(origin.get("user_id")) or ChatAddress.parse(chat).chat
    sender = (
        Sender(person, clean_text(origin.get("user_name")))
        if origin_chat
        else Sender("owner", is_operator=True)
    )
    to = _receiver(target, text_of(job.get("deliver")) or "local", origin_chat, channels, notes)
    return FoundJob(text, _schedule(job, schedule, zone, target), zone, to, chat, sender, tuple(notes))


def _schedule(job: Mapping[str, Any], given: Mapping[str, Any], zone: str, target: Target) -> Schedule:
    match given.get("kind"):
        case "cron":
            return cron(given.get("expr"))
        case "interval":
            minutes = given.get("minutes")
            since = instant(job.get("created_at"), target.store.clock.now())
            return every(minutes * 60 if isinstance(minutes, int) else minutes, since)
        case "once":
            return once(given.get("run_at"), zone, target)
        case kind:
            raise BadRequest(f"Its schedule is of the unknown kind {text_of(kind)[:40]!r}.")


def _receiver(
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
    kind = "group" if chat.startswith("-") or platform != "telegram" else "dm"
    origin_like = {"platform": platform, "chat_id": chat, "thread_id": thread or None, "chat_type": kind}
    key = chat_of(target.agent, target.channels, origin_like) if chat else channels.get(platform)
    return find_receiver(target, key, first, notes)


def _home_channels(home: SourceHome, config: Mapping[str, Any], target: Target) -> dict[str, ChatKey]:
    """Return the chat that `deliver: PLATFORM` means, by platform."""
    found = {}
    environ, platforms = home.environ(), table(config.get("platforms"))
    for platform in target.channels:
        own = table(table(platforms.get(platform)).get("home_channel"))
        chat = text_of(own.get("chat_id") or environ.get(f"{platform.upper()}_HOME_CHANNEL"))
        kind = "dm" if platform == "telegram" and not chat.startswith("-") else "group"
        origin = {"platform": platform, "chat_id": chat, "chat_type": kind, "thread_id": own.get("thread_id")}
        if (key := chat_of(target.agent, target.channels, origin)) is not None:
            found[platform] = key
    return found
