"""What people do with jobs: proposals, rights, and every wrong request with its text."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from talaria.access.people import People
from talaria.core.errors import BadRequest, HeadMoved, LimitReached, NotFound
from talaria.core.ids import ChatKey
from talaria.core.jobs import At, Cron, EditJob, JobPlan, JobState, Missed, SessionMode
from talaria.core.ledger import Page
from talaria.core.turns import Sender
from talaria.jobs.desk import JobAsker, JobDesk, JobView, RunView
from talaria.jobs.requests import JobRequest, request_at
from talaria.jobs.settings import JobSettings
from talaria.jobs.words import UnclearSchedule
from talaria.store.in_memory import MemoryStore
from talaria.store.store import JobStore
from talaria.testing.clock import FakeClock

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 17, 14, 30, tzinfo=BERLIN).timestamp()
OPERATOR = JobAsker(Sender("api", is_operator=True), ChatKey("agent:main:http:api:terminal"))
ADA = JobAsker(Sender("1"), ChatKey("agent:main:pager:dm:1"))
BOB = JobAsker(Sender("2"), ChatKey("agent:main:pager:dm:2"))
ADA_IN_GROUP = JobAsker(Sender("1"), ChatKey("agent:main:pager:group:9"))
BOB_IN_GROUP = JobAsker(Sender("2"), ChatKey("agent:main:pager:group:9"))
DAILY = JobRequest(text="tell me the news", when="every day at 9", name="news")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def jobs(clock: FakeClock) -> JobStore:
    jobs = MemoryStore(clock).jobs
    jobs.bell.watch(lambda: None)
    return jobs


@pytest.fixture
def desk(clock: FakeClock, jobs: JobStore) -> JobDesk:
    return JobDesk(jobs, People(), clock, zone=BERLIN, settings=lambda: JobSettings(max_jobs=3))


async def test_a_proposal_shows_three_instants_and_saves_nothing(desk: JobDesk) -> None:
    proposal = desk.propose(OPERATOR, DAILY)
    assert proposal.is_worded
    assert proposal.lines() == [
        "Job: tell me the news",
        "When: cron 0 9 * * * (Europe/Berlin)",
        "Next: Wed 2026-11-18 09:00 CET",
        "then: Thu 2026-11-19 09:00 CET",
        "then: Fri 2026-11-20 09:00 CET",
        "Results go to: this chat",
    ]
    assert (await desk.listing(OPERATOR, Page())).items == ()
    job = await desk.add(OPERATOR, proposal)
    assert (await desk.listing(OPERATOR, Page())).items == (job,)
    assert await desk.find(OPERATOR, "news") == await desk.find(OPERATOR, job.id) == job
    view = JobView.of(job, desk)
    assert view.next == proposal.shown
    assert (view.schedule, view.timezone, view.state) == ("cron 0 9 * * *", "Europe/Berlin", "active")


def test_words_count_from_when_they_were_shown(desk: JobDesk, clock: FakeClock) -> None:
    request = JobRequest(text="remind me in ten minutes to stretch")
    shown = desk.propose(OPERATOR, request)
    clock.advance(120)
    saved = desk.propose(OPERATOR, request, NOW)
    assert shown == saved
    assert (saved.plan.text, saved.plan.is_reminder, saved.next_at) == ("stretch", True, NOW + 600)


def test_a_when_may_say_remind_me(desk: JobDesk) -> None:
    plan = desk.propose(OPERATOR, JobRequest(text="stretch", when="remind me in ten minutes")).plan
    assert (plan.text, plan.is_reminder, plan.schedule) == ("stretch", True, At(NOW + 600))


@pytest.mark.parametrize(
    ("fields", "text", "reminds"),
    [
        ({"text": "remind me in ten minutes to stretch"}, "stretch", True),
        ({"text": "remind me to stretch", "every": "1h"}, "stretch", True),
        ({"text": "Remind me", "every": "1h"}, "The time has come.", True),
        ({"text": "stretch", "every": "1h"}, "stretch", False),
        ({"text": "stretch", "every": "1h", "remind": True}, "stretch", True),
        ({"text": "dehne dich in 10 minutes", "remind": True}, "dehne dich", True),
        ({"text": "remind me to stretch", "every": "1h", "remind": False}, "remind me to stretch", False),
        ({"text": "remind me in ten minutes to stretch", "remind": False}, "stretch", False),
        ({"text": "remind me in ten minutes of the news", "model": "m"}, "the news", False),
        ({"text": "remind me to stretch", "every": "1h", "check": "true"}, "remind me to stretch", False),
    ],
)
def test_remind_decides_and_words_suggest(
    desk: JobDesk, fields: dict[str, Any], text: str, reminds: bool
) -> None:
    proposal = desk.propose(OPERATOR, JobRequest(**fields))
    assert (proposal.plan.text, proposal.plan.is_reminder) == (text, reminds)
    is_suggested = reminds and "remind" not in fields
    assert proposal.is_worded is (is_suggested or "every" not in fields)
    shown = ["Sent as it is, without a model."] if reminds else []
    assert proposal.lines()[: 1 + len(shown)] == [f"{'Reminder' if reminds else 'Job'}: {text}", *shown]
    assert not proposal.plan.quiet


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": "m"}, "no model"),
        ({"tools": ("terminal",)}, "no tools"),
        ({"check": "true"}, "no check"),
        ({"session": "same"}, "no session"),
        ({"deadline": "1m"}, "no deadline"),
        ({"quiet": True}, "no quiet"),
        ({"to": "none"}, "needs a chat"),
    ],
)
async def test_a_reminder_takes_nothing_that_a_run_needs(
    desk: JobDesk, fields: dict[str, Any], told: str
) -> None:
    request = JobRequest(text="stretch", every="1h", remind=True)
    with pytest.raises(BadRequest, match=told) as caught:
        desk.propose(OPERATOR, msgspec.structs.replace(request, **fields))
    assert caught.value.hint
    job = await desk.add(OPERATOR, desk.propose(OPERATOR, request))
    with pytest.raises(BadRequest, match=told):
        desk.propose_edit(OPERATOR, job, JobRequest(**fields))
    if "to" not in fields:
        assert not desk.propose_edit(OPERATOR, job, JobRequest(remind=False, **fields)).plan.is_reminder


def test_a_plan_saved_before_quiet_existed_stays_quiet() -> None:
    stored = b'{"text": "watch", "schedule": {"type": "cron", "expression": "0 9 * * *"}, "zone": ""}'
    assert msgspec.json.decode(stored, type=JobPlan).quiet


def test_only_a_job_that_asks_for_it_is_quiet(desk: JobDesk) -> None:
    assert not desk.propose(OPERATOR, DAILY).plan.quiet
    assert desk.propose(OPERATOR, msgspec.structs.replace(DAILY, quiet=True)).plan.quiet


async def test_it_is_said_where_results_go(desk: JobDesk) -> None:
    cli = JobAsker(OPERATOR.sender, OPERATOR.chat_key, in_chat=False)
    terminal = "the chat terminal (on the page, or `talaria chat --session terminal`)"
    for asker, to, named in (
        (OPERATOR, "", "this chat"),
        (cli, "", terminal),
        (cli, "none", "nobody"),
        (cli, "agent:main:telegram:dm:7", "the telegram chat 7"),
        (ADA, "", "this chat"),
    ):
        proposal = desk.propose(asker, msgspec.structs.replace(DAILY, to=to))
        assert proposal.lines()[-1] == f"Results go to: {named}"
    job = await desk.add(OPERATOR, desk.propose(OPERATOR, DAILY))
    assert JobView.of(job, desk).results_to == terminal
    elsewhere = JobAsker(OPERATOR.sender, ChatKey("agent:main:http:api:other"))
    assert desk.propose_edit(elsewhere, job, JobRequest(name="x")).lines()[-1] == f"Results go to: {terminal}"


def test_a_job_has_its_own_zone(desk: JobDesk) -> None:
    proposal = desk.propose(OPERATOR, msgspec.structs.replace(DAILY, timezone="America/New_York"))
    assert proposal.shown[0] == "Tue 2026-11-17 09:00 EST", "it is half past eight there"
    once = desk.propose(OPERATOR, JobRequest(text="x", at="2026-12-24T18:00", timezone="America/New_York"))
    assert once.shown == ("Thu 2026-12-24 18:00 EST",)
    assert desk.propose(OPERATOR, JobRequest(text="x", at="2026-12-24T18:00+00:00")).shown == (
        "Thu 2026-12-24 19:00 CET",
    )


@pytest.mark.parametrize(
    ("request_fields", "told"),
    [
        ({"text": "x", "cron": "0 9 31 2 *"}, "31 February"),
        ({"text": "x", "cron": "61 * * * *"}, "The minute of"),
        ({"text": "x", "every": "1m"}, "5m is the shortest"),
        ({"text": "x", "every": "soon"}, "is not a duration"),
        ({"text": "x", "at": "yesterday"}, "is not a date with a time"),
        ({"text": "x", "at": "2026-12-24"}, "At what time of that day"),
        ({"text": "x", "at": "2020-01-01T09:00"}, "has passed already"),
        ({"text": "x", "when": "in 20 minutes", "every": "1h"}, "both say when"),
        ({"text": "x", "when": "now and then"}, "When is 'now and then'"),
        ({"text": "x", "when": "every day"}, "At what time"),
        ({"text": "tell me when it changes"}, "When should it run"),
        ({"text": "every day at 9"}, "The job has no text"),
        ({"text": " ", "every": "1h"}, "The job has no text"),
        ({"text": "x" * 8001, "every": "1h"}, "8000 is the most"),
        ({"text": "x", "every": "1h", "name": "job_x"}, "cannot begin with"),
        ({"text": "x", "every": "1h", "timezone": "Europe/Belin"}, "no time zone 'Europe/Belin'"),
        ({"text": "x", "every": "1h", "session": "old"}, "session is 'old'"),
        ({"text": "x", "every": "1h", "session": "chat", "model": "m"}, "uses the model of that session"),
        ({"text": "x", "every": "1h", "missed": "some"}, "missed is 'some'"),
        ({"text": "x", "every": "1h", "overlap": "both"}, "overlap is 'both'"),
        ({"text": "x", "every": "1h", "retries": 99}, "retries is 99"),
        ({"text": "x", "every": "1h", "deadline": "48h"}, "between 1s and 1d"),
        ({"text": "x", "every": "1h", "to": "bob"}, "'bob' is not a chat"),
        ({"text": "x", "after": "p1"}, "A process belongs to a session"),
    ],
)
def test_a_wrong_request_is_told_clearly(desk: JobDesk, request_fields: dict[str, Any], told: str) -> None:
    with pytest.raises(BadRequest, match=told) as caught:
        desk.propose(OPERATOR, JobRequest(**request_fields))
    assert caught.value.hint


def test_a_job_whose_check_decides_may_run_each_minute(desk: JobDesk) -> None:
    assert desk.propose(OPERATOR, JobRequest(text="x", every="1m", check="./new"))
    with pytest.raises(BadRequest, match="after 30s"):
        desk.propose(OPERATOR, JobRequest(text="x", every="30s", check="./new"))


def test_a_model_is_checked(clock: FakeClock) -> None:
    def refuse(name: str) -> None:
        raise NotFound(f"There is no model {name}.")

    desk = JobDesk(MemoryStore(clock).jobs, People(), clock, zone=BERLIN, check_model=refuse)
    assert desk.propose(OPERATOR, DAILY)
    with pytest.raises(NotFound, match="There is no model gpt-0"):
        desk.propose(OPERATOR, msgspec.structs.replace(DAILY, model="gpt-0"))


async def test_the_number_of_jobs_of_a_person_is_bounded(desk: JobDesk) -> None:
    for n in range(3):
        await desk.add(ADA, desk.propose(ADA, msgspec.structs.replace(DAILY, name=str(n))))
    with pytest.raises(LimitReached, match="3 is the most for one person") as caught:
        await desk.add(ADA, desk.propose(ADA, DAILY))
    assert "jobs.max_jobs" in caught.value.hint
    await desk.add(BOB, desk.propose(BOB, DAILY))


async def test_people_see_and_change_their_own_jobs(desk: JobDesk) -> None:
    job = await desk.add(ADA, desk.propose(ADA, DAILY))
    for stranger in (BOB, BOB_IN_GROUP, ADA_IN_GROUP):
        assert (await desk.listing(stranger, Page())).items == ()
        with pytest.raises(NotFound):
            await desk.find(stranger, job.id)
    assert (await desk.listing(ADA, Page())).items == (job,)
    assert (await desk.listing(OPERATOR, Page())).items == (job,)
    assert (await desk.pause(OPERATOR, job.id)).state is JobState.PAUSED


async def test_a_job_of_a_group_is_seen_there_and_changed_by_its_maker(desk: JobDesk) -> None:
    job = await desk.add(ADA_IN_GROUP, desk.propose(ADA_IN_GROUP, DAILY))
    assert await desk.find(BOB_IN_GROUP, job.id) == job
    with pytest.raises(BadRequest, match="another person's"):
        await desk.remove(BOB_IN_GROUP, job.id)
    assert (await desk.remove(ADA_IN_GROUP, job.id)).id == job.id


def test_results_go_to_the_asker_s_own_chats(desk: JobDesk) -> None:
    other = msgspec.structs.replace(DAILY, to=BOB.chat_key)
    assert desk.propose(OPERATOR, other).plan.to == BOB.chat_key
    assert desk.propose(BOB, other).plan.to == BOB.chat_key
    assert desk.propose(ADA, msgspec.structs.replace(DAILY, to="none")).plan.to == "none"
    for asker in (ADA, ADA_IN_GROUP):
        with pytest.raises(BadRequest, match="is not one of your chats"):
            desk.propose(asker, other)


async def test_an_edit_changes_what_is_named(desk: JobDesk) -> None:
    job = await desk.add(OPERATOR, desk.propose(OPERATOR, DAILY))
    change = JobRequest(text="tell me less", session="same", missed="all")
    edited = await desk.edit(OPERATOR, job, desk.propose_edit(OPERATOR, job, change))
    assert (edited.plan.text, edited.plan.session, edited.plan.missed) == (
        "tell me less",
        SessionMode.SAME,
        Missed.ALL,
    )
    assert (edited.plan.name, edited.plan.schedule, edited.next_at) == (
        "news",
        Cron("0 9 * * *"),
        job.next_at,
    )
    moved = desk.propose_edit(OPERATOR, edited, JobRequest(when="every monday at 8"))
    again = await desk.edit(OPERATOR, edited, moved)
    assert again.plan.schedule == Cron("0 8 * * 1")
    with pytest.raises(HeadMoved):
        await desk.edit(OPERATOR, edited, moved)
    paused = await desk.pause(OPERATOR, "news")
    kept = await desk.edit(OPERATOR, paused, desk.propose_edit(OPERATOR, paused, JobRequest(name="old")))
    assert (kept.state, kept.next_at) == (JobState.PAUSED, None)


async def test_a_local_time_moves_with_the_zone_of_the_job(desk: JobDesk) -> None:
    job = await desk.add(OPERATOR, desk.propose(OPERATOR, JobRequest(text="x", at="2026-12-24T18:00")))
    moved = desk.propose_edit(OPERATOR, job, JobRequest(timezone="America/New_York"))
    assert moved.shown == ("Thu 2026-12-24 18:00 EST",)


async def test_pause_resume_and_run(desk: JobDesk, clock: FakeClock) -> None:
    job = await desk.add(OPERATOR, desk.propose(OPERATOR, DAILY))
    paused = await desk.pause(OPERATOR, "news")
    assert (paused.state, paused.next_at, paused.reason) == (JobState.PAUSED, None, "the job was paused")
    assert desk.next_runs(paused) == ()
    _, slot = await desk.run(OPERATOR, "news")
    run = RunView.of(slot)
    assert (run.state, run.manual, run.slot) == ("due", True, "2026-11-17T13:30:00.001Z")
    clock.advance(timedelta(days=3).total_seconds())
    resumed = await desk.resume(OPERATOR, "news")
    assert desk.next_runs(resumed, 1) == ("Sat 2026-11-21 09:00 CET",)
    assert (await desk.history(OPERATOR, job.id, Page())).items == (slot,)


async def test_a_job_for_a_time_that_has_passed_cannot_be_resumed(desk: JobDesk, clock: FakeClock) -> None:
    await desk.add(OPERATOR, desk.propose(OPERATOR, JobRequest(text="x", when="in 20 minutes", name="soon")))
    await desk.pause(OPERATOR, "soon")
    clock.advance(3600)
    with pytest.raises(BadRequest, match="has passed already"):
        await desk.resume(OPERATOR, "soon")


async def test_a_job_that_is_done_does_not_stand_for_a_new_one_of_its_name(
    desk: JobDesk, jobs: JobStore
) -> None:
    request = JobRequest(text="stretch", when="in ten minutes", name="stretch")
    old = await desk.add(OPERATOR, desk.propose(OPERATOR, request))
    done = await jobs.edit(EditJob(old.id, old.version, old.plan, JobState.DONE, None))
    assert await desk.find(OPERATOR, "stretch") == done
    new = await desk.add(OPERATOR, desk.propose(OPERATOR, request))
    assert await desk.find(OPERATOR, "stretch") == new
    assert (await desk.listing(OPERATOR, Page(), is_unfinished=True)).items == (new,)


async def test_a_name_that_is_wrong_or_not_unique_is_told(desk: JobDesk) -> None:
    for _ in range(2):
        await desk.add(OPERATOR, desk.propose(OPERATOR, DAILY))
    with pytest.raises(BadRequest, match="2 jobs have the name 'news'"):
        await desk.find(OPERATOR, "news")
    with pytest.raises(NotFound) as caught:
        await desk.find(OPERATOR, "nuws")
    assert caught.value.hint == "Did you mean news?"


def test_one_text_for_a_time_may_be_cron_iso_or_words() -> None:
    assert request_at("0 9 * * 1-5") == JobRequest(cron="0 9 * * 1-5")
    assert request_at("0 8 * * MON#1") == JobRequest(cron="0 8 * * MON#1")
    assert request_at("2026-12-24T18:00") == JobRequest(at="2026-12-24T18:00")
    assert request_at("every day at 9") == JobRequest(when="every day at 9")


def test_a_sentence_that_is_unclear_is_a_question(desk: JobDesk) -> None:
    with pytest.raises(UnclearSchedule, match="At what time"):
        desk.propose(OPERATOR, JobRequest(text="every day tell me a joke"))
    assert isinstance(desk.propose(OPERATOR, JobRequest(text="x", when="at 9")).plan.schedule, At)
