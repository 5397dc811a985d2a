from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talaria.core.errors import ToolError
from talaria.core.messages import ToolCall, ToolOutcome, ToolResult
from talaria.core.tools import ToolContext
from talaria.tools.execution import execute
from talaria.tools.function import FunctionTool, parameters
from talaria.tools.registry import builtin_registry
from talaria.tools.settings import ToolSettings
from talaria.tools.toolset import ToolSet
from tools.conftest import Desk, context, tool

SCHEMA = parameters({"text": {"type": "string"}, "count": {"type": "integer"}}, required=["text"])


async def echo(arguments: dict[str, Any], context: ToolContext) -> str:
    return msgspec.json.encode(arguments).decode()


async def call(tools: ToolSet, name: str, arguments: str = "{}", **settings: Any) -> ToolResult:
    where = context(Path("/nonexistent"))
    return await execute(tools, ToolCall("c1", name, arguments), where, ToolSettings(**settings))


ECHO = ToolSet([tool("echo", schema=SCHEMA, handler=echo)])


async def test_a_good_call_gets_its_result() -> None:
    result = await call(ECHO, "echo", '{"text":"hi","count":2}')
    assert result == ToolResult("c1", "echo", '{"text":"hi","count":2}', ToolOutcome.OK)


async def test_null_for_an_optional_parameter_means_left_out() -> None:
    assert (await call(ECHO, "echo", '{"text":"hi","count":null}')).text == '{"text":"hi"}'


async def test_no_text_means_no_arguments() -> None:
    tools = ToolSet([tool("plain")])
    assert (await call(tools, "plain", "")).text == "plain was called"
    assert (await call(tools, "plain", " \n")).outcome is ToolOutcome.OK


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"text": "hi"', "are not JSON"),
        ("{'text': 'hi'}", "are not JSON"),
        ("[" * 100_000, "are not JSON"),
        ('{"text": "\ud800"}', "are not JSON"),
        ('["hi"]', "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("{}", "arguments.text is missing."),
        ('{"text": 1}', "arguments.text must be a string, not an integer."),
        ('{"text": "x", "cout": 1}', "arguments.cout is not known; known: count, text."),
        ('{"text": "x", "count": "3"}', "arguments.count must be an integer, not a string."),
    ],
)
async def test_wrong_arguments_come_back_as_an_error_that_says_what_is_wrong(
    arguments: str, says: str
) -> None:
    result = await call(ECHO, "echo", arguments)
    assert result.outcome is ToolOutcome.ERROR
    assert result.text.startswith("Error: The arguments of echo")
    assert says in result.text


async def test_an_unknown_tool_names_the_nearest_or_all() -> None:
    tools = ToolSet([tool("read_file"), tool("write_file")])
    assert (
        await call(tools, "readfile")
    ).text == "Error: There is no tool 'readfile'. Did you mean read_file?"
    assert "There are: read_file, write_file." in (await call(tools, "zzz")).text
    assert "There are: none." in (await call(ToolSet(), "zzz")).text


async def test_a_tools_own_error_reaches_the_model() -> None:
    async def fail(arguments: dict[str, Any], context: ToolContext) -> str:
        raise ToolError("No such page.", "Search for it.")

    result = await call(ToolSet([tool("fail", handler=fail)]), "fail")
    assert result == ToolResult("c1", "fail", "Error: No such page. Search for it.", ToolOutcome.ERROR)


async def test_any_other_failure_is_logged_and_shown_without_internals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def crash(arguments: dict[str, Any], context: ToolContext) -> str:
        raise RuntimeError("secret detail")

    with caplog.at_level(logging.ERROR, "talaria.tools"):
        result = await call(ToolSet([tool("crash", handler=crash)]), "crash")
    assert result.outcome is ToolOutcome.ERROR
    assert "secret detail" not in result.text
    [record] = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


async def test_a_call_that_does_not_come_back_is_ended_at_its_deadline() -> None:
    ended = asyncio.Event()

    async def hang(arguments: dict[str, Any], context: ToolContext) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    result = await call(ToolSet([tool("hang", handler=hang)]), "hang", call_timeout=timedelta(0))
    assert result.outcome is ToolOutcome.ERROR
    assert "hang did not come back within 0 seconds" in result.text
    assert ended.is_set()


async def test_a_timeout_inside_a_tool_is_not_taken_for_the_deadline() -> None:
    async def late(arguments: dict[str, Any], context: ToolContext) -> str:
        raise TimeoutError

    result = await call(ToolSet([tool("late", handler=late)]), "late")
    assert "inside the gateway" in result.text


async def test_cancellation_passes_through() -> None:
    started = asyncio.Event()

    async def hang(arguments: dict[str, Any], context: ToolContext) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    running = asyncio.create_task(call(ToolSet([tool("hang", handler=hang)]), "hang"))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_text_that_nothing_could_store_is_made_storable() -> None:
    async def odd(arguments: dict[str, Any], context: ToolContext) -> str:
        return "half \ud800 pair"

    result = await call(ToolSet([tool("odd", handler=odd)]), "odd")
    assert result.text == "half ? pair"
    assert msgspec.json.decode(msgspec.json.encode(result), type=ToolResult) == result


def talker(text: str) -> FunctionTool:
    async def talk(arguments: dict[str, Any], context: ToolContext) -> str:
        return text

    return tool("talk", handler=talk)


async def test_a_long_result_is_capped_and_the_whole_of_it_can_be_read_back(desk: Desk) -> None:
    text = "".join(f"row {n}\n" for n in range(10_000))
    tools = builtin_registry(ToolSettings()).resolve(["files"]).with_tools([talker(text)])
    result = await execute(tools, ToolCall("c1", "talk", ""), context(desk.folder))
    assert result.outcome is ToolOutcome.OK
    assert len(result.text.encode()) <= ToolSettings().max_result
    path = result.text.split(" and is in ")[1].split(":")[0]
    assert (desk.folder / path).read_text() == text
    assert (await desk.ok("read_file", path=path, offset=5001, limit=1)).startswith("row 5000\n")


async def test_the_note_goes_on_where_the_head_stopped(desk: Desk) -> None:
    text = "".join(f"row {n}\n" for n in range(10_000))
    tools = builtin_registry(ToolSettings()).resolve(["files"]).with_tools([talker(text)])
    result = await execute(tools, ToolCall("c1", "talk", ""), context(desk.folder))
    head, _, note = result.text.partition("[The middle")
    path, offset = note.split('read_file("')[1].split(")")[0].split('", offset=')
    rest = await desk.ok("read_file", path=path, offset=int(offset), limit=10)
    assert text.startswith(head + rest.partition("[Lines")[0])


async def test_without_a_tool_to_read_it_a_long_result_is_not_saved(tmp_path: Path) -> None:
    result = await execute(
        ToolSet([talker("x" * 100_000)]), ToolCall("c1", "talk", ""), context(tmp_path / "chat")
    )
    assert "was not kept" in result.text
    assert not (tmp_path / "chat").exists()
