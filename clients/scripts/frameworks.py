"""Frameworks for agents that speak chat completions through openai-python or litellm: one class for each. The
last argument names it."""

from __future__ import annotations

import logging
import os
from typing import Any

for _name in ("OTEL_SDK_DISABLED", "CREWAI_DISABLE_TELEMETRY"):
    os.environ[_name] = "true"
for _name in ("AGNO_TELEMETRY", "CREWAI_TRACING_ENABLED", "HAYSTACK_TELEMETRY_ENABLED"):
    os.environ[_name] = "False"

from checks import *

logging.disable(logging.CRITICAL)
sys.stdout = sys.stderr  # some print panels
NAME = sys.argv[-1]


def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: The name of the city.
    """
    return f"sunny in {city}"


CITIES = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA = {"name": "weather", "description": "Tell the weather of a city.", "parameters": CITIES}


class Framework:
    """`loop` lets the model call the tool, and `sunny` is the answer then. `without` are features that it
    does not have. `ask` returns the answer, or with `streams` its pieces."""

    packages: tuple[str, ...] = ()
    loop, sunny = LOOP, SUNNY
    without: tuple[str, ...] = ()

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        raise NotImplementedError


class LlamaIndex(Framework):
    packages = ("llama-index-core", "llama-index-llms-openai-like")

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        from llama_index.core.agent.workflow import AgentStream, FunctionAgent
        from llama_index.llms.openai_like import OpenAILike

        place = {"api_base": BASE, "api_key": key, "default_headers": headers, "max_retries": 0}
        kind = {"is_chat_model": True, "is_function_calling_model": True}
        llm = OpenAILike(model=model, **place, **kind)
        if has_tool:
            run = FunctionAgent(tools=[weather], llm=llm, streaming=streams).run(text)
            pieces = [e.delta async for e in run.stream_events() if isinstance(e, AgentStream)]
            return pieces if streams else str(await run)
        if streams:
            return [piece.delta async for piece in await llm.astream_complete(text)]
        return (await llm.acomplete(text)).text


class Haystack(Framework):
    packages = ("haystack-ai",)

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        from haystack.components.agents import Agent
        from haystack.components.generators.chat import OpenAIChatGenerator
        from haystack.dataclasses import ChatMessage
        from haystack.tools import create_tool_from_function
        from haystack.utils import Secret

        pieces: list[str] = []
        generator = OpenAIChatGenerator(
            Secret.from_token(key),
            model,
            api_base_url=BASE,
            max_retries=0,
            generation_kwargs={"extra_headers": headers},
            streaming_callback=(lambda piece: pieces.append(piece.content)) if streams else None,
        )
        messages = [ChatMessage.from_user(text)]
        if has_tool:
            agent = Agent(chat_generator=generator, tools=[create_tool_from_function(weather)])
            said = agent.run(messages=messages)["messages"][-1].text
        else:
            said = generator.run(messages)["replies"][0].text
        return pieces if streams else said


class Smolagents(Framework):
    """Its results are messages of the user, and its answer is a tool."""

    packages = ("smolagents",)
    sunny = "sunny in Rome"

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        from smolagents import ChatMessage, LogLevel, OpenAIModel, ToolCallingAgent, tool

        client = {"default_headers": headers, "max_retries": 0}
        llm = OpenAIModel(model, BASE, key, client_kwargs=client, retry=False)
        if has_tool:

            def weather(city: str) -> str:
                """Tell the weather of a city.

                Args:
                    city: The name of the city.
                """
                return f'[[call final_answer {{"answer": "sunny in {city}"}}]]'

            agent = ToolCallingAgent([tool(weather)], llm, stream_outputs=streams, max_steps=3)
            agent.logger.level = LogLevel.OFF
            return [str(agent.run(text))] if streams else agent.run(text)
        messages = [ChatMessage("user", [{"type": "text", "text": text}])]
        if streams:
            return [piece.content or "" for piece in llm.generate_stream(messages)]
        return llm(messages).content


class Agno(Framework):
    packages = ("agno",)

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        from agno.agent import Agent
        from agno.models.openai import OpenAIChat

        place = {"base_url": BASE, "api_key": key, "default_headers": headers, "max_retries": 0}
        agent = Agent(model=OpenAIChat(model, **place), tools=[weather] if has_tool else None)
        if streams:
            events = [event async for event in agent.arun(text, stream=True)]
            return [event.content or "" for event in events if event.event == "RunContent"]
        return (await agent.arun(text)).content


class SemanticKernel(Framework):
    packages = ("semantic-kernel",)
    loop = LOOP.replace("weather", "Sky-weather")

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        from openai import AsyncOpenAI
        from semantic_kernel.agents import ChatCompletionAgent
        from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
        from semantic_kernel.functions import KernelPlugin, kernel_function

        client = AsyncOpenAI(base_url=BASE, api_key=key, default_headers=headers, max_retries=0)
        service = OpenAIChatCompletion(ai_model_id=model, async_client=client)
        sky = KernelPlugin("Sky", functions={"weather": kernel_function(weather)})
        agent = ChatCompletionAgent(service=service, name="a", plugins=[sky] if has_tool else [])
        if streams:
            return [str(piece.content) async for piece in agent.invoke_stream(text)]
        return str((await agent.get_response(text)).content)


class Autogen(Framework):
    packages = ("autogen-agentchat", "autogen-ext")

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        from autogen_agentchat.agents import AssistantAgent
        from autogen_agentchat.messages import ModelClientStreamingChunkEvent
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        features = dict.fromkeys(("vision", "function_calling", "json_output", "structured_output"), True)
        client = OpenAIChatCompletionClient(
            model=model,
            base_url=BASE,
            api_key=key,
            default_headers=headers,
            max_retries=0,
            model_info={**features, "family": "unknown"},
        )
        more = {"tools": [weather], "reflect_on_tool_use": True} if has_tool else {}
        agent = AssistantAgent("a", client, model_client_stream=streams, **more)
        if streams:
            events = [event async for event in agent.run_stream(task=text)]
            return [each.content for each in events if isinstance(each, ModelClientStreamingChunkEvent)]
        return (await agent.run(task=text)).messages[-1].content


class AgentFramework(Framework):
    """Both of its clients, one for each API."""

    packages = ("agent-framework-core", "agent-framework-openai")

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        from agent_framework import Agent
        from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
        from openai import AsyncOpenAI

        found = []
        for kind in (OpenAIChatClient, OpenAIChatCompletionClient):
            client = AsyncOpenAI(base_url=BASE, api_key=key, default_headers=headers, max_retries=0)
            agent = Agent(kind(model, async_client=client), tools=[weather] if has_tool else None)
            if streams:  # an update may replace the text of earlier ones
                stream = agent.run(text, stream=True)
                assert len([update async for update in stream]) > 1
                found.append((await stream.get_final_response()).text)
            else:
                found.append((await agent.run(text)).text)
        assert found[0] == found[1] or headers, found
        return found[-1]


class Strands(Framework):
    packages = ("strands-agents",)

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        from strands import Agent, tool
        from strands.models.openai import OpenAIModel

        place = {"base_url": BASE, "api_key": key, "default_headers": headers, "max_retries": 0}
        llm = OpenAIModel(client_args=place, model_id=model, stream=streams)
        tools = [tool(weather)] if has_tool else None
        agent = Agent(llm, tools=tools, callback_handler=None, retry_strategy=None)
        if streams:
            return [event["data"] async for event in agent.stream_async(text) if "data" in event]
        return str(await agent.invoke_async(text)).strip()


class CrewAi(Framework):
    packages = ("crewai",)

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        from crewai import LLM, Agent
        from crewai.tools import tool

        place = {"base_url": BASE, "api_key": key, "default_headers": headers, "max_retries": 0}
        llm = LLM(model=f"openai/{model}", stream=streams, **place)
        if not has_tool:
            return llm.call(text)
        about = {"role": "helper", "goal": "help", "backstory": "none", "max_retry_limit": 0}
        agent = Agent(llm=llm, tools=[tool("weather")(weather)], **about)
        return (await agent.kickoff_async(text)).raw


class Dspy(Framework):
    packages = ("dspy", "litellm", "mcp")
    without = ("streamed", "streamed tool loop")

    async def ask(
        self, text: str, key: str, model: str, headers: dict[str, str], *, streams: bool, has_tool: bool
    ) -> Any:
        import dspy

        place = {"api_base": BASE, "api_key": key, "extra_headers": headers, "num_retries": 0}
        llm = dspy.LM(f"openai/{model}", cache=False, **place)
        if not has_tool:
            return llm(text)[0]
        asked = [{"role": "user", "content": text}]
        (called,) = llm(messages=asked, tools=[{"type": "function", "function": SCHEMA}])
        (call,) = called["tool_calls"]
        asked.append({"role": "assistant", "tool_calls": [call.model_dump()]})
        result = weather(**json.loads(call.function.arguments))
        asked.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return llm(messages=asked)[0]


FRAMEWORKS = {
    "llama-index": LlamaIndex,
    "haystack": Haystack,
    "dspy": Dspy,
    "crewai": CrewAi,
    "smolagents": Smolagents,
    "agno": Agno,
    "semantic-kernel": SemanticKernel,
    "autogen": Autogen,
    "agent-framework": AgentFramework,
    "strands": Strands,
}
framework = FRAMEWORKS[NAME]()


async def ask(
    text: str,
    *,
    key: str = TOKEN,
    model: str = "main",
    headers: dict[str, str] | None = None,
    streams: bool = False,
    has_tool: bool = False,
) -> Any:
    said = await framework.ask(text, key, model, headers or {}, streams=streams, has_tool=has_tool)
    return "".join(said) if streams else said


async def failure(text: str, **more: Any) -> str:
    """Return what the framework tells of a call that fails."""
    try:
        return f"answered: {await ask(text, **more)}"
    except BaseException as error:
        told: list[str] = []
        seen: BaseException | None = error
        while seen is not None and len(told) < 10:  # chains of some are circles
            told.append(repr(seen))
            seen = seen.__cause__ or seen.__context__
        return " ".join(told)


@check("plain")
async def plain() -> None:
    said = await ask("hi")
    assert said == "You said: hi", said


@check("streamed")
async def streamed() -> None:
    said = await ask(WORDS, streams=True)
    assert said == SPOKEN, said


@check("tool loop")
async def tool_loop() -> None:
    said = await ask(framework.loop, has_tool=True)
    assert said == framework.sunny, said


@check("streamed tool loop")
async def streamed_tool_loop() -> None:
    said = await ask(framework.loop, has_tool=True, streams=True)
    assert said == framework.sunny, said


@check("session")
async def session() -> None:
    for _ in range(2):
        await ask("hi", headers=SESSION)
    said = await ask("[[history]]", headers=SESSION)
    assert int(said) >= 6, said


@check("401")
async def wrong_key() -> None:
    told = await failure("hi", key=WRONG_KEY)
    assert "401" in told or "token is wrong" in told, told


@check("404")
async def unknown_model() -> None:
    told = await failure("hi", model=UNKNOWN)
    assert "scripted/scripted" in told, told


@check("429")
async def rate_limit() -> None:
    told = await failure(LIMITED)
    assert "429" in told, told


@check("too long")
async def too_long() -> None:
    told = await failure(TOO_LONG)
    assert "context" in told.lower(), told


cannot("streams the fields of its own forms only", *framework.without)
more = "structured", "hand-off", "images", "chain", "usage", "cancel", "files", "embeddings"
cannot("was not tried for more than an agent's loop", *more)
run(*framework.packages, "openai")
