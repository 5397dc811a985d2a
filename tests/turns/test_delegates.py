"""Delegates: tasks that a turn hands to child sessions, seen from the API of a running gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.asking_tools import Danger, calling
from support.gateway import Api, in_process, real_process
from support.waiting import until
from talaria.core.clock import SystemClock
from talaria.core.delegates import delegate_path
from talaria.core.events import DelegateChanged, QuestionAsked
from talaria.core.failpoints import Failpoint
from talaria.core.ids import TurnId, new_owner_id
from talaria.core.ledger import Begin, Commit, TurnEnd
from talaria.core.tasks import running
from talaria.core.turns import TurnState
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.turns.live import LiveTurn


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


def hand_out(*tasks: str, **more: Any) -> str:
    """Return a mark that lets the scripted model hand out these tasks."""
    return f"[[call delegate {json.dumps({'tasks': list(tasks), **more})}]]"


async def results_of(api: Api | GatewayProcess, session_id: str) -> list[str]:
    """Return the results of all tool calls of a session, in order."""
    path = f"/api/sessions/{session_id}/entries"
    page = await (api.get(path) if isinstance(api, Api) else api.call("GET", path))
    return [each["text"] for entry in page["entries"] for each in entry["body"].get("results", ())]


def requests_of(model: ModelServer) -> list[dict[str, Any]]:
    """Return the requests of helpers that the model has received."""
    return [json.loads(body) for body in model.bodies if b"[You are a helper" in body]


def asked(model: ModelServer, task: str) -> int:
    """Return how often the model was asked to begin with a task that ends so."""
    last = (request["messages"][-1] for request in requests_of(model))
    return sum(message["role"] == "user" and str(message["content"]).endswith(task) for message in last)


# -- what the parent gets -----------------------------------------------------------------------------------


async def test_results_of_delegates_reach_their_parent_in_order(tmp_path: Path, model: ModelServer) -> None:
    tasks = ("[[delay 0.2]][[reply one]]", "[[reply two]]")
    async with in_process(tmp_path, model) as api:
        turn = await api.say("chat", hand_out(*tasks) + "[[reply both]]")
        assert (turn["state"], turn["reply"]) == ("done", "both")
        assert await results_of(api, turn["session_id"]) == ["[1] done:\none\n\n[2] done:\ntwo"]


async def test_ten_results_and_more_stay_in_the_order_of_their_tasks(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model) as api:
        turn = await api.say("chat", hand_out(*(f"[[reply n{n}]]" for n in range(1, 12))) + "[[reply ok]]")
        (report,) = await results_of(api, turn["session_id"])
    assert report.split("\n\n") == [f"[{n}] done:\nn{n}" for n in range(1, 12)]


async def test_the_result_of_a_single_task_is_the_answer_itself(tmp_path: Path, model: ModelServer) -> None:
    async with in_process(tmp_path, model) as api:
        call = json.dumps({"task": "[[reply 42]]", "context": "Only numbers."})
        turn = await api.say("chat", f"[[call delegate {call}]][[reply ok]]")
        assert await results_of(api, turn["session_id"]) == ["42"]
    assert asked(model, "Only numbers.") == 1


async def test_a_failed_delegate_is_reported_with_its_reason(tmp_path: Path, model: ModelServer) -> None:
    async with in_process(tmp_path, model) as api:
        turn = await api.say("chat", hand_out("[[status 400]]", "[[reply fine]]") + "[[reply ok]]")
        (report,) = await results_of(api, turn["session_id"])
    assert report.startswith("[1] failed: ") and "[2] done:\nfine" in report


async def test_other_calls_of_the_message_run_before_the_delegates(
    tmp_path: Path, model: ModelServer
) -> None:
    write = '{"path": "notes.txt", "content": "for the helper"}'
    read = '[[call read_file {"path": "notes.txt"}]]'
    marks = f"{hand_out(read)}+[[call write_file {write}]][[reply ok]]"
    async with in_process(tmp_path, model) as api:
        turn = await api.say("chat", marks)
        delegated, written = await results_of(api, turn["session_id"])
    assert "for the helper" in delegated
    assert "notes.txt" in written


async def test_helpers_have_no_more_tools_than_their_parent_and_speak_to_it_only(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model) as api:
        await api.say("chat", hand_out("[[reply hi]]") + "[[reply ok]]")
        await api.say("other", hand_out("[[reply hi]]", tools=["read_file"]) + "[[reply ok]]")
        refused = await api.say("third", hand_out("[[reply hi]]", tools=["send_message"]) + "[[reply ok]]")
        (why,) = await results_of(api, refused["session_id"])
    free, limited = ({tool["function"]["name"] for tool in each["tools"]} for each in requests_of(model))
    assert free >= {"read_file", "delegate"} and not free & {"send_message", "jobs", "ask_user"}
    assert limited == {"read_file"}
    assert why.startswith("Error: Helpers cannot have the tool 'send_message'")


# -- limits -------------------------------------------------------------------------------------------------


async def test_no_more_helpers_than_allowed_run_side_by_side(tmp_path: Path, model: ModelServer) -> None:
    tables = {"delegates": {"max_parallel": 2}}
    async with in_process(tmp_path, model, tables=tables) as api:
        turn_id = await api.begin("chat", hand_out(*["[[hang]]"] * 3) + "[[reply ok]]")
        await until(lambda: asked(model, "[[hang]]") == 2)
        assert len(api.gateway.turns.live) == 3  # the parent and two helpers
        await api.post(f"/api/turns/{turn_id}/cancel")


async def test_recursion_ends_at_the_depth_limit(tmp_path: Path, model: ModelServer) -> None:
    inner = hand_out(hand_out("[[reply too deep]]") + "[[reply deepest]]") + "[[reply middle]]"
    async with in_process(tmp_path, model) as api:
        turn = await api.say("chat", hand_out(inner) + "[[reply top]]")
        assert turn["reply"] == "top"
    depths = [[tool["function"]["name"] for tool in each["tools"]] for each in requests_of(model)]
    assert ["delegate" in names for names in depths[:2]] == [True, False]
    assert asked(model, "[[reply too deep]]") == 0
    assert any(
        "You are a helper at depth 2, and cannot hand out tasks" in str(each["messages"][-1])
        for each in requests_of(model)
    )


async def test_a_turn_hands_out_no_more_tasks_than_allowed(tmp_path: Path, model: ModelServer) -> None:
    tables = {"delegates": {"max_per_turn": 2}}
    marks = hand_out("[[reply a]]", "[[reply b]]") + hand_out("[[reply c]]") + "[[reply ok]]"
    async with in_process(tmp_path, model, tables=tables) as api:
        turn = await api.say("chat", marks)
        _, refused = await results_of(api, turn["session_id"])
    assert "delegates.max_per_turn (2)" in refused


async def test_a_helper_is_stopped_at_its_deadline_and_its_last_words_are_kept(
    tmp_path: Path, model: ModelServer
) -> None:
    task = "[[chunks 40]][[chunk-delay 0.2]][[reply Half of it, and then all of the rest]]"
    tables = {"delegates": {"timeout": timedelta(seconds=1)}}
    async with in_process(tmp_path, model, tables=tables) as api:
        turn = await api.say("chat", hand_out(task) + "[[reply ok]]")
        (report,) = await results_of(api, turn["session_id"])
    assert turn["reply"] == "ok"
    assert report.startswith("timed out.\nIts last words were:\nHal")


async def test_a_helper_that_finishes_in_time_is_done_and_one_that_wrote_files_and_hangs_says_so(
    tmp_path: Path, model: ModelServer
) -> None:
    write = '[[call write_file {"path": "found.txt", "content": "all of it"}]]'
    tables = {"delegates": {"timeout": timedelta(seconds=1)}}
    async with in_process(tmp_path, model, tables=tables) as api:
        marks = hand_out(write + "[[hang]]", "[[delay 0.5]][[reply in time]]") + "[[reply ok]]"
        turn = await api.say("chat", marks + '[[call read_file {"path": "found.txt"}]][[reply read]]')
        report, read = await results_of(api, turn["session_id"])
    late, done = report.split("\n\n")
    assert late == "[1] timed out. Files that it has written are in the folder."
    assert done == "[2] done:\nin time"
    assert "all of it" in read


# -- stopping -----------------------------------------------------------------------------------------------


async def test_stopping_the_parent_stops_the_whole_tree(tmp_path: Path, model: ModelServer) -> None:
    inner = hand_out("[[hang]]") + "[[reply never]]"
    async with in_process(tmp_path, model) as api:
        turn_id = await api.begin("chat", hand_out(inner, "[[hang]]") + "[[reply never]]")
        await until(lambda: asked(model, "[[hang]]") >= 2)
        stopped = await api.post(f"/api/turns/{turn_id}/cancel")
        assert stopped["state"] == "cancelled"
        await until(lambda: not list(api.gateway.turns.live))
        status = await api.get("/api/status")
    assert status["turns"]["waiting"] == status["turns"]["running"] == 0


async def test_a_helper_s_approval_is_asked_for_in_the_chat_of_its_root(
    tmp_path: Path, model: ModelServer
) -> None:
    danger = Danger()
    async with in_process(tmp_path, model, parts=danger.parts()) as api:
        inner = hand_out(calling("rm -rf /")) + "[[reply inner]]"
        turn_id = await api.begin("chat", hand_out(inner) + "[[reply ok]]")

        async def open_requests() -> list[dict[str, Any]]:
            return list((await api.get("/api/approvals"))["items"])

        (request,) = await until(open_requests)
        assert "delegate" in request["chat_key"]

        root = await api.gateway.turns.find(TurnId(turn_id))
        shown = [event async for event in until_asked(root)]
        assert (shown[-1].question_id, shown[-1].name) == (request["id"], "danger")
        decision = await api.say("chat", f"/deny {request['id']}")
        assert "refused" in decision["reply"].lower() or "denied" in decision["reply"].lower()
        await until(lambda: _is_done(api, turn_id))
    assert danger.ran == []


async def until_asked(live: LiveTurn) -> AsyncIterator[QuestionAsked]:
    """Yield the first question that followers of the turn see."""
    async for _, event in live.follow():
        if isinstance(event, QuestionAsked):
            yield event
            return


async def _is_done(api: Api, turn_id: str) -> bool:
    return bool((await api.get(f"/api/turns/{turn_id}"))["state"] == "done")


# -- messages of people while a parent waits ----------------------------------------------------------------


@pytest.mark.parametrize("busy", ["queue", "steer", "interrupt"])
async def test_a_message_to_a_waiting_parent_follows_the_setting_of_the_chat(
    tmp_path: Path, model: ModelServer, busy: str
) -> None:
    danger = Danger()
    async with in_process(tmp_path, model, parts=danger.parts(), tables={"sessions": {"busy": busy}}) as api:
        first = await api.begin("chat", hand_out(calling("ls") + "[[reply looked]]") + "[[reply all]]")

        async def requests() -> list[dict[str, Any]]:
            return list((await api.get("/api/approvals"))["items"])

        (request,) = await until(requests)  # so the delegate waits, and its parent

        async def waits() -> bool:  # `/agents` is answered at once
            return "waiting for a decision" in (await api.say("chat", "/agents"))["reply"]

        await until(waits)
        second = await api.begin("chat", "Only the short ones")
        if busy != "interrupt":
            await api.say("chat", f"/approve {request['id']}")
        for turn_id in (first, second):
            await api.gateway.turns.wait(await api.gateway.turns.find(TurnId(turn_id)))
        ended = [await api.get(f"/api/turns/{turn_id}") for turn_id in (first, second)]
    found = [(turn["state"], turn["reply"]) for turn in ended]
    joined = "You said: Only the short ones"
    expected = {
        "queue": [("done", "all"), ("done", joined)],
        "steer": [("done", joined)] * 2,
        "interrupt": [("cancelled", None), ("done", joined)],
    }
    assert found == expected[busy]
    assert danger.ran == ([] if busy == "interrupt" else ["ls"])


# -- kills --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "hit"),
    [
        *((Failpoint.PARKED, n) for n in (1, 2)),
        *((Failpoint.HANDED_OUT, n) for n in (1, 2, 3)),
        *((Failpoint.ENDING, n) for n in (1, 2, 3, 4)),
        *((Failpoint.ENDED, n) for n in (1, 2, 3, 4)),
    ],
)
async def test_a_kill_neither_loses_a_result_nor_runs_a_helper_twice(
    tmp_path: Path, model: ModelServer, point: Failpoint, hit: int
) -> None:
    tasks = ("[[reply first]]", hand_out("[[reply inner]]") + "[[reply second]]")
    async with real_process(tmp_path, model, failpoints=f"{point}={hit}") as gateway:
        with suppress(aiohttp.ClientError):
            await gateway.begin("chat", hand_out(*tasks) + "[[reply all]]")
        await gateway.wait(20)
        assert not gateway.is_running, "the failpoint was not reached"
        await gateway.start()
        (session,) = (await gateway.call("GET", "/api/sessions"))["items"]
        turns = await gateway.call("GET", f"/api/sessions/{session['id']}/entries?turns=1")
        (turn,) = turns["turns"]
        assert (await gateway.ended_turn(turn["id"]))["reply"] == "all"
        (report,) = await results_of(gateway, session["id"])
    assert report == "[1] done:\nfirst\n\n[2] done:\nsecond"


# -- what people see ----------------------------------------------------------------------------------------


async def test_followers_of_the_parent_see_what_each_delegate_below_it_does(
    tmp_path: Path, model: ModelServer
) -> None:
    prices = {"scripted/*": {"input": 1.0, "output": 1.0}}
    paid = "[[usage 1000 0 0 0]]"
    inner = paid + hand_out('[[call read_file {"path": "x"}]][[hang]]') + "[[reply never]]"
    async with in_process(tmp_path, model, tables={"prices": prices}) as api:
        turn_id = await api.begin("chat", hand_out(inner, paid + "[[reply quick]]") + "[[reply all]]")
        live = await api.gateway.turns.find(TurnId(turn_id))
        seen: dict[tuple[int, ...], DelegateChanged] = {}

        async def watch() -> None:
            async for _, event in live.follow():
                if isinstance(event, DelegateChanged):
                    seen[tuple(index for _, index in delegate_path(event.delegate_id))] = event

        async with running(watch(), name="follower"):
            await until(lambda: len(seen) == 3 and seen[1, 1].state is TurnState.RUNNING)
            assert {key: each.state for key, each in seen.items()} == {
                (1,): TurnState.WAITING,
                (1, 1): TurnState.RUNNING,
                (2,): TurnState.DONE,
            }
            assert seen[1,].line == "waiting for its delegates"
            assert (seen[2,].cost_usd, seen[2,].turn_id != "") == ("0.001", True)
            assert len({each.call_id for each in seen.values()}) == 1
            late = [event async for event in first_of(live, 3)]
            assert {each.delegate_id for each in late} == {each.delegate_id for each in seen.values()}
            await api.say("chat", "/agents stop all")
            await asyncio.wait((live.settled,))
        assert seen[1, 1].state is seen[1,].state is TurnState.CANCELLED


async def first_of(live: LiveTurn, count: int) -> AsyncIterator[DelegateChanged]:
    async for _, event in live.follow():
        if isinstance(event, DelegateChanged):
            yield event
            count -= 1
        if not count:
            return


async def test_agents_lists_the_tree_and_stops_one_delegate(tmp_path: Path, model: ModelServer) -> None:
    inner = hand_out("[[hang]]") + "[[reply inner done]]"
    async with in_process(tmp_path, model) as api:
        assert (await api.say("chat", "/agents"))[
            "reply"
        ] == "No message of this session has handed out a task."
        turn_id = await api.begin("chat", hand_out(inner, "[[reply quick]]") + "[[reply all]]")
        await until(lambda: asked(model, "[[hang]]"))
        await until(lambda: asked(model, "[[reply quick]]"))
        await until(lambda: len(api.gateway.turns.live) == 3)
        listed = (await api.say("chat", "/agents"))["reply"].splitlines()
        assert listed[0] == f"Delegates of {turn_id}:"
        assert "waiting for its delegates" in listed[1] and listed[1].startswith("1. ")
        assert "running" in listed[2] and listed[2].startswith("   2. ")
        assert "done" in listed[3] and listed[3].startswith("3. ")
        assert (await api.say("chat", "/agents stop 9"))["reply"].startswith("There is no delegate 9.")
        assert (await api.say("chat", "/agents stop 2"))["reply"].startswith("Stopped “[[hang]]”.")
        await until(lambda: _is_done(api, turn_id))
        (report,) = await results_of(api, (await api.get(f"/api/turns/{turn_id}"))["session_id"])
        told = await api.get(f"/api/turns/{turn_id}?history=1")
    assert report == "[1] done:\ninner done\n\n[2] done:\nquick"
    assert told["reply"] == "all"


async def test_the_cost_of_delegates_adds_up_at_the_root(tmp_path: Path, model: ModelServer) -> None:
    prices = {"scripted/*": {"input": 1.0, "output": 1.0}}
    usage = "[[usage 1000 0 0 0]]"
    marks = f"{usage}{hand_out(usage + '[[reply a]]', usage + '[[reply b]]')}{usage}[[reply ok]]"
    async with in_process(tmp_path, model, tables={"prices": prices}) as api:
        turn = await api.say("chat", marks)
        page = await api.get(f"/api/sessions/{turn['session_id']}/entries?turns=1")
        (root,) = page["turns"]
        shown = await api.get(f"/api/turns/{root['id']}")
    assert root["cost_usd"] == shown["usage"]["cost_usd"] == "0.004"
    assert "Cost $0.004 with its delegates." in [line["text"] for line in shown["story"]]


async def test_a_tree_spends_no_more_than_the_cap_of_its_session(tmp_path: Path, model: ModelServer) -> None:
    tables = {
        "prices": {"scripted/*": {"input": 1.0, "output": 1.0}},
        "budgets": {"per_session_usd": 0.05},
    }
    task = "[[usage 8000 0 0 0]][[reply a]]"
    async with in_process(tmp_path, model, tables=tables) as api:
        turn = await api.say("chat", hand_out(*[task] * 8) + "[[reply ok]]")
        (report, *_) = await results_of(api, turn["session_id"])
        page = await api.get(f"/api/sessions/{turn['session_id']}/entries?turns=1")
    assert "budgets.per_session_usd" in report
    assert 0 < float(page["turns"][0]["cost_usd"]) <= 0.05


async def test_a_helper_whose_parent_was_ended_before_a_kill_is_stopped_after_it(
    tmp_path: Path, model: ModelServer
) -> None:
    async with real_process(tmp_path, model) as gateway:
        turn_id = TurnId(await gateway.begin("chat", hand_out("[[hang]]") + "[[reply never]]"))
        await until(lambda: asked(model, "[[hang]]"))
        await gateway.kill()
        # As if the gateway had been killed after it ended the parent, and before it stopped the child.
        async with await SqliteStore.open(gateway.home / "talaria.db", SystemClock()) as store:
            me = new_owner_id()
            await store.reclaim(me)
            began = await store.begin(Begin(turn_id, me, 30.0))
            ended = TurnEnd(TurnState.CANCELLED)
            await store.commit(Commit(began.session.id, began.fence, turn_id, end=ended))
        await gateway.start()

        async def is_at_rest() -> bool:
            turns = (await gateway.call("GET", "/api/status"))["turns"]
            return bool(turns["running"] == turns["waiting"] == turns["accepted"] == 0)

        await until(is_at_rest, pause=0.05)


async def test_a_kill_while_a_tree_is_stopped_leaves_no_parent_that_continues(
    tmp_path: Path, model: ModelServer
) -> None:
    async with real_process(tmp_path, model, failpoints=f"{Failpoint.ENDED}=1") as gateway:
        turn_id = await gateway.begin("chat", hand_out("[[hang]]") + "[[reply was not stopped]]")
        await until(lambda: asked(model, "[[hang]]"))
        with suppress(aiohttp.ClientError):
            await gateway.call("POST", f"/api/turns/{turn_id}/cancel")
        await gateway.wait(20)
        assert not gateway.is_running, "the failpoint was not reached"
        await gateway.start()
        assert (await gateway.ended_turn(turn_id))["state"] == "cancelled"


async def test_waiting_for_a_helper_is_not_limited_by_the_time_of_a_call(
    tmp_path: Path, model: ModelServer
) -> None:
    tables = {"tools": {"call_timeout": timedelta(seconds=0.2)}}
    async with in_process(tmp_path, model, tables=tables) as api:
        turn = await api.say("chat", hand_out("[[delay 0.6]][[reply slow but done]]") + "[[reply ok]]")
        assert await results_of(api, turn["session_id"]) == ["slow but done"]
