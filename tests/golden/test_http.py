"""The HTTP API: whole answers with their heads, streams, metrics and the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from channels.http.test_approvals import waiting
from channels.http.test_events import open_stream
from channels.http.test_feed import open_feed
from channels.http.test_response_events import HEAD, ended
from channels.http.test_response_items import said
from golden.golden_files import Golden, laid_out
from support.asking_tools import Danger
from support.gateway import Api, in_process
from support.waiting import until
from talaria.access.credentials import Logins
from talaria.channels.http.api_calls import TurnAnswer
from talaria.channels.http.chat_completions import CompletionChunks, CompletionHead
from talaria.channels.http.description import DescriptionApi
from talaria.channels.http.part import HTTP
from talaria.channels.http.response import DEFAULT_TIMING
from talaria.channels.http.responses_output import ResponseEvents, ResponseForm
from talaria.channels.http.routes import create_app
from talaria.cluster.following import PeerClient
from talaria.core.errors import ErrorInfo
from talaria.core.events import Delta, Event, ReasoningDelta, RefusalDelta, ToolCallDelta
from talaria.core.messages import TokenUsage, ToolCall
from talaria.core.turns import TurnState
from talaria.testing.model_server import ModelServer

USAGE = "[[usage 9 4 3 2]]"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
FUNCTIONS = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def exchange(api: Api, method: str, path: str, body: Any = None, **headers: str) -> tuple[str, bytes]:
    """Send a request. Return it with its answer as a text, and the bytes of the answer's body."""
    async with api.client.request(method, api.url + path, json=body, headers=headers) as response:
        answer = await response.read()
        head = [f"{name.lower()}: {value}" for name, value in sorted(response.headers.items())]
        head = [line for line in head if not line.startswith(("content-length:", "etag:"))]
        sent = [f"{name}: {value}" for name, value in headers.items()] + [json.dumps(body)] * (
            body is not None
        )
        lines = [f"{method} {path}", *sent, "", str(response.status), *head, "", laid_out(answer.decode())]
    return "\n".join(lines), answer


CHAT: dict[str, dict[str, Any]] = {
    "plain": {"messages": user(f"{USAGE}[[reply Hello “you”.]]")},
    "reasoning": {"messages": user(f"{USAGE}[[think hm]][[reply yes]]"), "model": "fast"},
    "tool-calls": {
        "messages": user(USAGE + '[[call weather {"a": 1} + call weather {"b": 2}]]'),
        "tools": TOOLS,
    },
    "refusal": {"messages": user(f"{USAGE}[[refuse I cannot.]]")},
    "length": {"messages": user(f"{USAGE}[[finish length]][[reply cut o]]")},
    "error": {"messages": user("[[status 503]]")},
    "bad-request": {"messages": "no list"},
    "unknown-model": {"messages": user("hi"), "model": "nobody/nothing"},
}
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {"input": f"{USAGE}[[reply Hello “you”.]]", "metadata": {"a": "b"}, "instructions": "Be brief."},
    "reasoning": {"input": f"{USAGE}[[think hm]][[reply one]]"},
    "tool-calls": {
        "input": USAGE + '[[reply I look.]][[call weather {"a": 1} + call weather {"b": 2}]]',
        "tools": FUNCTIONS,
    },
    "refusal": {"input": f"{USAGE}[[refuse I cannot.]]"},
    "length": {"input": f"{USAGE}[[finish length]][[reply cut o]]"},
    "error": {"input": "[[status 503]]"},
    "bad-request": {"input": 7},
}


# A gateway joins neighbouring pieces that nobody has read yet, so the gateway sends its answers here in one
# piece. `test_the_events_of_streams` has streams with many.
STREAMED = ("plain", "reasoning", "refusal", "length", "error", "bad-request")


@pytest.mark.parametrize("case", [*CHAT, *(f"{case}-stream" for case in STREAMED)])
async def test_chat_completions(api: Api, golden: Golden, case: str) -> None:
    name, is_stream, _ = case.partition("-stream")
    more = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    text, _ = await exchange(api, "POST", "/v1/chat/completions", {**CHAT[name], **more})
    golden.check(f"chat/{case}.txt", text)


