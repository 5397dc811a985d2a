"""What a person changes about a session is an entry in its log, so it outlives agents and processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.rig import Rig, start
from support.waiting import until
from talaria.agent.settings import AgentSettings
from talaria.core.entries import Hidden
from talaria.core.ledger import Page
from talaria.core.messages import UserMessage
from talaria.core.turns import TurnState
from talaria.parts import builtin_tools
from talaria.store.store import Store
from talaria.tools.settings import ToolSettings


def last_body(rig: Rig) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(rig.model.bodies[-1])
    return body


def seen_by_model(rig: Rig) -> list[str]:
    """The texts of the last request, the system message and time stamps left out."""
    return [
        str(message["content"]).partition("] ")[2] if message["role"] == "user" else str(message["content"])
        for message in last_body(rig)["messages"][1:]
    ]


# -- /model


async def test_a_chosen_model_stays_over_eviction_and_restart(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        await rig.say("hello")
        reply = str((await rig.say("/model fast")).reply)
        assert "scripted/fast" in reply
        await rig.say("quickly")
        assert last_body(rig)["model"] == "fast"
        await rig.pool.drain()
        await rig.say("again")
        assert last_body(rig)["model"] == "fast"
    async with start(store, tmp_path) as rig:
        await rig.say("and after a restart")
        assert last_body(rig)["model"] == "fast"
        await rig.say("/new")
        await rig.say("a new session starts with the default")
        assert last_body(rig)["model"] == "scripted"


async def test_model_alone_says_what_there_is_and_what_is_used(rig: Rig) -> None:
    reply = str((await rig.say("/model")).reply)
    assert "scripted/scripted" in reply
    assert "fast" in reply


async def test_an_unknown_model_changes_nothing(rig: Rig) -> None:
    await rig.say("hello")
    turn = await rig.say("/model nonsense")
    assert turn.state is TurnState.FAILED
    assert "nonsense" in str(turn.reply)
    await rig.say("still here")
    assert last_body(rig)["model"] == "scripted"
    assert rig.pool.counters.rebuilds == 0


async def test_the_same_model_again_changes_nothing(rig: Rig) -> None:
    first = await rig.say("hello")
    await rig.say("/model scripted/scripted")
    await rig.say("again")
    session = await rig.store.session(first.session_id)
    assert session is not None and session.revision.epoch == 0


# -- /tools


async def test_a_session_may_have_fewer_tools_and_cannot_call_the_others(rig: Rig) -> None:
    await rig.say("hello")
    assert "todo" in str((await rig.say("/tools read_file todo")).reply)
    turn = await rig.say("[[call list_files {}]]")
    assert "no tool 'list_files'" in str(turn.reply)
    assert [tool["function"]["name"] for tool in last_body(rig)["tools"]] == ["read_file", "todo"]
    await rig.say("/model fast")
    await rig.say("the choice stays with another model")
    assert len(last_body(rig)["tools"]) == 2
    await rig.say("/tools none")
    await rig.say("bare")
    assert "tools" not in last_body(rig)
    await rig.say("/tools all")
    await rig.say("full")
    assert len(last_body(rig)["tools"]) == len(builtin_tools(ToolSettings()).specs)


# -- /reasoning


async def test_reasoning_is_of_the_session_and_never_of_the_prefix(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        await rig.say("hello")
        assert "reasoning_effort" not in last_body(rig)
        await rig.say("/reasoning high")
        await rig.say("think")
        assert last_body(rig)["reasoning_effort"] == "high"
        assert "high" in str((await rig.say("/reasoning")).reply)
        assert rig.pool.counters.rebuilds == 0
        await rig.pool.drain()
        await rig.say("after eviction")
        assert last_body(rig)["reasoning_effort"] == "high"
    async with start(store, tmp_path) as rig:
        await rig.say("after a restart")
        assert last_body(rig)["reasoning_effort"] == "high"
        await rig.say("/reasoning none")
        await rig.say("do not think")
        assert "reasoning_effort" not in last_body(rig)
        assert "low, medium or high" in str((await rig.say("/reasoning much")).reply)


# -- /status


async def test_status_tells_of_the_workspace_and_gives_it_back(rig: Rig) -> None:
    turn = await rig.say("hello")
    handle = rig.workspaces.open(turn.session_id, turn.chat_key)
    handle.session.cwd = "/src"
    handle.release()
    reply = str((await rig.say("/status")).reply)
    assert "Working directory: /src\nProcesses: none running\nSandbox: " in reply


# -- /undo


async def test_undo_hides_the_last_exchange_and_says_which(rig: Rig) -> None:
    await rig.say("one")
    await rig.say("[[call list_files {}]] two")
    reply = str((await rig.say("/undo")).reply)
    assert "two" in reply
    await rig.say("three")
    assert seen_by_model(rig) == ["one", "You said: one", "three"]
    assert "rebuilt because its history was rewritten" in str((await rig.say("/status")).reply)
    log = await rig.store.log((await rig.say("/status")).session_id, 0)
    assert sum(isinstance(entry.body, Hidden) for entry in log) == 1
    assert any("two" in str(entry.body) for entry in log), "nothing is deleted"


async def test_undo_of_several_and_of_nothing(rig: Rig) -> None:
    for text in ("one", "two", "three"):
        await rig.say(text)
    assert "2 exchanges" in str((await rig.say("/undo 2")).reply)
    await rig.say("four")
    assert seen_by_model(rig) == ["one", "You said: one", "four"]
    assert "2 exchanges" in str((await rig.say("/undo 9")).reply)
    assert "nothing to undo" in str((await rig.say("/undo")).reply).lower()
    assert "/undo NUMBER" in str((await rig.say("/undo lots")).reply)
    await rig.say("five")
    assert seen_by_model(rig) == ["five"]


async def test_undo_stays_over_a_restart(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        await rig.say("one")
        await rig.say("two")
        await rig.say("/undo")
    async with start(store, tmp_path) as rig:
        await rig.say("three")
        assert seen_by_model(rig) == ["one", "You said: one", "three"]


# -- /retry


async def test_retry_asks_again_in_the_place_of_the_last_exchange(rig: Rig) -> None:
    await rig.say("one")
    await rig.say("[[first 1 status 503]] two")
    turn = await rig.say("/retry")
    assert turn.state is TurnState.DONE
    assert turn.reply == "You said: two"
    assert seen_by_model(rig) == ["one", "You said: one", "[[first 1 status 503]] two"]
    again = await rig.say("/retry")
    assert again.reply == "You said: two"
    assert len(seen_by_model(rig)) == 3
    await rig.say("three")
    assert len(seen_by_model(rig)) == 5


async def test_retry_of_nothing_says_so(rig: Rig) -> None:
    turn = await rig.say("/retry")
    assert turn.state is TurnState.DONE
    assert "nothing to retry" in str(turn.reply).lower()
    assert len(rig.model.bodies) == 0


async def test_a_retry_waits_for_what_runs_and_survives_a_restart(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        await rig.submit("[[first 1 hang]] one")
        await until(lambda: rig.model.bodies, pause=0)
        retry = await rig.submit("/retry")
        model = rig.model
    async with start(store, tmp_path, model=model) as rig:
        turn = await rig.turns.wait(await rig.turns.find(retry.turn.id))
        assert turn.reply == "You said: one"
        assert seen_by_model(rig) == ["[[first 1 hang]] one"]


# -- /branch


async def test_a_branch_copies_what_the_model_sees_and_leaves_the_original(rig: Rig) -> None:
    first = await rig.say("one")
    await rig.say("two")
    await rig.say("/undo")
    prefix = rig.model.bodies[0]
    await rig.say("/reasoning low")
    branch = await rig.say("/branch elsewhere")
    assert branch.session_id != first.session_id
    await rig.say("three")
    assert seen_by_model(rig) == ["one", "You said: one", "three"]
    assert last_body(rig)["reasoning_effort"] == "low"
    assert rig.model.bodies[-1].startswith(prefix[: prefix.index(b'"messages"')])
    assert "elsewhere" in str((await rig.say("/sessions")).reply)
    await rig.say("/resume 1")
    await rig.say("four")
    assert seen_by_model(rig) == ["one", "You said: one", "four"]


async def test_a_branch_can_end_before_an_earlier_message(rig: Rig) -> None:
    """This is how the page edits a message: a branch before it, and the new words."""
    for text in ("one", "two", "three"):
        first = await rig.say(text)
    page = await rig.store.entries(first.session_id, Page(50))
    places = {entry.body.text: entry.seq for entry in page.entries if isinstance(entry.body, UserMessage)}
    await rig.say(f"/branch @{places['two']} another try")
    await rig.say("two, but better")
    assert seen_by_model(rig) == ["one", "You said: one", "two, but better"]
    assert "another try" in str((await rig.say("/sessions")).reply)
    await rig.say("/resume 1")
    await rig.say(f"/branch @{places['one']}")
    await rig.say("one, but better")
    assert seen_by_model(rig) == ["one, but better"], "before the first message there is nothing"
    await rig.say("/branch @99999")
    await rig.say("more")
    assert seen_by_model(rig)[-3:] == ["one, but better", "You said: one, but better", "more"]


# -- /reload


async def test_a_changed_prompt_reaches_a_session_by_reload_only(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        await rig.say("hello")
        before = last_body(rig)["messages"][0]
        assert "nothing has changed" in str((await rig.say("/reload")).reply).lower()
    async with start(store, tmp_path, agent=AgentSettings(prompt="Speak like a pirate.")) as rig:
        await rig.say("same as ever")
        assert last_body(rig)["messages"][0] == before
        assert "new sessions" not in str((await rig.say("/reload")).reply)
        await rig.say("and now")
        assert "pirate" in last_body(rig)["messages"][0]["content"]
        assert len(seen_by_model(rig)) == 5
