"""instructor, which makes structured output of chat completions."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from checks import *
from instructor.core.exceptions import InstructorRetryException
from pydantic import BaseModel


def connect(mode: Any = instructor.Mode.TOOLS, key: str = TOKEN) -> Any:
    client = openai.OpenAI(base_url=BASE, api_key=key, max_retries=0)
    return instructor.from_openai(client, mode=mode)


class City(BaseModel):
    name: str


CALL = '[[call City {"name": "Rome"}]]'
by_tool = connect()


def ask(text: Any, name: str = "main", client: Any = by_tool, **more: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    wanted = {"model": name, "messages": messages, "response_model": City, "max_retries": 0, **more}
    return client.create(**wanted)


def cause(call: Any) -> Any:
    """Return the error of the client below."""
    error = raises((InstructorRetryException, openai.APIError), call)
    while not isinstance(error, openai.APIError):
        error = error.__cause__
    return error


@check("plain")
def plain() -> None:
    assert ask("[[reply hi]]", response_model=None).choices[0].message.content == "hi"


@check("streamed")
def streamed() -> None:
    messages = [{"role": "user", "content": CALL}]
    *_, last = by_tool.create_partial(model="main", messages=messages, response_model=City)
    assert last.name == "Rome"


cannot("its tools are the structured output", "tool loop", "streamed tool loop")


@check("structured")
def structured() -> None:
    assert ask(CALL).name == "Rome"
    for mode in (instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA, instructor.Mode.MD_JSON):
        assert ask(CITY, client=connect(mode)).name == "Rome", mode


cannot("has no agents", "hand-off")


@check("images")
def images() -> None:
    recorded()
    ask([CALL, instructor.Image.from_base64(f"data:image/png;base64,{PNG}")])
    assert PNG in recorded()


in_session = connect(instructor.Mode.MD_JSON)  # a session refuses tools and response formats


@check("session")
def session() -> None:
    assert ask(CITY, client=in_session, extra_headers=SESSION).name == "Rome"
    said = ask("[[history]]", client=in_session, extra_headers=SESSION, response_model=None)
    assert said.choices[0].message.content == "4"


cannot("speaks chat completions", "chain")


@check("401")
def wrong_key() -> None:
    assert isinstance(cause(lambda: ask("hi", client=connect(key=WRONG_KEY))), openai.AuthenticationError)


@check("404")
def unknown_model() -> None:
    error = cause(lambda: ask("hi", UNKNOWN))
    assert isinstance(error, openai.NotFoundError)
    assert "scripted/scripted" in str(error)


@check("429")
def rate_limit() -> None:
    assert cause(lambda: ask(LIMITED)).response.headers["retry-after"] == "7"


@check("too long")
def too_long() -> None:
    assert cause(lambda: ask(TOO_LONG)).code == "context_length_exceeded"


@check("usage")
def usage() -> None:
    messages = [{"role": "user", "content": f"{USED}{CALL}"}]
    _, whole = by_tool.create_with_completion(model="main", messages=messages, response_model=City)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (9, 3)


@check("cancel")
async def cancel() -> None:
    before = cancelled()
    client = instructor.from_openai(openai.AsyncOpenAI(base_url=BASE, api_key=TOKEN, max_retries=0))
    recorded()
    messages = [{"role": "user", "content": "[[hang]]"}]
    task = asyncio.create_task(client.create(model="main", messages=messages, response_model=City))
    await asyncio.to_thread(until_asked)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.to_thread(until_cancelled, before)


@check("files")
def files() -> None:
    said = ask(SEND, client=in_session, extra_headers=SESSION, response_model=None)
    assert said.files[0]["name"] == "a.txt"


cannot("has no embeddings", "embeddings")
run("instructor", "openai")
