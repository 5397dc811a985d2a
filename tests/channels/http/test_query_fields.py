"""Every field of a query: the gateway takes what OpenAPI describes, and names the field of other values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from support.gateway import Api

Described = Mapping[str, Any]
WORDS = {"integer": ("x", "", "1.5", "true"), "number": ("x", "", "true"), "boolean": ("x", "2")}
# A cursor is opaque: only the gateway itself can write one that it takes.
CURSOR, CHAT = "after", "agent:main:http:api:one"
BODIES: Mapping[str, Any] = {
    "/api/sessions/{x}/messages": {"text": "hello"},
    "/api/memory/{page}": {"text": "A fact."},
    "/api/files": {},
}


class QueryField:
    """A field of one call, with the values around its limits."""

    def __init__(
        self, method: str, path: str, field: Mapping[str, Any], others: list[Mapping[str, Any]]
    ) -> None:
        self.method = method
        self.path = path
        self.name: str = field["name"]
        self.schema = field["schema"]
        self.is_required = field.get("required", False)
        self.needed = {one["name"]: "hello" for one in others if one.get("required")}

    def taken(self) -> Iterator[str]:
        schema = self.schema
        yield from schema.get("enum", ())
        yield from (str(schema[key]) for key in ("minimum", "maximum") if key in schema)
        if schema.get("type") == "boolean":
            yield from ("true", "false")
        if schema.get("type") == "string" and self.name != CURSOR and "enum" not in schema:
            yield CHAT if self.name == "chat" else "hello".ljust(schema.get("maxLength", 5), "o")

    def refused(self) -> Iterator[str]:
        schema = self.schema
        yield from WORDS.get(schema.get("type"), ())
        if "enum" in schema:
            yield from ("", "other")
        if "minimum" in schema:
            yield str(schema["minimum"] - 1)
        if "maximum" in schema:
            yield str(schema["maximum"] + 1)
        if "maxLength" in schema:
            yield "o" * (schema["maxLength"] + 1)
        if schema.get("minLength"):
            yield "o" * (schema["minLength"] - 1)


async def query_fields(api: Api) -> list[QueryField]:
    found = []
    for path, methods in (await api.get("/openapi.json"))["paths"].items():
        for method, call in methods.items():
            fields = [field for field in call.get("parameters", ()) if field["in"] == "query"]
            found += [QueryField(method, path, field, fields) for field in fields]
    return found


async def names_of_things(api: Api) -> dict[str, str]:
    """Create one thing of each kind, and return its name for each path that needs one."""
    await api.say("one", "hello")
    response = await api.post("/v1/responses", {"input": "hello"})
    daily = {"when": "every day at 9", "text": "News", "name": "news", "zone": "UTC"}
    job = await api.post("/api/jobs", daily, 201)
    return {
        "/api/sessions/{x}": "/api/sessions/one",
        "/api/jobs/{id}": f"/api/jobs/{job['id']}",
        "/v1/responses/{id}": f"/v1/responses/{response['id']}",
        "/v1/conversations/{id}": "/v1/conversations/one",
        "/api/memory/{page}": "/api/memory/MEMORY.md",
    }


async def test_a_call_takes_the_values_that_openapi_describes_and_names_the_field_of_others(api: Api) -> None:
    things = await names_of_things(api)
    fields = await query_fields(api)
    assert len(fields) >= 25

    async def ask(field: QueryField, query: Mapping[str, str]) -> tuple[int, Any]:
        path = field.path
        for described, real in things.items():
            path = path.replace(described, real)
        body = BODIES.get(field.path)
        async with api.client.request(field.method, api.url + path, params=query, json=body) as response:
            return response.status, await response.json()

    for field in fields:
        for value in field.taken():
            status, answer = await ask(field, {**field.needed, field.name: value})
            assert status < 400, (field.method, field.path, field.name, value, answer)
        for value in field.refused():
            status, answer = await ask(field, {**field.needed, field.name: value})
            told = answer.get("error", {})
            assert (status, told.get("type")) == (400, "bad_request"), (field.path, field.name, value, answer)
            assert re.search(rf"\b{field.name}\b", told["message"]), (field.path, value, told)
        if field.is_required:
            status, answer = await ask(field, {})
            assert (status, field.name in answer["error"]["message"]) == (400, True)
        if field.name == CURSOR:
            status, answer = await ask(field, {**field.needed, CURSOR: "nowhere"})
            assert (status, answer["error"]["type"]) == (400, "bad_request"), (field.path, answer)


async def test_a_list_without_a_limit_has_as_many_items_as_openapi_says(api: Api) -> None:
    for _ in range(26):
        await api.say("one", "hello")
    many = await api.post("/v1/responses", {"input": [{"role": "user", "content": "hello"}] * 21})
    lists = {
        "/api/turns": "/api/turns",
        "/api/sessions/{x}/entries": "/api/sessions/one/entries",
        "/v1/responses/{id}/input_items": f"/v1/responses/{many['id']}/input_items",
    }
    for path, real in lists.items():
        described = (await api.get("/openapi.json"))["paths"][path]["get"]["parameters"]
        (text,) = [field["description"] for field in described if field["name"] == "limit"]
        page = await api.get(f"{real}?unknown=1")
        (items,) = [page[name] for name in ("items", "entries", "data") if name in page]
        assert [len(items)] == [int(number) for number in re.findall(r"\d+", text)], path