@pytest.mark.parametrize("case", [*RESPONSES, *(f"{case}-stream" for case in STREAMED)])
async def test_responses(api: Api, golden: Golden, case: str) -> None:
    name, is_stream, _ = case.partition("-stream")
    body = RESPONSES[name] | ({"stream": True} if is_stream else {})
    text, _ = await exchange(api, "POST", "/v1/responses", body)
    golden.check(f"responses/{case}.txt", text)


EVENTS: tuple[Event, ...] = (
    ReasoningDelta("h"), ReasoningDelta("m"), Delta("I "), Delta("look."),
    ToolCallDelta(0, "a", "f", ""), ToolCallDelta(0, "", "", '{"x"'), ToolCallDelta(0, "", "", ": 1}"),
    ToolCallDelta(1, "b", "g", "{}"),
)  # fmt: skip
TOLD = said("I look.", ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "{}"), thought="hm")
SPENT = TokenUsage(input=9, output=3, cached=4, reasoning=1)


def test_the_events_of_streams(golden: Golden) -> None:
    chunks = CompletionChunks(CompletionHead("chatcmpl-1", 12, "main"), lambda: "p/m", with_usage=True)
    told = [*map(chunks.encode, EVENTS), chunks.end(TurnAnswer(TOLD, "tool_calls", SPENT))]
    golden.check("chat/events.txt", b"".join(told).decode())
    events = ResponseEvents(HEAD)
    told = [*map(events.encode, EVENTS), events.end(TurnAnswer(TOLD, "tool_calls", SPENT, 15.0))]
    events = ResponseEvents(HEAD, ResponseForm(tells_refusals=True))
    refused = msgspec.structs.replace(said("No."), refused=True)
    told += [
        *map(events.encode, (RefusalDelta("N"), RefusalDelta("o."))),
        events.end(TurnAnswer(refused)),
    ]
    events = ResponseEvents(HEAD)
    told += [
        events.encode(Delta("par")),
        events.fail(ErrorInfo("model", "It broke.", "Fix it."), ended(TurnState.FAILED)),
    ]
    golden.check("responses/events.txt", b"".join(told).decode())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_streams_that_break_off(api: Api, golden: Golden, path: str) -> None:
    text = "[[chunks 2]][[cut 1]][[reply one two three four]]"
    body = {"messages": user(text)} if "chat" in path else {"input": text}
    told, _ = await exchange(api, "POST", path, {**body, "stream": True})
    golden.check(f"{'chat' if 'chat' in path else 'responses'}/broken-stream.txt", told)


async def test_chained_responses(api: Api, golden: Golden) -> None:
    first, answer = await exchange(api, "POST", "/v1/responses", {"input": f"{USAGE}one"})
    id = json.loads(answer)["id"]
    body = {"input": f"{USAGE}[[history]]", "previous_response_id": id}
    rest = [
        await exchange(api, "POST", "/v1/responses", body),
        await exchange(api, "GET", f"/v1/responses/{id}"),
        await exchange(api, "GET", f"/v1/responses/{id}/input_items"),
        await exchange(api, "POST", "/v1/responses", body | {"previous_response_id": "resp_none"}),
        await exchange(api, "DELETE", f"/v1/responses/{id}"),
        await exchange(api, "GET", f"/v1/responses/{id}"),
    ]
    golden.check("responses/chained.txt", "\n".join([first, *(text for text, _ in rest)]))


# -- one conversation: a tool, a question, a failure and a job ----------------------------------------------


SAID = (
    f'{USAGE}[[call todo {{"items": []}}]]{USAGE}[[reply fine]]',
    f'{USAGE}[[think hm]][[call danger {{"what": "x"}}]]{USAGE}[[reply done]]',
    "[[status 503]]",
)
JOB = {"text": "the news", "when": "every weekday at 9", "name": "news", "timezone": "UTC"}


@pytest.fixture
async def asking(tmp_path: Path, model: ModelServer) -> AsyncIterator[Api]:
    async with in_process(tmp_path / "home", model, parts=Danger().parts()) as api:
        yield api


