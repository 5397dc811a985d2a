"""pydantic-ai: `openai-responses`, which is its default for OpenAI, and `openai-chat`."""

from __future__ import annotations

import base64
from typing import Any

from checks import *
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelHTTPError, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def provider(key: str = TOKEN) -> OpenAIProvider:
    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=BASE, api_key=key, max_retries=0))


def models(name: str = "main", key: str = TOKEN) -> list[Any]:
    """Models of this client are used in one event loop only."""
    return [kind(name, provider=provider(key)) for kind in (OpenAIResponsesModel, OpenAIChatModel)]


class City(BaseModel):
    name: str


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def ask(text: Any, name: str = "main", key: str = TOKEN) -> Any:
    return await Agent(models(name, key)[0]).run(text)


@check("plain")
async def plain() -> None:
    for model in models():
        assert (await Agent(model, instructions="Be brief.").run("hi")).output == "You said: hi"


@check("streamed")
async def streamed() -> None:
    for model in models():
        async with Agent(model).run_stream(WORDS) as said:
            texts = [text async for text in said.stream_text(delta=True, debounce_by=None)]
        assert "".join(texts) == SPOKEN


@check("tool loop")
async def tool_loop() -> None:
    for model in models():
        agent = Agent(model, tools=[weather])
        first = await agent.run(f"[[think hm]]{LOOP}")
        assert first.output == SUNNY
        assert (await agent.run("again", message_history=first.all_messages())).output == "You said: again"


@check("streamed tool loop")
async def streamed_tool_loop() -> None:
    for model in models():
        async with Agent(model, tools=[weather]).run_stream(f"[[think hm]]{LOOP}") as said:
            assert await said.get_output() == SUNNY


@check("structured")
async def structured() -> None:
    for model in models():
        agent = Agent(model, output_type=NativeOutput(City))
        assert (await agent.run(CITY)).output == City(name="Rome")
        by_tool = Agent(model, output_type=City)
        assert (await by_tool.run('[[call final_result {"name": "Rome"}]]')).output == City(name="Rome")


@check("hand-off")
async def hand_off() -> None:
    for model in models():
        other = Agent(model)

        async def ask_other(question: str) -> str:
            return str((await other.run(question)).output)  # noqa: B023

        first = Agent(model, tools=[ask_other])
        handed = await first.run('[[call ask_other {"question": "hello"}]]')
        assert handed.output == "Tool results: You said: hello"


@check("images")
async def images() -> None:
    recorded()
    for model in models():
        await Agent(model).run(["look", BinaryContent(base64.b64decode(PNG), media_type="image/png")])
    assert recorded().count(PNG) == 2


@check("session")
async def session() -> None:
    agent = Agent(models()[0], model_settings={"extra_headers": SESSION})
    for _ in range(2):
        await agent.run("hi")
    assert (await agent.run("[[history]]")).output == "6"


@check("chain")
async def chain() -> None:
    agent = Agent(models()[0])
    first = await agent.run("one")
    settings = {"openai_previous_response_id": first.response.provider_response_id}
    assert (await agent.run("[[history]]", model_settings=settings)).output == "3"


@check("401")
def wrong_key() -> None:
    assert raises(ModelHTTPError, lambda: ask("hi", key=WRONG_KEY)).status_code == 401


@check("404")
def unknown_model() -> None:
    error = raises(ModelHTTPError, lambda: ask("hi", UNKNOWN))
    assert error.status_code == 404
    assert "scripted/scripted" in str(error.body)


@check("429")
def rate_limit() -> None:
    error = raises(ModelHTTPError, lambda: ask(LIMITED))
    assert error.status_code == 429
    assert error.__cause__.response.headers["retry-after"] == "7"


@check("too long")
def too_long() -> None:
    error = raises(ModelHTTPError, lambda: ask(TOO_LONG))
    assert error.body["code"] == "context_length_exceeded"


@check("usage")
async def usage() -> None:
    for model in models():
        used = (await Agent(model).run(USED)).usage
        assert (used.input_tokens, used.output_tokens) == (9, 3)


@check("cancel")
async def cancel() -> None:
    before = cancelled()
    task = asyncio.create_task(ask("[[hang]]"))
    recorded()
    await asyncio.to_thread(until_asked)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.to_thread(until_cancelled, before)


cannot("drops members that it does not know", "files")


@check("embeddings")
async def embeddings() -> None:
    from pydantic_ai import Embedder
    from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel

    made = await Embedder(OpenAIEmbeddingModel("scripted/small", provider=provider())).embed_query("hi")
    assert made.embeddings[0] == [2.0, 1.0]


run("pydantic-ai-slim", "openai")
