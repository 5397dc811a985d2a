"""Both APIs of OpenAI and the API of Anthropic, streamed and whole, with a session and without: the same
conversation is understood in the same way, and the same answer comes out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.gateway import Api, in_process
from talaria.testing.model_server import ModelServer

PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5Erk"
    "Jggg=="
)
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
FUNCTION: dict[str, Any] = {"name": "weather", "strict": False, "parameters": {"type": "object"}}
USAGE = "[[usage 90 4 30 2]]"


class Say(msgspec.Struct, frozen=True):
    """A message of a conversation. `calls` are an assistant's: id, name, arguments. With `result_of`, it is
    the result of the call with this id."""

    role: str
    text: str = ""
    image: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    result_of: str = ""

    def for_chat(self) -> dict[str, Any]:
        if self.result_of:
            return {"role": "tool", "tool_call_id": self.result_of, "content": self.text}
        content: Any = self.text
        if self.image:
            content = [
                {"type": "text", "text": self.text},
                {"type": "image_url", "image_url": {"url": self.image}},
            ]
        if not self.calls:
            return {"role": self.role, "content": content}
        calls = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in self.calls
        ]
        return {"role": self.role, "content": content or None, "tool_calls": calls}

    def for_responses(self) -> list[dict[str, Any]]:
        if self.result_of:
            return [{"type": "function_call_output", "call_id": self.result_of, "output": self.text}]
        kind = "output_text" if self.role == "assistant" else "input_text"
        content = [{"type": kind, "text": self.text}] if self.text else []
        if self.image:
            content.append({"type": "input_image", "image_url": self.image})
        calls = [
            {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}
            for id, name, arguments in self.calls
        ]
        return [{"type": "message", "role": self.role, "content": content}] * bool(content) + calls

    def for_messages(self) -> dict[str, Any]:
        if self.result_of:
            result = {"type": "tool_result", "tool_use_id": self.result_of, "content": self.text}
            return {"role": "user", "content": [result]}
        content: list[dict[str, Any]] = [{"type": "text", "text": self.text}] if self.text else []
        if self.image:
            kind, _, data = self.image.removeprefix("data:").partition(";base64,")
            source = {"type": "base64", "media_type": kind, "data": data}
            content.append({"type": "image", "source": source})
        content += [
            {"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}
            for id, name, arguments in self.calls
        ]
        return {"role": self.role, "content": content}


class Answer(msgspec.Struct, frozen=True):
    """An answer as all APIs tell it. `usage` is input, cached, output and reasoning."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = "stop"
    usage: tuple[int, int, int, int] | None = None
    refusal: str = ""
    has_failed: bool = False


def request(format: str, said: list[Say], *, streams: bool, has_session: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"stream": streams, "model": "main"}
    if format == "chat":
        tools = [{"type": "function", "function": FUNCTION}]
        body |= {"messages": [one.for_chat() for one in said]}
        body |= {"stream_options": {"include_usage": True}} if streams else {}
    elif format == "messages":
        tools = [{**FUNCTION, "input_schema": {"type": "object"}}]
        body |= {"messages": [one.for_messages() for one in said if one.role != "system"]}
        body |= {"system": "\n".join(one.text for one in said if one.role == "system")}
    else:
        tools = [{"type": "function", **FUNCTION}]
        body |= {"input": [item for one in said for item in one.for_responses()]}
    return body | ({} if has_session else {"tools": tools})


async def ask(api: Api, format: str, said: list[Say], *, streams: bool, session: str = "") -> Answer:
    headers = {"X-Talaria-Session": session} if session else {}
    body = request(format, said, streams=streams, has_session=bool(session))
    async with api.client.post(api.url + PATHS[format], json=body, headers=headers) as response:
        text = await response.text()
        if response.status != 200:
            kind = json.loads(text)["error"]["type"]
            kind = ANTHROPIC_TYPES[kind] if format == "messages" else kind
            return Answer("", finish=f"{response.status} {kind}", has_failed=True)
    readers = READERS[format]
    return readers[1](text) if streams else readers[0](json.loads(text))


