"""openai-agents, with the responses API (its default) and with chat completions."""

from __future__ import annotations

from typing import Any

import openai
from checks import *
from pydantic import BaseModel

import agents
from agents import Agent, ModelSettings, Runner

agents.set_tracing_disabled(True)


def models(name: str = "main", key: str = TOKEN) -> list[Any]:
    client = openai.AsyncOpenAI(base_url=BASE, api_key=key, max_retries=0)
    return [agents.OpenAIResponsesModel(name, client), agents.OpenAIChatCompletionsModel(name, client)]


class City(BaseModel):
    name: str


@agents.function_tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def ask(text: Any, name: str = "main", key: str = TOKEN, **more: Any) -> Any:
    return await Runner.run(Agent(name="a", model=models(name, key)[0], **more), text)


@check("plain")
async def plain() -> None:
    for model in models():
        said = await Runner.run(Agent(name="a", model=model, instructions="Be brief."), "hi")
        assert said.final_output == "You said: hi"


async def play(model: Any, text: str, **more: Any) -> tuple[Any, str]:
    """Return the streamed run, and the text of its pieces."""
    said = Runner.run_streamed(Agent(name="a", model=model, **more), text)
    pieces = []
    async for event in said.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            pieces.append(event.data.delta)
    return said, "".join(pieces)


@check("streamed")
async def streamed() -> None:
    for model in models():
        said, pieces = await play(model, WORDS)
        assert said.final_output == pieces == SPOKEN


@check("tool loop")
async def tool_loop() -> None:
    for model in models():
        agent = Agent(name="a", model=model, tools=[weather])
        first = await Runner.run(agent, f"[[think hm]]{LOOP}")
        assert first.final_output == SUNNY
        again = [*first.to_input_list(), {"role": "user", "content": "again"}]
        assert (await Runner.run(agent, again)).final_output == "You said: again"


@check("streamed tool loop")
async def streamed_tool_loop() -> None:
    for model in models():
        said, _ = await play(model, f"[[think hm]]{LOOP}", tools=[weather])
        assert said.final_output == SUNNY


@check("structured")
async def structured() -> None:
    for model in models():
        said = await Runner.run(Agent(name="a", model=model, output_type=City), CITY)
        assert said.final_output == City(name="Rome")


@check("hand-off")
async def hand_off() -> None:
    for model in models():
        other = Agent(name="other", model=model)
        triage = Agent(name="triage", model=model, handoffs=[other])
        assert (await Runner.run(triage, "[[call transfer_to_other {}]]")).last_agent is other


@check("images")
async def images() -> None:
    recorded()
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    for model in models():
        await Runner.run(Agent(name="a", model=model), [{"role": "user", "content": [picture]}])
    assert recorded().count(PNG) == 2


@check("session")
async def session() -> None:
    settings = ModelSettings(extra_headers=SESSION)
    for _ in range(2):
        await ask("hi", model_settings=settings)
    assert (await ask("[[history]]", model_settings=settings)).final_output == "6"


@check("chain")
async def chain() -> None:
    agent = Agent(name="a", model=models()[0], tools=[weather])
    first = await Runner.run(agent, "one")
    second = await Runner.run(agent, "[[history]]", previous_response_id=first.last_response_id)
    assert second.final_output == "3"
    assert (await Runner.run(agent, LOOP, auto_previous_response_id=True)).final_output == SUNNY


@check("401")
def wrong_key() -> None:
    raises(openai.AuthenticationError, lambda: ask("hi", key=WRONG_KEY))


@check("404")
def unknown_model() -> None:
    assert "scripted/scripted" in str(raises(openai.NotFoundError, lambda: ask("hi", UNKNOWN)))


@check("429")
def rate_limit() -> None:
    error = raises(openai.RateLimitError, lambda: ask(LIMITED))
    assert error.response.headers["retry-after"] == "7"


@check("too long")
def too_long() -> None:
    assert raises(openai.BadRequestError, lambda: ask(TOO_LONG)).code == "context_length_exceeded"


@check("usage")
async def usage() -> None:
    for model in models():
        used = (await Runner.run(Agent(name="a", model=model), USED)).context_wrapper.usage
        assert (used.input_tokens, used.output_tokens) == (9, 3)


@check("cancel")
async def cancel() -> None:
    before = cancelled()
    said = Runner.run_streamed(Agent(name="a", model=models()[0]), ENDLESS)
    async for event in said.stream_events():
        if event.type == "raw_response_event":
            said.cancel()
    await asyncio.to_thread(until_cancelled, before)


cannot("drops members that it does not know", "files")
cannot("has no embeddings", "embeddings")
run("openai-agents", "openai")
