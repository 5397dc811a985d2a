"""Approvals in turns: what they are bound to, how far they reach, and when nobody can be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.asking_tools import Danger, calling
from support.rig import Rig, inbound, start
from support.waiting import until
from talaria.access.approvals import Decider, NotEntitled
from talaria.core.clock import SystemClock
from talaria.core.events import Queued
from talaria.core.ledger import Page
from talaria.core.messages import File, ToolOutcome
from talaria.core.questions import APPROVE, Span
from talaria.core.tools import ToolSpec
from talaria.core.turns import Sender, TurnState
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.tools.function import parameters
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import Tool, ToolContext
from talaria.tools.toolset import ToolSet
from talaria.turns.live import LiveTurn
from turns.test_parking import open_questions, park, results, resumed


class Plain(Tool):
    """A tool with the given declarations, which notes that it ran."""

    def __init__(self, name: str, **spec: Any) -> None:
        self.spec = ToolSpec(name, "Acts.", parameters({}), **spec)
        self.runs = 0

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self.runs += 1
        return f"{self.spec.name} ran"


@pytest.fixture
def store() -> Store:
    return MemoryStore(SystemClock())


def life(store: Store, folder: Path, *tools: Any, **more: Any) -> Any:
    return start(store, folder, tools=lambda known: ToolSet([*known, *tools]), **more)


async def decide(rig: Rig, live: LiveTurn, span: Span = Span.ONCE, text: str = APPROVE) -> None:
    decider = Decider("tester", live.turn.chat_key)
    for question_id in await open_questions(rig.store, live.turn.id):
        await rig.turns.decisions.decide_as(decider, question_id, text, span)


# -- what an approval is bound to ---------------------------------------------------------------------------


async def test_a_call_in_another_working_folder_than_the_approved_one_is_refused(
    store: Store, tmp_path: Path
) -> None:
    danger = Danger()
    async with life(store, tmp_path, danger) as rig:
        live = await park(rig, calling())
        rig.workspaces.sessions[live.turn.session_id].cwd = "/elsewhere"
        await decide(rig, live)
        await rig.turns.wait(live)
        [(told, outcome)] = await results(store, live.turn.session_id)
        assert outcome is ToolOutcome.ERROR and "differs from the approved one" in told
        assert danger.ran == []


async def test_an_approval_holds_over_a_restart(store: Store, tmp_path: Path) -> None:
    danger = Danger()
    async with life(store, tmp_path, danger) as rig:
        live = await park(rig, calling("first"))
    async with life(store, tmp_path, danger) as rig:
        live = await resumed(rig, live.turn.id)
        await decide(rig, live)
        assert (await rig.turns.wait(live)).reply == "done"
    assert danger.ran == ["first"]


async def test_an_approval_that_was_given_while_no_gateway_ran_its_turn_counts_after_a_restart(
    store: Store, tmp_path: Path
) -> None:
    danger = Danger()
    async with life(store, tmp_path, danger) as rig:
        live = await park(rig, calling())
        [question_id] = await open_questions(store, live.turn.id)
        rig.live.let_go(live)
        await decide(rig, live)
        assert danger.ran == []
    async with life(store, tmp_path, danger) as rig:
        await rig.turns.wait(await rig.turns.find(live.turn.id))
    assert danger.ran == ["x"] and question_id


async def test_another_person_in_the_chat_cannot_decide(store: Store, tmp_path: Path) -> None:
    danger = Danger()
    async with life(store, tmp_path, danger) as rig:
        live = await park(rig, calling())
        [question_id] = await open_questions(store, live.turn.id)
        key = live.turn.chat_key
        elsewhere = inbound("", "two").chat_key
        wrong = [Decider("other", key), Decider("", key), Decider("tester"), Decider("tester", elsewhere)]
        for decider in wrong:
            with pytest.raises(NotEntitled):
                await rig.turns.decisions.decide_as(decider, question_id, APPROVE)
        other = replace(inbound("/approve"), sender=Sender("other"))
        told = await rig.turns.wait(await rig.turns.submit(other))
        assert told.state is TurnState.FAILED and "Only tester or an operator" in str(told.reply)
        assert danger.ran == []
        assert "Approved" in str((await rig.say("/approve")).reply)
        await rig.turns.wait(live)
        assert danger.ran == ["x"]


# -- grants -------------------------------------------------------------------------------------------------


async def test_an_approval_for_the_session_covers_exactly_the_same_call(store: Store, tmp_path: Path) -> None:
    danger = Danger()
    async with life(store, tmp_path, danger) as rig:
        live = await park(rig, calling("a"))
        await decide(rig, live, Span.SESSION)
        await rig.turns.wait(live)
        assert (await rig.say(calling("a"))).reply == "done", "nobody is asked again"
        await rig.turns.cancel(await park(rig, calling("b")))
        await rig.turns.cancel(await park(rig, calling("a"), "two"))
        assert danger.ran == ["a", "a"]
    async with life(store, tmp_path, danger) as rig:
        assert (await rig.say(calling("a"))).reply == "done", "the grant is a row"
        await rig.turns.end(live.turn.session_id)
        await rig.say(f"/resume {live.turn.session_id}")
        again = await park(rig, calling("a"))
        assert again.turn.session_id == live.turn.session_id
        await rig.turns.cancel(again)
    assert danger.ran == ["a", "a", "a"], "the end of the session voids it"


async def test_an_approval_once_covers_one_call(store: Store, tmp_path: Path) -> None:
    danger = Danger()
    async with life(store, tmp_path, danger) as rig:
        live = await park(rig, calling())
        await decide(rig, live)
        await rig.turns.wait(live)
        await rig.turns.cancel(await park(rig, calling()))
    assert danger.ran == ["x"]


# -- when people are asked ----------------------------------------------------------------------------------


@pytest.mark.parametrize("approvals", ["risky", "always", "never"])
async def test_the_setting_decides_about_a_tool_that_is_not_read_only(
    store: Store, tmp_path: Path, approvals: Any
) -> None:
    act, look = Plain("act"), Plain("look", read_only=True)
    settings = ToolSettings(approvals=approvals)
    async with life(store, tmp_path, act, look, tool_settings=settings) as rig:
        assert (await rig.say("[[call look {}]][[reply done]]")).reply == "done"
        if approvals == "always":
            live = await park(rig, "[[call act {}]][[reply done]]")
            assert act.runs == 0
            await decide(rig, live)
            await rig.turns.wait(live)
        else:
            assert (await rig.say("[[call act {}]][[reply done]]")).reply == "done"
        assert (act.runs, look.runs) == (1, 1)


async def test_with_never_a_risky_call_is_refused_and_nobody_is_asked(store: Store, tmp_path: Path) -> None:
    danger = Danger()
    async with life(store, tmp_path, danger, tool_settings=ToolSettings(approvals="never")) as rig:
        turn = await rig.say(calling())
        assert (await store.open_questions(Page())).items == ()
        [(told, _)] = await results(store, turn.session_id)
        assert 'tools.approvals = "never"' in told and danger.ran == []


@pytest.mark.parametrize("sandbox", ["auto", "none"])
async def test_commands_are_asked_about_without_a_sandbox_only(
    store: Store, tmp_path: Path, sandbox: Any
) -> None:
    run = Plain("run", runs_commands=True)
    async with life(store, tmp_path, run, tool_settings=ToolSettings(sandbox=sandbox)) as rig:
        live = await rig.submit("[[call run {}]][[reply done]]")
        if sandbox == "none":
            await until(lambda: open_questions(store, live.turn.id), pause=0)
            assert run.runs == 0
            await decide(rig, live)
        assert (await rig.turns.wait(live)).reply == "done"
        assert run.runs == 1


async def test_an_unattended_turn_is_refused_unless_it_was_granted_before(
    store: Store, tmp_path: Path
) -> None:
    danger = Danger()
    async with life(store, tmp_path, danger) as rig:
        alone = replace(inbound(calling()), is_unattended=True)
        turn = await rig.turns.wait(await rig.turns.submit(alone))
        [(told, _)] = await results(store, turn.session_id)
        assert "nobody attends this turn" in told and danger.ran == []
        live = await park(rig, calling())
        await decide(rig, live, Span.SESSION)
        await rig.turns.wait(live)
        await rig.turns.wait(await rig.turns.submit(alone))
        assert danger.ran == ["x", "x"]


async def test_an_unattended_turn_is_not_asked_for_an_answer(store: Store, tmp_path: Path) -> None:
    async with life(store, tmp_path) as rig:
        alone = replace(inbound('[[call ask_user {"question": "Which?"}]]'), is_unattended=True)
        turn = await rig.turns.wait(await rig.turns.submit(alone))
        [(told, outcome)] = await results(store, turn.session_id)
        assert outcome is ToolOutcome.ERROR and "nobody attends" in told


# -- taint --------------------------------------------------------------------------------------------------

TELL = "[[call tell {}]][[reply done]]"


async def test_content_from_outside_makes_calls_that_reach_out_ask_until_it_is_undone(
    store: Store, tmp_path: Path
) -> None:
    tell, fetch = Plain("tell", reaches_out=True), Plain("fetch", untrusted=True, read_only=True)
    async with life(store, tmp_path, tell, fetch) as rig:
        assert (await rig.say(TELL)).reply == "done", "nothing from outside is here yet"
        await rig.say("[[call fetch {}]][[reply fetched]]")
        live = await park(rig, TELL)
        assert "Untrusted content" in (await store.questions(live.turn.id))[0].text
    async with life(store, tmp_path, tell, fetch) as rig:
        live = await resumed(rig, live.turn.id)
        await rig.turns.cancel(live)
        assert tell.runs == 1
        await rig.say("/undo 2")
        assert (await rig.say(TELL)).reply == "done"
        await rig.say("[[call fetch {}]][[reply fetched]]")
        await rig.say("/new")
        assert (await rig.say(TELL)).reply == "done"
    assert tell.runs == 3


async def test_a_file_that_was_sent_is_content_from_outside(store: Store, tmp_path: Path) -> None:
    tell = Plain("tell", reaches_out=True)
    async with life(store, tmp_path, tell) as rig:
        said = inbound(TELL)
        sent = replace(said, parts=(*said.parts, File("a.txt", "a.txt", "text/plain", 1)))
        live = await rig.turns.submit(sent)
        await until(lambda: open_questions(store, live.turn.id), pause=0)
        await rig.turns.cancel(live)
        assert tell.runs == 0


# -- answers ------------------------------------------------------------------------------------------------

ASK = '[[call ask_user {"question": "Which?"}]]'


async def test_the_next_message_of_the_person_is_the_answer_and_others_wait(
    store: Store, tmp_path: Path
) -> None:
    async with life(store, tmp_path) as rig:
        live = await park(rig, ASK)
        other = await rig.turns.submit(replace(inbound("mine"), sender=Sender("other")))
        queued = await rig.submit("/queue later")
        answer = await rig.say("red")
        assert answer.reply == f"Passed on to {live.turn.id}."
        assert (await rig.turns.wait(live)).reply == "Tool results: red"
        assert (await rig.turns.wait(other)).reply == "You said: mine"
        assert (await rig.turns.wait(queued)).reply == "You said: later"
        assert (await rig.say("red")).reply == "You said: red", "nothing is open any more"


async def test_a_message_during_an_approval_waits_and_is_told_for_what(store: Store, tmp_path: Path) -> None:
    danger = Danger()
    async with life(store, tmp_path, danger) as rig:
        live = await park(rig, calling())
        later = await rig.submit("later")
        _, told = await anext(later.follow())
        assert isinstance(told, Queued) and told.ahead == 1
        assert str(told.waits_for).startswith("This waits for a decision: danger")
        await decide(rig, live)
        assert (await rig.turns.wait(later)).reply == "You said: later"