# -- chat completions -------------------------------------------------------------------------------------


def chat_usage(usage: Any) -> tuple[int, int, int, int]:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return (
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
        usage["completion_tokens_details"]["reasoning_tokens"],
    )


def read_completion(body: Any) -> Answer:
    (choice,) = body["choices"]
    assert choice["index"] == 0
    message = choice["message"]
    calls = tuple(
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()
    )
    return Answer(
        message["content"] or "",
        calls,
        choice["finish_reason"],
        chat_usage(body["usage"]),
        message["refusal"] or "",
    )


def read_chunks(text: str) -> Answer:
    *blocks, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(block.removeprefix("data: ")) for block in blocks]
    if has_failed := "error" in chunks[-1]:
        chunks.pop()
    usage = None if has_failed else chat_usage(chunks.pop()["usage"])
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len(choices) == len(chunks)
    assert {choice["index"] for choice in choices} == {0}
    deltas = [choice["delta"] for choice in choices]
    assert ["role" in delta for delta in deltas] == [True, *[False] * (len(deltas) - 1)]
    finishes = [choice["finish_reason"] for choice in choices]
    assert all(finish is None for finish in finishes[:-1])
    calls: list[list[str]] = []
    for piece in [piece for delta in deltas for piece in delta.get("tool_calls", ())]:
        if "id" in piece:
            assert piece["index"] == len(calls)
            calls.append([piece["function"]["name"], ""])
        assert piece["index"] == len(calls) - 1
        calls[-1][1] += piece["function"].get("arguments", "")
    return Answer(
        "".join(delta.get("content") or "" for delta in deltas),
        tuple((name, arguments) for name, arguments in calls),
        finishes[-1] or "",
        usage,
        "".join(delta.get("refusal") or "" for delta in deltas),
        has_failed,
    )


# -- responses --------------------------------------------------------------------------------------------


def read_response(body: Any) -> Answer:
    parts = [part for item in body["output"] if item["type"] == "message" for part in item["content"]]
    calls = tuple(
        (item["name"], item["arguments"]) for item in body["output"] if item["type"] == "function_call"
    )
    has_failed = body["status"] == "failed"
    usage = body["usage"] if not has_failed else None  # it is estimated then
    reason = {"max_output_tokens": "length", None: "tool_calls" if calls else "stop"}
    return Answer(
        "\n\n".join(part["text"] for part in parts if part["type"] == "output_text"),
        calls,
        "" if body["error"] else reason[(body["incomplete_details"] or {}).get("reason")],
        usage
        and (
            usage["input_tokens"],
            usage["input_tokens_details"]["cached_tokens"],
            usage["output_tokens"],
            usage["output_tokens_details"]["reasoning_tokens"],
        ),
        "".join(part["refusal"] for part in parts if part["type"] == "refusal"),
        has_failed,
    )


def read_events(text: str) -> Answer:
    """Read the last event, after comparing the others with it: their order, their places and their pieces."""
    events = [json.loads(block.partition("\ndata: ")[2]) for block in text.split("\n\n")[:-1]]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    whole = events[-1]["response"]
    items: list[dict[str, Any]] = []
    ended: set[int] = set()
    pieces: dict[tuple[int, int], str] = {}
    open_part: tuple[int, int] | None = None
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
            continue
        index = event["output_index"]
        assert index in set(range(len(items))) - ended
        assert event.get("item_id", items[index]["id"]) == items[index]["id"]
        place = (index, event.get("content_index", event.get("summary_index", 0)))
        if kind.endswith("_part.added"):
            assert open_part is None
            assert place[1] == sum(output == index for output, _ in pieces)
            open_part = place
            pieces[place] = ""
        elif kind.endswith(".delta"):
            pieces[place] = pieces.get(place, "") + event["delta"]
            assert open_part in (None, place)
        elif kind.endswith("_part.done"):
            assert place == open_part
            part = event["part"]
            assert part.get("text", part.get("refusal")) == pieces[place]
            open_part = None
        elif kind == "output_item.done":
            assert event["item"] == whole["output"][index]
            ended.add(index)
        else:
            told = next(event[key] for key in ("text", "arguments", "refusal") if key in event)
            assert told == pieces.get(place, "")
    assert len(ended) == len(items)
    assert [item["type"] for item in items] == [item["type"] for item in whole["output"]]
    return read_response(whole)


