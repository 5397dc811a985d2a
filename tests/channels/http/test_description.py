"""`/openapi.json`: made of the routes and their structs, and true."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from channels.http.test_events import open_stream, read
from channels.http.test_feed import open_feed
from support.gateway import Api, in_process
from talaria.access.credentials import Logins
from talaria.channels.http.description import ChatCompletionChunk, ChunkError, DescribedCall, ResponseEvent
from talaria.channels.http.errors import STATUS
from talaria.channels.http.part import HTTP
from talaria.channels.http.response import DEFAULT_TIMING
from talaria.channels.http.routes import create_app
from talaria.channels.http.routing import ApiRoute
from talaria.testing.model_server import ModelServer


def routes_of(api: Api) -> Mapping[str, Mapping[str, ApiRoute]]:
    gateway = api.gateway
    logins = Logins("any token", gateway.clock)
    return create_app(gateway, gateway.settings.of(HTTP), logins, frozenset(), DEFAULT_TIMING).routes


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for member in value.values():
            yield from references(member)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


async def test_the_document_describes_every_call(api: Api) -> None:
    document = await api.get("/openapi.json")
    assert document["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    declared = {(method, path) for path, methods in routes_of(api).items() for method in methods}
    assert described == declared
    components = document["components"]["schemas"]
    assert all(re.fullmatch(r"[A-Z]\w+", name) for name in components)
    assert {ref.removeprefix("#/components/schemas/") for ref in references(document)} <= set(components)
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            assert call["summary"], path
            named = {field["name"] for field in call["parameters"] if field["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            assert bool(call["security"]) == bool(call["x-roles"])
            assert all(answer["description"] for answer in call["responses"].values())
            if method == "get":
                assert "requestBody" not in call


async def test_every_type_of_error_is_described_somewhere(api: Api) -> None:
    described = {
        kind
        for path, methods in routes_of(api).items()
        for method, route in methods.items()
        for kinds in DescribedCall(path, method, route.access, route.call).errors().values()
        for kind in kinds
    }
    assert described == set(STATUS) - {"wrong_method"}  # is answered where there is no call


async def test_the_header_that_names_sessions_is_described_as_configured(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model, session_header="X-Chat") as api:
        document = await api.get("/openapi.json")
    for path in ("/v1/chat/completions", "/v1/responses"):
        call = document["paths"][path]["post"]
        named = {field["name"] for field in call["parameters"]}
        assert named >= {"X-Chat", "X-Talaria-Session", "X-Talaria-Tools", "Idempotency-Key"}
        assert "X-Talaria-Turn-Id" in call["responses"]["200"]["headers"]


async def test_the_document_is_made_once_and_ends_with_a_line_end(api: Api) -> None:
    bodies = []
    for _ in range(2):
        async with api.client.get(f"{api.url}/openapi.json") as response:
            bodies.append(await response.read())
    assert bodies[0] == bodies[1]
    assert bodies[0].endswith(b"}\n")


async def test_the_types_of_a_description_are_those_of_the_answers(api: Api) -> None:
    turn = await api.say("one", '[[call todo {"action": "list"}]] [[reply fine]]')
    stored = await api.post("/v1/responses", {"input": "hello"})
    (await api.post("/api/tokens", {"name": "other", "role": "read"}, 201))
    known = {
        "/api/turns/{id}": turn["id"],
        "/api/sessions/{x}": "one",
        "/api/sessions/{x}/entries": "one",
        "/api/sessions/{x}/files": "one",
        "/v1/responses/{id}": stored["id"],
        "/v1/responses/{id}/input_items": stored["id"],
        "/v1/models/{model}": "scripted/any",
    }
    seen = set()
    for path, methods in routes_of(api).items():
        call = methods["GET"].call if "GET" in methods else None
        if call is None or call.answer is None or ("{" in path and path not in known):
            continue
        query = {"q": "fine"} if path == "/api/search" else {}
        place = api.url + re.sub(r"{\w+}", known.get(path, ""), path)
        async with api.client.get(place, params=query) as response:
            assert response.status == 200, path
            if isinstance(call.answer, str):
                assert call.answer == response.content_type
            else:
                told = msgspec.json.decode(await response.read(), type=call.answer)
                assert_same(json.loads(await response.read()), msgspec.to_builtins(told), path)
        seen.add(path)
    assert len(seen) > 18


def assert_same(answer: Any, described: Any, place: str) -> None:
    """No member of the answer may be missing from its type."""
    if isinstance(answer, dict) and isinstance(described, dict):
        if place != "/v1/responses/{id}":  # repeats the parameters of the request
            assert set(answer) <= set(described), place
        for name in set(answer) & set(described):
            assert_same(answer[name], described[name], f"{place}.{name}")
    elif isinstance(answer, list):
        for one, other in zip(answer, described, strict=True):
            assert_same(one, other, place)


async def test_streams_bring_the_events_that_are_described(api: Api) -> None:
    kinds = {path: methods["GET"].call.events for path, methods in routes_of(api).items() if "GET" in methods}
    async with open_feed(api) as feed:
        await anext(feed)  # ready
        turn_id = await api.begin("one", '[[think hm]] [[call todo {"action": "list"}]] [[reply fine]]')
        async with open_stream(api, turn_id) as response:
            async for _, name, data in read(response):
                msgspec.convert(data, kinds["/api/turns/{id}/events"][name])
        async for _, name, data in feed:
            msgspec.convert(data, kinds["/api/events"][name])
            if name == "done":
                break
    body = {"messages": [{"role": "user", "content": "[[chunks 3]] hello"}], "stream": True}
    body["stream_options"] = {"include_usage": True}
    *chunks, done = await data_of(api, "/v1/chat/completions", body)
    assert done == "[DONE]"
    assert len([msgspec.json.decode(chunk, type=ChatCompletionChunk) for chunk in chunks]) > 3
    failing = [{"role": "user", "content": "[[chunks 9]] [[cut 3]] hello there"}]
    *_, last, done = await data_of(api, "/v1/chat/completions", {**body, "messages": failing})
    assert done == "[DONE]"
    assert msgspec.json.decode(last, type=ChunkError).error.type == "model_unavailable"
    events = await data_of(api, "/v1/responses", {"input": "hello", "stream": True})
    told = [msgspec.json.decode(event, type=ResponseEvent) for event in events]
    assert (told[0].type, told[-1].type) == ("response.created", "response.completed")


async def data_of(api: Api, path: str, body: Any) -> list[str]:
    async with api.client.post(api.url + path, json=body) as response:
        assert response.content_type == "text/event-stream"
        text = await response.text()
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


async def test_a_status_that_is_not_described_is_found(tmp_path: Path, model: ModelServer) -> None:
    """The check at the end of every test with a gateway can fail."""
    with pytest.raises(AssertionError, match="418"):
        async with in_process(tmp_path, model) as api:
            api.gateway.metrics.request_answered("/api/turns", 418)


async def test_generators_of_clients_can_read_every_schema(api: Api) -> None:
    """openapi-python-client, openapi-typescript and hey-api made clients of it (docs/clients.md)."""
    document = await api.get("/openapi.json")

    def check(schema: Any, place: str) -> None:
        if isinstance(schema, list):
            for n, each in enumerate(schema):
                check(each, f"{place}[{n}]")
        elif isinstance(schema, dict):
            if schema.get("type") == "array":
                assert isinstance(schema.get("items"), dict), place
                assert "prefixItems" not in schema, place
            if isinstance(schema.get("enum"), list):
                assert schema.get("type") in {"string", "integer"}, place
            for name, value in schema.items():
                check(value, f"{place}.{name}")

    check(document["paths"], "paths")
    check(document["components"], "components")
    job = document["components"]["schemas"]["JobBody"]
    assert "Default: `" in job["properties"]["chat"]["description"]
    assert not any("default" in field for field in job["properties"].values())
    assert not job["required"]
