"""litellm: `openai/…` models with both APIs."""

from __future__ import annotations

from typing import Any

import litellm
from checks import *
from pydantic import BaseModel

litellm.suppress_debug_info = True
PLACE: dict[str, Any] = {"api_base": BASE, "api_key": TOKEN, "max_retries": 0, "num_retries": 0}
TOOL: Any = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS: Any = [{"type": "function", "function": TOOL}]


class City(BaseModel):
    name: str


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


def ask(content: Any, name: str = "main", **more: Any) -> Any:
    return litellm.completion(f"openai/{name}", user(content), **{**PLACE, **more})


def respond(content: Any, **more: Any) -> Any:
    return litellm.responses(model="openai/main", input=content, **{**PLACE, **more})


def text_of(response: Any) -> str:
    return "".join(part.text for item in response.output if item.type == "message" for part in item.content)


@check("plain")
def plain() -> None:
    assert ask("hi").choices[0].message.content == "You said: hi"
    assert text_of(respond("hi")) == "You said: hi"


@check("streamed")
def streamed() -> None:
    assert "".join(chunk.choices[0].delta.content or "" for chunk in ask(WORDS, stream=True)) == SPOKEN
    events = respond(WORDS, stream=True)
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == SPOKEN


@check("tool loop")
def tool_loop() -> None:
    messages = user(LOOP)
    first = litellm.completion("openai/main", messages, tools=TOOLS, **PLACE).choices[0]
    (call,) = first.message.tool_calls
    assert (first.finish_reason, call.function.arguments) == ("tool_calls", '{"city": "Rome"}')
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny in Rome"}]
    said = litellm.completion("openai/main", messages, tools=TOOLS, **PLACE)
    assert said.choices[0].message.content == SUNNY


@check("streamed tool loop")
def streamed_tool_loop() -> None:
    chunks = list(ask(LOOP, tools=TOOLS, stream=True))
    whole = litellm.stream_chunk_builder(chunks)
    assert whole.choices[0].message.tool_calls[0].function.arguments == '{"city": "Rome"}'


@check("structured")
def structured() -> None:
    said = ask(CITY, response_format=City)
    assert City.model_validate_json(said.choices[0].message.content) == City(name="Rome")


cannot("has no agents", "hand-off")


@check("images")
def images() -> None:
    recorded()
    ask([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}])
    assert PNG in recorded()


@check("session")
def session() -> None:
    for _ in range(2):
        ask("hi", extra_headers=SESSION)
    assert ask("[[history]]", extra_headers=SESSION).choices[0].message.content == "6"


@check("chain")
def chain() -> None:
    first = respond("one")
    assert text_of(respond("[[history]]", previous_response_id=first.id)) == "3"


@check("401")
def wrong_key() -> None:
    raises(litellm.AuthenticationError, lambda: ask("hi", api_key=WRONG_KEY))


@check("404")
def unknown_model() -> None:
    assert "scripted/scripted" in str(raises(litellm.NotFoundError, lambda: ask("hi", UNKNOWN)))


@check("429")
def rate_limit() -> None:
    error = raises(litellm.RateLimitError, lambda: ask(LIMITED))
    headers = getattr(error, "litellm_response_headers", None) or error.response.headers
    assert headers["retry-after"] == "7"


@check("too long")
def too_long() -> None:
    raises(litellm.ContextWindowExceededError, lambda: ask(TOO_LONG))


@check("usage")
def usage() -> None:
    used = ask(USED).usage
    assert (used.prompt_tokens, used.completion_tokens) == (9, 3)
    *_, last = ask(USED, stream=True, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens == 9


@check("cancel")
async def cancel() -> None:
    before = cancelled()
    recorded()
    task = asyncio.create_task(litellm.acompletion("openai/main", user("[[hang]]"), **PLACE))
    await asyncio.to_thread(until_asked)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.to_thread(until_cancelled, before)


@check("files")
def files() -> None:
    said = ask(SEND, extra_headers=SESSION)
    assert said.files[0]["name"] == "a.txt"


@check("embeddings")
def embeddings() -> None:
    made = litellm.embedding("openai/scripted/small", ["hi"], encoding_format="float", **PLACE)
    assert made.data[0]["embedding"] == [2.0, 1.0]


run("litellm", "openai")
