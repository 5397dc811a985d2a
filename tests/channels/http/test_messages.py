"""Messages to sessions, and the turns they become."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.gateway import Api, in_process
from talaria.testing.model_server import ModelServer


async def test_a_message_is_accepted_and_then_answered(api: Api) -> None:
    ticket = await api.post("/api/sessions/one/messages", {"text": "hello"}, 202)
    assert set(ticket) == {"turn_id", "session_id", "state"}
    await api.say("one", "and then")  # one lane: the first is over when the second is
    turn = await api.get(f"/api/turns/{ticket['turn_id']}")
    assert (turn["id"], turn["session_id"]) == (ticket["turn_id"], ticket["session_id"])
    assert (turn["state"], turn["reply"], turn["error"]) == ("done", "You said: hello", None)
    assert turn["usage"].keys() == {
        "input",
        "cached",
        "output",
        "reasoning",
        "stored",
        "cost_usd",
        "estimated_calls",
    }
    assert turn["usage"]["cost_usd"] == "0.00"  # the scripted model is free


async def test_waiting_answers_with_the_very_turn_that_is_on_record(api: Api) -> None:
    for text in ("hello", '[[call write_file {"path": "a", "content": "b"}]]', "/status", "[[status 400]]"):
        turn = await api.say("one", text)
        recorded = await api.get(f"/api/turns/{turn['id']}")
        assert recorded.pop("story")[0]["kind"] == "accepted"
        assert recorded.pop("also") == []
        called = [each["n"] for each in recorded.pop("model_calls")]
        assert called == [step["n"] for step in turn["steps"] if step["kind"] == "model"]
        assert turn == recorded


async def test_steps_tell_models_and_tools_apart(api: Api) -> None:
    turn = await api.say("one", '[[call write_file {"path": "a", "content": "b"}]]')
    assert [(step["n"], step["kind"], step["name"]) for step in turn["steps"]] == [
        (1, "model", "scripted"),
        (2, "tool", "write_file"),
        (3, "model", "scripted"),
    ]
    call = turn["steps"][1]
    assert (call["state"], call["outcome"]) == ("ended", "ok")
    assert "wrote" in call["preview"].lower()
    assert call["started_at"] <= call["ended_at"]
    long = "x" * 300
    turn = await api.say("one", f'[[call write_file {{"path": "b", "content": "{long}"}}]]')
    turn = await api.say("one", '[[call read_file {"path": "b"}]]')
    assert len(turn["steps"][1]["preview"]) == 200


async def test_a_failed_turn_is_an_answer_too(api: Api) -> None:
    turn = await api.say("one", "[[status 400]]")
    assert turn["state"] == "failed"
    assert turn["error"]["type"] == "model_refused"
    assert turn["error"]["message"] in turn["reply"]


async def test_a_wait_that_is_too_short_says_how_far_the_turn_is(api: Api, model: ModelServer) -> None:
    ticket = await api.post("/api/sessions/one/messages?wait=0.1", {"text": "[[hang]]"}, 202)
    assert ticket["state"] == "running"
    turn = await api.post(f"/api/turns/{ticket['turn_id']}/cancel")
    assert turn["state"] == "cancelled"
    await model.until(lambda: not model.connections)


async def test_cancelling_a_settled_turn_leaves_it_as_it_is(api: Api) -> None:
    turn = await api.say("one", "hello")
    assert await api.post(f"/api/turns/{turn['id']}/cancel") == turn


async def test_the_same_key_is_the_same_turn(api: Api, model: ModelServer) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = await api.say("one", "hello", headers=key)
    assert await api.say("one", "hello", headers=key) == first
    assert len(model.bodies) == 1
    other_chat = await api.say("two", "hello", headers=key)
    assert other_chat["id"] != first["id"]


async def test_a_model_can_be_wished_for(api: Api) -> None:
    turn = await api.post("/api/sessions/one/messages?wait=30", {"text": "hello", "model": "fast"})
    assert turn["steps"][0]["name"] == "fast"
    refused = await api.post("/api/sessions/one/messages", {"text": "hello", "model": "nonesuch"}, 404)
    assert "nonesuch" in refused["error"]["message"]


async def test_commands_work_here_as_everywhere(api: Api) -> None:
    first = await api.say("one", "hello")
    turn = await api.say("one", "/new")
    assert (turn["command"], turn["steps"], turn["usage"]) == ("new", [], None)
    assert turn["session_id"] != first["session_id"]
    again = await api.say("one", f"/resume {first['session_id']}")
    assert again["session_id"] == first["session_id"]


async def test_a_current_session_can_be_written_to_by_its_id(api: Api) -> None:
    first = await api.say("one", "hello")
    second = await api.say(first["session_id"], "[[history]]")
    assert (second["session_id"], second["reply"]) == (first["session_id"], "4")
    await api.say("one", "/new")
    refused = await api.say(first["session_id"], "hello", status=409)
    assert f"/resume {first['session_id']}" in refused["error"]["hint"]


async def test_a_client_that_leaves_a_session_stops_nothing(api: Api, model: ModelServer) -> None:
    asked = asyncio.create_task(api.say("one", "[[delay 0.2]] hello"))
    await model.until(lambda: model.requests > 0)
    asked.cancel()
    await asyncio.wait((asked,))
    await api.say("one", "and then")
    sessions = await api.get("/api/sessions")
    entries = (await api.get(f"/api/sessions/{sessions['items'][0]['id']}/entries"))["entries"]
    said = [entry["body"]["text"] for entry in entries if entry["body"]["type"] == "assistant"]
    assert said == ["You said: hello", "You said: and then"]


async def test_an_unanswered_message_survives_the_gateway(tmp_path: Path, model: ModelServer) -> None:
    async with in_process(tmp_path, model) as api:
        turn_id = await api.begin("one", "[[first 1 hang]] hello")
        await model.until(lambda: model.requests > 0)
    async with in_process(tmp_path, model) as api:
        await api.say("one", "and then")
        assert (await api.get(f"/api/turns/{turn_id}"))["reply"] == "You said: hello"