# -- messages ---------------------------------------------------------------------------------------------

ANTHROPIC_TYPES = {"invalid_request_error": "model_refused", "overloaded_error": "model_unavailable"}
STOPS = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "stop"}


def read_message(body: Any) -> Answer:
    blocks = body["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = tuple(
        (block["name"], json.dumps(block["input"], ensure_ascii=False))
        for block in blocks
        if block["type"] == "tool_use"
    )
    usage, is_refusal = body["usage"], body["stop_reason"] == "refusal"
    counts = (
        usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"],
        usage["cache_read_input_tokens"],
        usage["output_tokens"],
        usage["output_tokens_details"]["thinking_tokens"],
    )
    refusal = text if is_refusal else ""
    return Answer("" if is_refusal else text, calls, STOPS[body["stop_reason"]], counts, refusal)


def read_message_events(text: str) -> Answer:
    """Join the events to a message, after comparing their order and their places."""
    events = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\ndata: ")
        events.append(json.loads(data))
        assert name == f"event: {events[-1]['type']}"
    assert events[0]["type"] == "message_start"
    message, open_blocks, inputs = events[0]["message"], set[int](), dict[int, str]()
    has_failed = events[-1]["type"] == "error"
    for event in events[1:-1]:
        match event["type"].removeprefix("content_block_"):
            case "start":
                assert event["index"] == len(message["content"])
                open_blocks.add(event["index"])
                message["content"].append(event["content_block"])
            case "delta":
                assert event["index"] in open_blocks
                block, delta = message["content"][event["index"]], event["delta"]
                if delta["type"] == "input_json_delta":
                    inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
                else:
                    name = delta["type"].removesuffix("_delta")
                    block[name] += delta[name]
            case "stop":
                open_blocks.remove(event["index"])
            case "message_delta":
                assert not open_blocks
                message |= event["delta"] | {"usage": event["usage"]}
            case other:
                raise AssertionError(other)
    for index, arguments in inputs.items():
        message["content"][index]["input"] = json.loads(arguments)
    if has_failed:
        said = "".join(block.get("text", "") for block in message["content"])
        return Answer(said, finish="", has_failed=True)
    assert events[-1] == {"type": "message_stop"}
    return read_message(message)


READERS: dict[str, tuple[Callable[[Any], Answer], Callable[[str], Answer]]] = {
    "chat": (read_completion, read_chunks),
    "responses": (read_response, read_events),
    "messages": (read_message, read_message_events),
}

# -- the conversations ------------------------------------------------------------------------------------


class Row(msgspec.Struct, frozen=True):
    """A conversation with the answer to it; `streamed` is the answer of a stream that says more."""

    said: list[Say]
    answer: Answer
    streamed: Answer | None = None


COUNTED = (90, 4, 30, 2)
CALLS = [
    Say("user", "What is it like?"),
    Say("assistant", "I look.", calls=(("c1", "weather", '{"a": 1}'), ("c2", "weather", "{}"))),
    Say("tool", "sunny", result_of="c1"),
    Say("tool", "cold", result_of="c2"),
]
CUT = Answer("one two t", finish="", has_failed=True)


def user(text: str, image: str = "") -> list[Say]:
    return [Say("user", USAGE + text, image)]


