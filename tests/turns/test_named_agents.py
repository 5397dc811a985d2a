"""`[agents.NAME]`: other agents for chats and for delegates."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.gateway import Api, in_process
from talaria.testing.model_server import ModelServer

AGENTS = {
    "researcher": {"prompt": "You find and check facts.", "model": "fast", "tools": ["files", "web_fetch"]},
    "poet": {
        "prompt": "You write verse.",
        "chats": ["agent:main:http:api:verse"],
        "memory": False,
        "skills": False,
    },
}
TABLES: dict[str, Any] = {"agents": AGENTS, "tools": {"enabled": ["files", "web", "delegate", "todo"]}}


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def api(tmp_path: Path, model: ModelServer) -> AsyncIterator[Api]:
    async with in_process(tmp_path, model, tables=TABLES) as api:
        yield api


def request(model: ModelServer, number: int = -1) -> tuple[str, str, set[str]]:
    """Return the prompt, the model and the tools of a request."""
    body = json.loads(model.bodies[number])
    tools = {tool["function"]["name"] for tool in body.get("tools", ())}
    return str(body["messages"][0]["content"]), body["model"], tools


async def test_agent_chooses_another_agent_for_a_session_until_it_is_changed(
    api: Api, model: ModelServer
) -> None:
    listed = (await api.say("chat", "/agent"))["reply"]
    assert listed.splitlines()[0] == "This session uses main. `/agent NAME` changes that."
    assert "researcher: You find and check facts." in listed
    chosen = (await api.say("chat", "/agent researcher"))["reply"]
    assert "the agent researcher on scripted/fast" in chosen
    await api.say("chat", "hello")
    prompt, name, tools = request(model)
    assert "You are researcher" in prompt and "You find and check facts." in prompt
    assert (name, "web_fetch" in tools, "read_file" in tools, "todo" in tools) == ("fast", True, True, False)
    await api.say("chat", "/model scripted")
    await api.say("chat", "still?")
    assert "You are researcher" in request(model)[0]
    await api.say("chat", "/agent main")
    await api.say("chat", "and now?")
    assert "You are main" in request(model)[0]


async def test_an_unknown_agent_is_refused_with_the_nearest_name(api: Api) -> None:
    assert "Did you mean researcher?" in (await api.say("chat", "/agent reseacher"))["reply"]


async def test_sessions_of_a_chat_begin_with_its_agent(api: Api, model: ModelServer) -> None:
    await api.say("verse", "hello")
    assert "You are poet" in request(model)[0]
    await api.say("prose", "hello")
    prompt = request(model)[0]
    assert "You are main" in prompt
    assert "- researcher: You find and check facts.\n- poet: You write verse." in prompt


async def test_a_task_is_handed_to_a_named_agent_with_its_prompt_model_and_tools(
    api: Api, model: ModelServer
) -> None:
    call = json.dumps({"task": "[[reply found]]", "agent": "researcher"})
    turn = await api.say("chat", f"[[call delegate {call}]][[reply ok]]")
    assert turn["reply"] == "ok"
    prompt, name, tools = request(model, 1)
    assert "You are researcher" in prompt and name == "fast"
    assert "read_file" in tools and "todo" not in tools


async def test_a_task_of_an_unknown_agent_fails_with_the_names_that_there_are(api: Api) -> None:
    turn = await api.say("chat", '[[call delegate {"task": "x", "agent": "nobody"}]]')
    assert "failed: There is no agent 'nobody'." in turn["reply"]
    assert "main, researcher, poet" in turn["reply"]


async def test_a_task_costs_no_more_than_the_budget_of_its_agent(tmp_path: Path, model: ModelServer) -> None:
    agents = {"cheap": {"prompt": "You are brief.", "budget_usd": 0.001}}
    tables = {"agents": agents, "prices": {"scripted/*": {"input": 1.0, "output": 1.0}}}
    call = json.dumps({"task": "[[reply much]]", "agent": "cheap"})
    async with in_process(tmp_path, model, tables=tables) as api:
        turn = await api.say("chat", f"[[call delegate {call}]]")
    assert "failed: The model was not called" in turn["reply"]
    assert len(model.bodies) == 2
