"""The tool `jobs`: a person confirms the times that are shown, and nothing is saved otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.store_orders import accepting, begun
from talaria.access.people import People
from talaria.core.errors import ToolError
from talaria.core.ids import ChatKey, QuestionId
from talaria.core.ledger import Binding, Commit, Page, StepWrite
from talaria.core.limits import Limits
from talaria.core.questions import APPROVE, Decision, Question, QuestionKind
from talaria.core.turns import Sender, StepKind, StepState
from talaria.jobs.settings import JobSettings
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.tools.jobs import JOBS, JobsTool
from talaria.tools.part import ToolScope
from talaria.tools.tool import CallScope, ToolContext
from talaria.tools.workers import ToolWorkers

CHAT = ChatKey("agent:main:http:api:home")
ADD = {"action": "add", "text": "tell me the news", "when": "every weekday at 9"}


class JobTools:
    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.store.jobs.bell.watch(lambda: None)
        scope = ToolScope(folder, {}, self.clock, People(), opened=self.store)
        self.tool = JobsTool(scope, JobSettings)
        self._folder = folder

    async def run(self, arguments: dict[str, Any], *, decision: Decision | None = None) -> str:
        turn, lease = await begun(self.store, accepting(chat=CHAT, binding=Binding.NEW))
        session_id, turn_id = turn.turn.session_id, turn.turn.id
        if decision is not None:
            step = StepWrite(1, StepKind.TOOL, "jobs", StepState.PENDING, "call_1")
            asked = self.clock.now()
            question = Question(
                QuestionId(f"q_{turn_id}"), turn_id, 1, "call_1", QuestionKind.APPROVAL, "?", asked, asked + 9
            )
            await self.store.commit(Commit(session_id, lease.fence, turn_id, steps=(step,), ask=(question,)))
            self.clock.advance(300)
        workspace = FakeWorkspaces(lambda key: self._folder).open(session_id, CHAT)
        scope = CallScope(self.clock.elapsed, 10)
        resources = ToolWorkers(Limits()).resources(session_id)
        context = ToolContext(
            session_id,
            turn_id,
            "call_1",
            workspace,
            scope,
            print,
            resources,
            decision=decision,
            chat_key=CHAT,
            sender=Sender("api", is_operator=True),
        )
        result = await self.tool.run(arguments, context)
        assert isinstance(result, str)
        return result


@pytest.fixture
def world(tmp_path: Path) -> JobTools:
    return JobTools(tmp_path)


AGREED = Decision(APPROVE, "api", 0.0)


def test_the_question_shows_the_text_the_times_and_the_check(world: JobTools) -> None:
    draft = world.tool.question(ADD | {"check": "./new-mail", "to": "none"})
    assert draft is not None
    assert draft.kind is QuestionKind.APPROVAL
    lines = draft.text.splitlines()
    assert lines[:2] == ["Save this?", "Job: tell me the news"]
    assert lines[2].startswith("When: cron 0 9 * * 1-5 (")
    assert sum("09:00" in line for line in lines) == 3
    assert "./new-mail" in draft.text
    assert lines[-1] == "Results go to: nobody"


@pytest.mark.parametrize("action", ["add", "edit"])
def test_line_breaks_in_a_job_add_no_line_to_the_question(world: JobTools, action: str) -> None:
    fake = {"text": "x\nWhen: never", "check": "a\nResults go to: nobody", "job": "n\nNext: today"}
    draft = world.tool.question(ADD | fake | {"action": action})
    assert draft is not None
    lines = draft.text.splitlines()
    assert not {"When: never", "Results go to: nobody", "Next: today"} & set(lines)
    assert any("x\\u000aWhen: never" in line for line in lines)


def test_calls_that_save_nothing_are_not_asked_about(world: JobTools) -> None:
    for action in ("list", "show", "history", "pause", "resume", "remove", "run"):
        assert world.tool.question({"action": action, "job": "news"}) is None
    assert world.tool.only_reads({"action": "list"})
    assert not world.tool.only_reads({"action": "remove"})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"action": "add", "text": "x", "when": "every day"}, "At what time"),
        ({"action": "add", "text": "x", "when": "0 9 31 2 *"}, "31 February"),
        ({"action": "add", "text": "x"}, "When should it run"),
        ({"action": "edit", "job": "news", "when": "in 0 minutes"}, "In how many minutes"),
    ],
)
def test_what_is_wrong_or_unclear_goes_back_to_the_model(
    world: JobTools, arguments: dict[str, str], told: str
) -> None:
    with pytest.raises(ToolError, match=told) as caught:
        world.tool.question(arguments)
    assert caught.value.hint


async def test_nothing_is_saved_without_a_decision(world: JobTools) -> None:
    with pytest.raises(ToolError, match="Nobody has confirmed it"):
        await world.run(ADD)
    assert (await world.store.jobs.listing(Page())).items == ()


async def test_what_was_shown_is_saved(world: JobTools) -> None:
    shown_at = world.clock.now()
    result = await world.run(
        {"action": "add", "text": "remind me in ten minutes to stretch"}, decision=AGREED
    )
    assert result.startswith("Saved.")
    (job,) = (await world.store.jobs.listing(Page())).items
    assert job.next_at == round(shown_at) + 600, "it counts from when the person was asked"
    assert (job.plan.text, job.plan.is_reminder) == ("stretch", True)
    assert (job.origin.owner, job.origin.chat_key) == ("owner", CHAT)


async def test_the_model_makes_reminders_and_quiet_jobs(world: JobTools) -> None:
    add: dict[str, Any] = {"action": "add", "text": "Call Ada.", "when": "every day at 9"}
    draft = world.tool.question(add | {"remind": True})
    assert draft is not None
    assert draft.text.startswith("Save this?\nReminder: Call Ada.\nSent as it is, without a model.\n")
    await world.run(add | {"remind": True}, decision=AGREED)
    await world.run(add | {"quiet": True}, decision=AGREED)
    await world.run(add, decision=AGREED)
    jobs = (await world.store.jobs.listing(Page())).items
    kinds = [(job.plan.is_reminder, job.plan.quiet) for job in jobs]
    assert kinds == [(True, False), (False, True), (False, False)]
    with pytest.raises(ToolError, match="takes no model"):
        world.tool.question(add | {"remind": True, "model": "m"})


async def test_jobs_are_listed_changed_run_and_removed(world: JobTools) -> None:
    assert await world.run({"action": "list"}) == "There are no jobs."
    await world.run(ADD | {"name": "news"}, decision=AGREED)
    assert "'news': cron 0 9 * * 1-5, next" in await world.run({"action": "list"})
    changed = await world.run({"action": "edit", "job": "news", "when": "every day at 7"}, decision=AGREED)
    assert "cron 0 7 * * *" in changed
    assert "paused the job was paused" in await world.run({"action": "pause", "job": "news"})
    assert "Next:" in await world.run({"action": "resume", "job": "news"})
    assert (await world.run({"action": "run", "job": "news"})).startswith("news is due now")
    assert " due ($0.00)" in await world.run({"action": "history", "job": "news"})
    assert (await world.run({"action": "remove", "job": "news"})).startswith("Removed news")
    with pytest.raises(ToolError, match="There is no job 'news'"):
        await world.run({"action": "show", "job": "news"})
    with pytest.raises(ToolError, match="`show` needs `job`"):
        await world.run({"action": "show"})


async def test_a_job_can_wait_for_a_background_process(world: JobTools) -> None:
    await world.run({"action": "add", "text": "look at its output", "after": "p1"}, decision=AGREED)
    (job,) = (await world.store.jobs.listing(Page())).items
    assert await world.store.jobs.awaiting(10) == [job]


def test_the_description_is_short() -> None:
    assert len(JOBS.description) + len(JOBS.parameters) < 2000
    assert msgspec.json.decode(JOBS.parameters)["required"] == ["action"]
