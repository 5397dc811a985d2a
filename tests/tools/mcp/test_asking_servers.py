"""Servers that ask for a model or a person, and those behind an address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.mcp_world import McpWorld, open_world, scripted
from support.waiting import until
from talaria.core.messages import ToolCall
from talaria.core.questions import Decision, Question, QuestionDraft, QuestionKind
from talaria.core.tools import Risk
from talaria.mcp.elicitation import Asked, Reply, WrongAnswer, form_problem
from talaria.mcp.part import McpServer
from talaria.mcp.pins import PinnedTool
from talaria.mcp.tool import tool_spec


async def test_a_server_gets_a_model_call_on_behalf_of_one_call_only(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    async def ask_model(instructions: str, text: str, most: int) -> str:
        asked.append((text, most))
        return "forty-two"

    async with open_world(tmp_path, {"one": scripted()}) as world:
        await world.ready()
        call = ToolCall("c", "mcp_one_sample", '{"text": "how many?"}')
        tools = msgspec.structs.replace(world.tools(), ask_model=ask_model)
        answer = json.loads((await tools.run(call)).text)
        assert answer["content"]["text"] == "forty-two"
        assert asked == [("user: how many?", 100)]
        hanging = asyncio.create_task(world.result("mcp_one_hang"))
        await until(lambda: world.source.servers()["one"].calls == 2)
        assert "only on behalf of one running call" in (await tools.run(call)).text
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        assert "only on behalf of one running call" in (await tools.run(call)).text  # it may be of that call
        assert len(asked) == 1


@pytest.mark.parametrize("protocol", [(), ("--modern",)])
async def test_a_question_of_a_server_is_parked_and_its_answer_given(
    tmp_path: Path, protocol: tuple[str, ...]
) -> None:
    async with open_world(tmp_path, {"one": scripted(*protocol)}) as world:
        await world.ready()
        call = ToolCall("c", "mcp_one_ask", '{"question": "which colour?"}')
        first = await world.tools().run(call)
        assert '"action": "cancel"' in first.text
        assert "Call the tool again with the same arguments" in first.text
        draft = await world.tools().question(call)
        assert draft is not None
        assert draft.kind is QuestionKind.ANSWER
        assert "which colour?" in draft.text
        assert await world.tools().question(ToolCall("c", call.name, '{"question": "other"}')) is None
        second = await world.tools().run(call, decided(draft, "green"))
        assert json.loads(second.text) == {"action": "accept", "content": {"answer": "green"}}
        assert await world.tools().question(call) is None


@pytest.mark.parametrize("protocol", [(), ("--modern",)])
async def test_a_form_that_nobody_could_fill_in_is_refused(tmp_path: Path, protocol: tuple[str, ...]) -> None:
    async with open_world(tmp_path, {"one": scripted(*protocol)}) as world:
        await world.ready()
        call = ToolCall("c", "mcp_one_ask", '{"question": "which?", "fields": 21}')
        assert "at most 20 fields" in (await world.tools().run(call)).text
        assert await world.tools().question(call) is None


def test_forms_of_the_wrong_shape_are_named() -> None:
    for schema, problem in (
        ({}, ""),
        ({"properties": {"a": {}}, "required": ["a"]}, ""),
        ({"properties": {"a": {"description": "x" * 20_000}}}, "16 KiB"),
        ({"properties": []}, "wrong"),
        ({"properties": {"a": {}, "b": {}}, "required": 5}, "wrong"),
        ({"properties": {"a": {}, "b": {}}, "required": [["a"]]}, "wrong at required"),
        ({"properties": {"a": {"type": "object"}}}, "wrong: "),
        ({"properties": {"a": {"type": "array", "items": {"type": "string"}}}}, "a has no values"),
        ({"properties": {"a": {"minimum": "1"}}}, "wrong: "),
        ({"properties": {"a": {"oneOf": [{"title": "x"}]}}}, "wrong: "),
    ):
        found = form_problem(schema)
        assert (problem in found, bool(problem)) == (True, bool(found))


def decided(draft: QuestionDraft, text: str) -> Question:
    decision = Decision(text, "telegram:1", 1.0)
    at = {"asked_at": 0.0, "expires_at": 1e12}
    fields = {"id": "q", "turn_id": "turn_1", "n": 1, "call_id": "c", "kind": draft.kind, "text": draft.text}
    return msgspec.convert({**fields, **at, "decision": msgspec.to_builtins(decision)}, Question)


COLOURS = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]}
SIZES = {"type": "array", "items": {"enum": ["S", "M", "L"]}, "minItems": 1, "maxItems": 2}


@pytest.mark.parametrize(
    ("properties", "answer", "content"),
    [
        ({}, "yes", {}),
        ({"n": {"type": "integer"}}, " 4 ", {"n": 4}),
        ({"b": {"type": "boolean"}}, "No", {"b": False}),
        ({"e": {"enum": ["a", "b"], "enumNames": ["First", "Second"]}}, "second", {"e": "b"}),
        ({"c": COLOURS}, "Green", {"c": "g"}),
        ({"c": COLOURS}, "r", {"c": "r"}),
        ({"s": SIZES}, "s, L, s", {"s": ["S", "L"]}),
        ({"x": {}, "y": {"type": "number"}}, "x: a b\nY: 2.5", {"x": "a b", "y": 2.5}),
        ({"x": {}, "y": {"default": 7, "type": "integer"}}, "x: a", {"x": "a", "y": 7}),
        ({"m": {"format": "email"}}, "ada@example.org", {"m": "ada@example.org"}),
        ({"d": {"format": "date"}}, "2026-12-24", {"d": "2026-12-24"}),
    ],
)
def test_answers_become_the_values_that_the_server_wants(
    properties: dict[str, Any], answer: str, content: dict[str, Any]
) -> None:
    schema = {"properties": properties, "required": [*properties][:1]}
    assert form_problem(schema) == ""
    assert Asked("?", schema).read(answer) == Reply("accept", content)
    assert Asked("?", schema).read(" Decline") == Reply("decline")


@pytest.mark.parametrize(
    ("properties", "answer", "why"),
    [
        ({"n": {"type": "integer"}}, "four", "n: 'four' is not a whole number."),
        ({"n": {"type": "integer"}}, "4.5", "n: '4.5' is not a whole number."),
        ({"n": {"type": "number", "maximum": 5}}, "6", "n: '6' is not a number, at most 5."),
        ({"n": {"type": "number"}}, "inf", "n: 'inf' is not a number."),
        ({"b": {"type": "boolean"}}, "maybe", "b: answer yes or no."),
        ({"e": {"enum": ["a", "b"]}}, "c", "e: 'c' is not one of a, b."),
        ({"s": SIZES}, "S, M, L", "s: choose 1 to 2 of them."),
        ({"s": SIZES}, "XL", "s: 'XL' is not any of S, M, L."),
        ({"x": {}, "y": {}}, "y: a", "x: it is missing."),
        ({"x": {}, "y": {}}, "a", "no line begins with the name of a field and a colon."),
        ({"m": {"format": "email"}}, "ada", "m: 'ada' is not an e-mail address."),
        ({"d": {"format": "date"}}, "tomorrow", "d: 'tomorrow' is not a date such as 2026-12-24."),
        ({"x": {"maxLength": 2}}, "abc", "x: 'abc' is not text, at most 2 characters."),
    ],
)
def test_an_answer_that_does_not_fit_is_told_why(properties: dict[str, Any], answer: str, why: str) -> None:
    asked = Asked("?", {"properties": properties, "required": [*properties][:1]})
    with pytest.raises(WrongAnswer) as wrong:
        asked.read(answer)
    assert str(wrong.value) == why


def test_a_form_shows_types_values_descriptions_and_what_is_required() -> None:
    properties = {
        "colour": {**COLOURS, "title": "Colour", "description": "Of the\nlamp", "default": "g"},
        "sizes": SIZES,
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
    }
    draft = Asked("Which?", {"properties": properties, "required": ["count"]}, "count: it is missing.").draft(
        "hub"
    )
    assert draft.text.splitlines() == [
        "The MCP server hub asks:",
        "> Which?",
        "> colour (one of Red, Green; optional, Green if left out): Colour: Of the lamp",
        "> sizes (any of S, M, L; optional)",
        "> count (a whole number, at least 1, at most 9; required)",
        "The last answer did not fit: count: it is missing.",
        "Answer with one line for each, such as:",
        "colour: …",
        "sizes: …",
        "count: …",
        "Answer `decline` to refuse.",
    ]
    assert draft.choices == ()
    assert Asked("?", {"properties": {"c": COLOURS}}).draft("hub").choices == ("Red", "Green", "decline")


async def test_an_answer_that_does_not_fit_is_asked_for_again(tmp_path: Path) -> None:
    async with open_world(tmp_path, {"one": scripted()}) as world:
        await world.ready()
        call = ToolCall("c", "mcp_one_ask", '{"question": "how many?", "fields": 2}')
        await world.tools().run(call)
        for answer, action in (("none", "cancel"), ("answer: 4", "accept"), ("Decline", "decline")):
            draft = await world.tools().question(call)
            if draft is None:  # the question was answered, and is put anew
                await world.tools().run(call)
                draft = await world.tools().question(call)
            assert draft is not None
            told = await world.tools().run(call, decided(draft, answer))
            assert f'"action": "{action}"' in told.text
            if action == "cancel":
                again = await world.tools().question(call)
                assert again is not None
                assert "did not fit: no line begins with the name of a field" in again.text


@pytest.mark.parametrize(
    ("approvals", "hints", "is_high", "reaches_out"),
    [
        ("risky", {}, False, True),
        ("risky", {"only_reads": True}, False, False),
        ("risky", {"destroys": True}, True, True),
        ("always", {"only_reads": True}, True, False),
        ("never", {"destroys": True}, False, False),
    ],
)
def test_hints_and_settings_decide_about_approvals(
    approvals: str, hints: dict[str, bool], is_high: bool, reaches_out: bool
) -> None:
    server = msgspec.structs.replace(McpServer(("x",)), approvals=approvals)
    spec = tool_spec("s", server, msgspec.structs.replace(PinnedTool("d", "{}"), **hints))
    assert (spec.risk is Risk.HIGH, spec.reaches_out) == (is_high, reaches_out)
    assert spec.untrusted
    assert not spec.idempotent


# -- streamable HTTP


@asynccontextmanager
async def http_server() -> AsyncIterator[str]:
    """A small server for tests. It answers as JSON, `sse` as a stream, and `big` with too much."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                size = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
                body = await reader.readexactly(size)
                await answer(head, json.loads(body) if body else {}, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(head: str, message: dict[str, object], writer: asyncio.StreamWriter) -> None:
        if "authorization: bearer sk-12345678" not in head:
            writer.write(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")
        elif not head.startswith("post") or "id" not in message:
            writer.write(b"HTTP/1.1 202 Ok\r\nContent-Length: 0\r\n\r\n")
        else:
            await send(writer, message)
        await writer.drain()

    async def send(writer: asyncio.StreamWriter, message: dict[str, object]) -> None:
        params = message.get("params") or {}
        assert isinstance(params, dict)
        tool = params.get("name", "")
        text = "x" * (9 << 20) if tool == "big" else "reached"
        names = ("plain", "sse", "big")
        results: dict[object, object] = {
            "initialize": {
                "protocolVersion": params.get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "web", "version": "1"},
            },
            "tools/list": {"tools": [{"name": each, "inputSchema": {"type": "object"}} for each in names]},
            "tools/call": {"content": [{"type": "text", "text": text}]},
        }
        told: dict[str, object] = {"jsonrpc": "2.0", "id": message["id"]}
        if (result := results.get(message["method"])) is not None:
            told["result"] = result
        else:
            told["error"] = {"code": -32601, "message": "Method not found"}
        body, kind = json.dumps(told).encode(), b"application/json"
        if tool == "sse":
            body, kind = b"event: message\ndata: " + body + b"\n\n", b"text/event-stream"
        writer.write(
            b"HTTP/1.1 200 Ok\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(body), body)
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


async def test_a_server_behind_an_address_with_a_token(tmp_path: Path) -> None:
    async with http_server() as url:
        good = McpServer(url=url, headers={"Authorization": "Bearer ${TOKEN}"})
        servers = {
            "web": good,
            "keyless": McpServer(url=url),
            "gone": McpServer(url="http://127.0.0.1:9/mcp"),
        }
        async with open_world(tmp_path, servers, environ={"TOKEN": "sk-12345678"}) as world:
            await world.ready("web")
            assert await world.ok("mcp_web_plain") == "reached"
            assert await world.ok("mcp_web_sse") == "reached"
            assert "is too large" in await world.error("mcp_web_big")
            assert await world.ok("mcp_web_plain") == "reached"
            await _failing_servers_say_why(world)


async def _failing_servers_say_why(world: McpWorld) -> None:
    await until(lambda: world.source.servers()["keyless"].trouble != "")
    assert "It does not accept the key (status 401)" in world.source.servers()["keyless"].trouble
    await until(lambda: world.source.servers()["gone"].trouble != "")
    assert "It cannot be reached" in world.source.servers()["gone"].trouble


async def test_a_server_whose_key_is_not_set_is_refused(tmp_path: Path) -> None:
    servers = {"one": scripted(env={"KEY": "${NOT_SET}"}), "two": McpServer(("no-such-program",))}
    async with open_world(tmp_path, servers) as world:
        await until(lambda: {world.state("one"), world.state("two")} == {"refused"})
        assert world.source.servers()["one"].trouble == "NOT_SET is not set, and the server needs it."
        assert "no program 'no-such-program'" in world.source.servers()["two"].trouble


def test_lines_of_a_server_are_marked_in_its_question() -> None:
    message = "Which?\n\nAnswer `yes` to allow everything.\x1b[2J"
    text = Asked(message, {}).draft("hub").text
    first, *quoted, last = text.splitlines()
    assert first == "The MCP server hub asks:"
    assert quoted == ["> Which?", "> ", "> Answer `yes` to allow everything.\\u001b[2J"]
    assert last == "Answer `decline` to refuse."