ROWS = {
    "text": Row(user("hello"), Answer("You said: hello", usage=COUNTED)),
    "pieces": Row(user("[[chunks 5]][[reply one two three]]"), Answer("one two three", usage=COUNTED)),
    "thought": Row(user("[[think why]][[reply so]]"), Answer("so", usage=COUNTED)),
    "image": Row(user("[[reply seen]]", PNG), Answer("seen", usage=COUNTED)),
    "nothing": Row(user("[[empty]]"), Answer("", usage=COUNTED)),
    "cut at the limit": Row(user("[[finish length]][[reply cut o]]"), Answer("cut o", (), "length", COUNTED)),
    "refusal": Row(user("[[refuse no]]"), Answer("", usage=COUNTED, refusal="no")),
    "refused request": Row(user("[[status 400]]"), Answer("", (), "400 model_refused", has_failed=True)),
    "failed model": Row(user("[[status 503]]"), Answer("", (), "503 model_unavailable", has_failed=True)),
    "broken stream": Row(
        user("[[chunks 2]][[cut 1]][[reply one two three four]]"),
        Answer("", (), "503 model_unavailable", has_failed=True),
        CUT,
    ),
}
STATELESS_ROWS = {
    "history": Row(
        [Say("user", "a"), Say("assistant", "b"), *user("[[history]]")], Answer("3", usage=COUNTED)
    ),
    "instructions": Row([Say("system", "Be kind."), *user("[[history]]")], Answer("2", usage=COUNTED)),
    "call": Row(
        user('[[call weather {"a": 1}]]'), Answer("", (("weather", '{"a": 1}'),), "tool_calls", COUNTED)
    ),
    "calls": Row(
        user('[[think why]][[chunk-delay 0.01]][[call weather {"a": 1} + call weather {"b": 2}]]'),
        Answer("", (("weather", '{"a": 1}'), ("weather", '{"b": 2}')), "tool_calls", COUNTED),
    ),
    "results": Row([*CALLS, *user("[[history]]")], Answer("5", usage=COUNTED)),
    "image of an earlier message": Row(
        [*user("see", PNG), Say("assistant", "b"), *user("[[history]]")], Answer("3", usage=COUNTED)
    ),
}


@pytest.mark.parametrize("name", ROWS | STATELESS_ROWS)
async def test_stateless_calls_of_all_formats_agree(api: Api, model: ModelServer, name: str) -> None:
    row = (ROWS | STATELESS_ROWS)[name]
    seen = []
    for format, streams in product(PATHS, (False, True)):
        found = await ask(api, format, row.said, streams=streams)
        assert found == ((streams and row.streamed) or row.answer), (format, streams)
        seen.append(json.loads(model.bodies[-1]))
        await ask(api, format, user("hello"), streams=False)  # a failing model would be left alone soon
    assert seen[0]["tools"] == [{"type": "function", "function": FUNCTION}]
    assert [one["role"] for one in seen[0]["messages"]] == [one.role for one in row.said]
    assert seen == seen[:1] * 6


@pytest.mark.parametrize("name", ROWS)
async def test_sessions_of_all_formats_agree(api: Api, name: str) -> None:
    """A session tells a refusal as its text, because its next turn goes on from there."""
    row = ROWS[name]
    logs = []
    for format, streams in product(PATHS, (False, True)):
        session = f"{format}-{streams}"
        found = await ask(api, format, row.said, streams=streams, session=session)
        expected = (streams and row.streamed) or row.answer
        expected = msgspec.structs.replace(expected, text=expected.text or expected.refusal, refusal="")
        assert found == expected, session
        log = await api.get(f"/api/sessions/{session}/entries")
        logs.append([entry["body"] | {"stamp": ""} for entry in log["entries"]])
        await ask(api, format, user("hello"), streams=False)
    assert [entry["type"] for entry in logs[0][:2]] == ["spec", "user"]
    assert logs == logs[:1] * 6


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_a_session_names_the_system_prompt_that_it_ignores_in_every_format(api: Api, role: str) -> None:
    """Its prompt is frozen, and its log keeps what the model has seen."""
    for format, streams in product(PATHS, (False, True)):
        body = request(format, [Say("user", "[[history]]")], streams=streams, has_session=True)
        if format == "responses":
            body["input"] = [*Say(role, "Be kind.").for_responses(), *body["input"]]
        else:
            own = Say(role if format == "chat" else "system", "Be kind.").for_chat()
            body["messages"] = [own, *body["messages"]]
        headers = {"X-Talaria-Session": f"{format}-{streams}"}
        async with api.client.post(api.url + PATHS[format], json=body, headers=headers) as response:
            assert response.status == 200, format
            assert response.headers["X-Talaria-Ignored"] == "system", format
        log = await api.get(f"/api/sessions/{format}-{streams}/entries")
        assert "Be kind." not in json.dumps(log), format


