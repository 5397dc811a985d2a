"""openai-python, with both APIs."""

from __future__ import annotations

from typing import Any

import openai
from checks import *
from pydantic import BaseModel

client = openai.OpenAI(base_url=BASE, api_key=TOKEN, max_retries=0)
chat, responses = client.chat.completions, client.responses
TOOL: Any = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS: Any = [{"type": "function", "function": TOOL}]


class City(BaseModel):
    name: str


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


@check("plain")
def plain() -> None:
    said = chat.create(model="main", messages=user("hi"))
    assert said.choices[0].message.content == "You said: hi"
    assert responses.create(model="main", input="hi").output_text == "You said: hi"


@check("streamed")
def streamed() -> None:
    chunks = list(chat.create(model="main", messages=user(WORDS), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SPOKEN
    events = responses.create(model="main", input=WORDS, stream=True)
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == SPOKEN


@check("tool loop")
def tool_loop() -> None:
    messages = user(LOOP)
    first = chat.create(model="main", messages=messages, tools=TOOLS).choices[0]
    (call,) = first.message.tool_calls or ()
    assert (first.finish_reason, call.function.arguments) == ("tool_calls", '{"city": "Rome"}')
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny in Rome"}]
    assert chat.create(model="main", messages=messages, tools=TOOLS).choices[0].message.content == SUNNY
    items = user(LOOP)
    tools = [{"type": "function", **TOOL}]
    said = responses.create(model="main", input=items, tools=tools)
    items += said.output
    items.append(
        {"type": "function_call_output", "call_id": said.output[-1].call_id, "output": "sunny in Rome"}
    )
    assert responses.create(model="main", input=items, tools=tools).output_text == SUNNY


@check("streamed tool loop")
def streamed_tool_loop() -> None:
    with chat.stream(model="main", messages=user(LOOP), tools=TOOLS) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert call.function.arguments == '{"city": "Rome"}'
    with responses.stream(model="main", input=LOOP, tools=[{"type": "function", **TOOL}]) as stream:
        assert stream.get_final_response().output[-1].arguments == '{"city": "Rome"}'


@check("structured")
def structured() -> None:
    said = chat.parse(model="main", messages=user(CITY), response_format=City)
    assert said.choices[0].message.parsed == City(name="Rome")
    assert responses.parse(model="main", input=CITY, text_format=City).output_parsed == City(name="Rome")


cannot("has no agents", "hand-off")


@check("images")
def images() -> None:
    recorded()
    url = f"data:image/png;base64,{PNG}"
    chat.create(model="main", messages=user([{"type": "image_url", "image_url": {"url": url}}]))
    responses.create(model="main", input=user([{"type": "input_image", "image_url": url}]))
    assert recorded().count(PNG) == 2


@check("session")
def session() -> None:
    for _ in range(2):
        chat.create(model="main", messages=user("hi"), extra_headers=SESSION)
    said = chat.create(model="main", messages=user("[[history]]"), extra_headers=SESSION)
    assert said.choices[0].message.content == "6", said
    said = responses.create(model="main", input="[[history]]", extra_headers=SESSION)
    assert said.output_text == "8", said


@check("chain")
def chain() -> None:
    first = responses.create(model="main", input="one")
    second = responses.create(model="main", input="[[history]]", previous_response_id=first.id)
    assert second.output_text == "3"


def ask(text: str, model: str = "main", client: openai.OpenAI = client) -> Any:
    return client.chat.completions.create(model=model, messages=user(text))


@check("401")
def wrong_key() -> None:
    other = client.with_options(api_key=WRONG_KEY)
    raises(openai.AuthenticationError, lambda: ask("hi", client=other))


@check("404")
def unknown_model() -> None:
    error = raises(openai.NotFoundError, lambda: ask("hi", UNKNOWN))
    assert error.code == "model_not_found"
    assert "scripted/scripted" in str(error)


@check("429")
def rate_limit() -> None:
    error = raises(openai.RateLimitError, lambda: ask(LIMITED))
    assert error.response.headers["retry-after"] == "7"


@check("too long")
def too_long() -> None:
    assert raises(openai.BadRequestError, lambda: ask(TOO_LONG)).code == "context_length_exceeded"


@check("usage")
def usage() -> None:
    used = ask(USED).usage
    assert (used.prompt_tokens, used.completion_tokens) == (9, 3)
    options = {"include_usage": True}
    *_, last = chat.create(model="main", messages=user(USED), stream=True, stream_options=options)
    assert last.usage == used
    assert responses.create(model="main", input=USED).usage.input_tokens == 9


@check("cancel")
def cancel() -> None:
    before = cancelled()
    stream = chat.create(model="main", messages=user(ENDLESS), stream=True)
    next(iter(stream))
    stream.close()
    until_cancelled(before)


@check("files")
def files() -> None:
    said = chat.create(model="main", messages=user(SEND), extra_headers=SESSION)
    (file,) = said.files
    assert file["name"] == "a.txt"
    assert client.get(f"{URL}/api/files/{file['id']}", cast_to=str) == "hi"
    (file,) = responses.create(model="main", input=SEND, extra_headers=SESSION).files
    assert file["name"] == "a.txt"


@check("embeddings")
def embeddings() -> None:
    made = client.embeddings.create(model="scripted/small", input="hi")
    assert made.data[0].embedding == [2.0, 1.0]


run("openai")