async def test_the_story_of_a_conversation(asking: Api, golden: Golden) -> None:
    api = asking
    async with open_feed(api) as feed:
        await anext(feed)  # ready
        turns = [(await api.say("one", SAID[0]))["id"], await api.begin("one", SAID[1])]
        (asked,) = await waiting(api)
        golden.check("api/approvals.txt", (await exchange(api, "GET", "/api/approvals"))[0])
        async with open_stream(api, turns[1]) as events:
            await api.post(f"/api/approvals/{asked['id']}", {"decision": "approve"})
            golden.check("api/turn-events-live.txt", await events.text())
        turns.append((await api.say("one", SAID[2]))["id"])
        changes = []
        async for _, name, data in feed:
            changes.append(f"{name} {laid_out(json.dumps(data, ensure_ascii=False))}")
            if name == "failed":
                break
    golden.check("api/events.txt", "\n".join(changes))
    stories: dict[str, list[tuple[str, str]]] = {
        "turn-events": [("GET", f"/api/turns/{id}/events") for id in turns],
        "turns": [("GET", f"/api/turns{more}") for more in ("", "/none", *(f"/{id}" for id in turns))],
        "sessions": [
            ("GET", f"/api/sessions{more}") for more in ("", "/one", "/one/entries", "/one/files", "/no")
        ],
        "search": [("GET", "/api/search?q=fine")],
    }
    for name, calls in stories.items():
        golden.check(f"api/{name}.txt", "\n".join([(await exchange(api, *call))[0] for call in calls]))


async def test_the_story_of_a_job(api: Api, golden: Golden) -> None:
    calls: list[tuple[str, str, Any]] = [
        ("POST", "/api/jobs", JOB | {"confirm": False}),
        ("POST", "/api/jobs", JOB),
        ("GET", "/api/jobs", None),
        ("PATCH", "/api/jobs/news", {"state": "paused"}),
        ("POST", "/api/jobs/news/run", None),
        ("GET", "/api/jobs/news/runs", None),
        ("POST", "/api/jobs", JOB | {"when": "every day"}),
        ("DELETE", "/api/jobs/news", None),
        ("GET", "/api/jobs/news", None),
    ]
    told = []
    for call in calls:
        told.append((await exchange(api, *call))[0])
        if call[1].endswith("/run"):
            await until(lambda: _has_run(api))
    golden.check("api/jobs.txt", "\n".join(told))


async def _has_run(api: Api) -> bool:
    (run,) = (await api.get("/api/jobs/news/runs"))["items"]
    return bool(run["state"] == "done")


# -- descriptions --------------------------------------------------------------------------------------------


async def test_the_openapi_documents(api: Api, golden: Golden) -> None:
    async with api.client.get(f"{api.url}/openapi.json") as response:
        golden.check("openapi.json", laid_out(await response.text()))
    gateway = replace(api.gateway, peers=PeerClient("any token", now=api.gateway.clock.now))
    logins = Logins("any token", gateway.clock)
    app = create_app(gateway, gateway.settings.of(HTTP), logins, frozenset(), DEFAULT_TIMING)
    member = {path: methods for path, methods in app.routes.items() if path.startswith("/cluster/")}
    described = await DescriptionApi(member).openapi(None)  # type: ignore[arg-type]
    golden.check("openapi-cluster.json", laid_out(described.body.decode()))


async def test_the_names_types_help_and_labels_of_metrics(api: Api, golden: Golden) -> None:
    await api.say("one", '[[call todo {"action": "list"}]][[reply fine]]')
    await api.say("one", "[[status 503]]")
    async with api.client.get(f"{api.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    golden.check(
        "metrics.txt", "\n".join(line if line[0] == "#" else line.rpartition(" ")[0] for line in lines)
    )


async def test_the_shape_of_status_and_pool(api: Api, golden: Golden) -> None:
    await api.say("one", "hello")
    told = [
        (await exchange(api, "GET", path))[0] for path in ("/api/status", "/api/pool", "/healthz", "/readyz")
    ]
    golden.check("api/status.txt", re.sub(r'":[-\d.e]+(?=[,}\n])', '":NUMBER', "\n".join(told)))
