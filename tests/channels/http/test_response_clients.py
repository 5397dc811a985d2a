"""The frameworks whose default is `/v1/responses`: a tool loop, a hand-off and structured output with each.

Each test is skipped where its framework is not installed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from channels.http.gateway import TOKEN, Api

LOOP = '[[think hm]][[call weather {"city": "Rome"}]]'
SUNNY = "Tool results: sunny in Rome"


class City(BaseModel):
    name: str


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def test_openai_agents(api: Api) -> None:
    agents: Any = pytest.importorskip("agents", reason="openai-agents is not installed")
    agents.set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN) as client:
        model = agents.OpenAIResponsesModel("main", client)
        agent = agents.Agent(
            name="a", model=model, instructions="Be brief.", tools=[agents.function_tool(weather)]
        )
        run = agents.Runner.run
        first = await run(agent, LOOP)
        assert first.final_output == SUNNY
        again = [*first.to_input_list(), {"role": "user", "content": "again"}]
        second = await run(agent, again)
        assert second.final_output == "You said: again"
        third = await run(agent, "more", previous_response_id=second.last_response_id)
        assert third.final_output == "You said: more"
        assert (await run(agent, LOOP, auto_previous_response_id=True)).final_output == SUNNY
        streamed = agents.Runner.run_streamed(agent, LOOP)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == SUNNY
        other = agents.Agent(name="other", model=model)
        triage = agents.Agent(name="triage", model=model, handoffs=[other])
        assert (await run(triage, "[[call transfer_to_other {}]]")).last_agent is other
        reader = agents.Agent(name="reader", model=model, output_type=City)
        assert (await run(reader, '[[reply {"name": "Rome"}]]')).final_output == City(name="Rome")


async def test_pydantic_ai(api: Api) -> None:
    ai: Any = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")
    models: Any = pytest.importorskip("pydantic_ai.models.openai")
    providers: Any = pytest.importorskip("pydantic_ai.providers.openai")
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN) as client:
        model = models.OpenAIResponsesModel("main", provider=providers.OpenAIProvider(openai_client=client))
        agent, other = ai.Agent(model, instructions="Be brief.", tools=[weather]), ai.Agent(model)

        async def ask_other(question: str) -> str:
            return str((await other.run(question)).output)

        first = await agent.run(LOOP)
        assert first.output == SUNNY
        assert (await agent.run("again", message_history=first.all_messages())).output == "You said: again"
        async with agent.run_stream(LOOP) as streamed:
            assert await streamed.get_output() == SUNNY
        delegating = ai.Agent(model, tools=[ask_other])
        handed = await delegating.run('[[call ask_other {"question": "hello"}]]')
        assert handed.output == "Tool results: You said: hello"
        reader = ai.Agent(model, output_type=ai.NativeOutput(City))
        assert (await reader.run('[[reply {"name": "Rome"}]]')).output == City(name="Rome")


AI_SDK = """
import { createOpenAI } from '@ai-sdk/openai';
import * as ai from 'ai';
import { z } from 'zod';
globalThis.AI_SDK_LOG_WARNINGS = false;
const [url, apiKey] = process.argv.slice(2);
const model = createOpenAI({ baseURL: url, apiKey })('main');
const tool = (execute) => ai.tool({ inputSchema: z.object({ city: z.string() }), execute });
const weather = tool(async ({ city }) => `sunny in ${city}`);
const other = tool(async ({ city }) => (await ai.generateText({ model, prompt: city })).text);
const told = [], stopWhen = ai.stepCountIs(5), prompt = '[[think hm]][[call weather {"city": "Rome"}]]';
const first = await ai.generateText({ model, prompt, tools: { weather }, stopWhen });
told.push(first.text);
const user = (content) => ({ role: 'user', content });
const messages = [user('one'), ...first.response.messages, user('two')];
const second = await ai.generateText({ model, messages, tools: { weather } });
told.push(second.text);
const previousResponseId = second.response.id;
const third = { model, prompt: 'three', providerOptions: { openai: { previousResponseId } } };
told.push((await ai.generateText(third)).text);
told.push(await ai.streamText({ model, prompt, tools: { weather }, stopWhen }).text);
const handed = { model, prompt: '[[call other {"city": "hello"}]]', tools: { other }, stopWhen };
told.push((await ai.generateText(handed)).text);
const providerOptions = { openai: { store: false } };
const stateless = { model, prompt, tools: { weather }, stopWhen, providerOptions };
told.push((await ai.generateText(stateless)).text);
const schema = z.object({ name: z.string() });
const output = ai.Output.object({ schema });
told.push((await ai.generateText({ model, output, prompt: '[[reply {"name": "Rome"}]]' })).output.name);
console.log(told.join('\\n'));
"""


async def test_ai_sdk(api: Api, tmp_path: Path) -> None:
    modules = Path(os.environ.get("TALARIA_NODE_MODULES", "node_modules")).absolute()
    node = shutil.which("node")
    if node is None or not (modules / "@ai-sdk" / "openai").is_dir():
        pytest.skip("@ai-sdk/openai is not installed in TALARIA_NODE_MODULES")
    (tmp_path / "node_modules").symlink_to(modules)
    script = tmp_path / "try.mjs"
    script.write_text(AI_SDK)
    process = await asyncio.create_subprocess_exec(
        node, str(script), f"{api.url}/v1", TOKEN, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert told.decode().splitlines() == [
        SUNNY,
        "You said: two",
        "You said: three",
        SUNNY,
        "Tool results: You said: hello",
        SUNNY,
        "Rome",
    ]