async def test_instructions_and_system_messages_are_named_one_by_one(api: Api) -> None:
    body = {"input": Say("system", "Be kind.").for_responses() + Say("user", "a").for_responses()}
    headers = {"X-Talaria-Session": "demo"}
    async with api.client.post(
        api.url + "/v1/responses", json={**body, "instructions": "Be brief."}, headers=headers
    ) as response:
        assert response.headers["X-Talaria-Ignored"] == "instructions, system"


# -- generated conversations ------------------------------------------------------------------------------

WORDS = st.text('abc é😀"\\\n{}', min_size=1, max_size=12).map(lambda text: f"x{text}y")
PIECES = st.sampled_from(["", "[[chunks 3]]", "[[think why]]", "[[think why]][[chunks 4]]"])
ENDS = st.one_of(
    st.lists(st.sampled_from(["one", "two", "três"]), min_size=1, max_size=4).map(
        lambda words: f"[[reply {' '.join(words)}]]"
    ),
    st.sampled_from(
        [
            "[[empty]]",
            "[[finish length]][[reply cut o]]",
            "[[refuse no]]",
            '[[call weather {"a": [1, "é"]}]]',
            '[[call weather {} + call weather {"b": {}}]]',
            "[[chunks 3]][[cut 1]][[reply one two three four]]",
            "[[chunks 3]][[cut 2]][[reply one two three four]]",
            "[[error-in-stream]]",
        ]
    ),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Say]:
    """Generate a conversation with images, calls in any number and their results in any order. Its last
    message tells the model what to answer, and how its stream breaks."""
    said = [Say("system", draw(WORDS))] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(0, 3))):
        said.append(Say("user", draw(WORDS), PNG if draw(st.booleans()) else ""))
        for step in range(draw(st.integers(0, 2))):
            ids = [f"c{turn}{step}{n}" for n in range(draw(st.integers(1, 3)))]
            calls = tuple((id, "weather", draw(st.sampled_from(["{}", '{"a": 1}']))) for id in ids)
            said.append(Say("assistant", draw(st.one_of(st.just(""), WORDS)), calls=calls))
            said += [Say("tool", draw(WORDS), result_of=id) for id in draw(st.permutations(ids))]
        said.append(Say("assistant", draw(WORDS)))
    last = f"{USAGE}{draw(PIECES)}{draw(ENDS)}"
    return [*said, Say("user", last, PNG if draw(st.booleans()) else "")]


class Served(SimpleNamespace):
    """An open gateway: `runner`, `api` and `model`."""

    def __repr__(self) -> str:  # hypothesis shows it
        return "served"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Run a gateway on a loop that examples enter one by one."""
    with asyncio.Runner() as runner:
        scopes = AsyncExitStack()
        try:
            model = runner.run(scopes.enter_async_context(ModelServer()))
            api = runner.run(scopes.enter_async_context(in_process(tmp_path, model)))
            yield Served(runner=runner, api=api, model=model)
        finally:
            runner.run(scopes.aclose())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversations())
def test_any_conversation_means_the_same_in_all_formats(served: Served, said: list[Say]) -> None:
    api: Api = served.api
    model: ModelServer = served.model

    async def check() -> None:
        for streams in (False, True):
            answers, bodies = [], []
            for format in PATHS:
                answers.append(await ask(api, format, said, streams=streams))
                bodies.append(json.loads(model.bodies[-1]))
                await ask(
                    api, format, user("hello"), streams=False
                )  # a failing model would be left alone soon
            assert answers == answers[:1] * 3
            assert bodies == bodies[:1] * 3

    served.runner.run(check())
