from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.pictures import jpeg, png
from talaria.core.errors import ConfigError, ToolError
from talaria.core.events import Event, ToolOutput
from talaria.core.ids import ChatKey, QuestionId, SessionId, TurnId
from talaria.core.messages import Content, File, Image, Part, Text, ToolCall, ToolOutcome, ToolResult
from talaria.core.questions import Decision, Question, QuestionKind
from talaria.core.specs import AgentSpec
from talaria.core.tools import ToolSpec
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.observe.metrics import Metrics
from talaria.parts import builtin_tools
from talaria.testing.changing_tools import ChangingSource
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.tools.execution import OUTPUT_CUT, ToolRunner
from talaria.tools.function import Arguments, FunctionTool, Handler, in_thread, parameters
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import CallScope, ToolContext, ToolSource
from talaria.tools.toolset import Family, ToolSet
from talaria.workspace.reading import picture_part
from tools.conftest import ToolCaller, bound, tool

MAX_OUTPUT_BYTES = 64 << 10
MAX_FILES = 20
MAX_IMAGES = 8
MAX_PICTURE_BYTES = 5 * (1 << 20) // 4 * 3

SCHEMA = parameters({"text": {"type": "string"}, "count": {"type": "integer"}}, required=["text"])


async def echo(arguments: dict[str, Any], context: ToolContext) -> str:
    return msgspec.json.encode(arguments).decode()


async def call(tools: ToolSet, name: str, arguments: str = "{}", **settings: Any) -> ToolResult:
    runner = bound(tools, Path("/nonexistent"), settings=ToolSettings(**settings))
    return await runner.run(ToolCall("c1", name, arguments))


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
        ("[" * 10_000, "are not JSON"),
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


async def test_a_long_result_is_capped_and_the_whole_of_it_can_be_read_back(caller: ToolCaller) -> None:
    text = "".join(f"row {n}\n" for n in range(10_000))
    tools = builtin_tools(ToolSettings()).with_tools([talker(text)])
    result = await bound(tools, caller.folder).run(ToolCall("c1", "talk", ""))
    assert result.outcome is ToolOutcome.OK
    assert len(result.text.encode()) <= ToolSettings().max_result
    path = result.text.split(" and is in ")[1].split(":")[0]
    assert (caller.folder / path).read_text() == text
    assert (await caller.ok("read_file", path=path, offset=5001, limit=1)).startswith("row 5000\n")


async def test_the_note_goes_on_where_the_head_stopped(caller: ToolCaller) -> None:
    text = "".join(f"row {n}\n" for n in range(10_000))
    tools = builtin_tools(ToolSettings()).with_tools([talker(text)])
    result = await bound(tools, caller.folder).run(ToolCall("c1", "talk", ""))
    head, _, note = result.text.partition("[The middle")
    path, offset = note.split('read_file("')[1].split(")")[0].split('", offset=')
    rest = await caller.ok("read_file", path=path, offset=int(offset), limit=10)
    assert text.startswith(head + rest.partition("[Lines")[0])


async def test_without_a_tool_to_read_it_a_long_result_is_not_saved(tmp_path: Path) -> None:
    tools = ToolSet([talker("x" * 100_000)])
    result = await bound(tools, tmp_path / "chat").run(ToolCall("c1", "talk", ""))
    assert "was not kept" in result.text
    assert not (tmp_path / "chat").exists()


# -- the tools of a turn ------------------------------------------------------------------------------------

CHAT = ChatKey("a chat")
TURN = Turn(
    TurnId("turn_1"), CHAT, SessionId("ses_1"), TurnState.RUNNING, Inbound(CHAT, Sender("ann"), ()), 0.0
)


def runner_of(*sources: ToolSource) -> ToolRunner:
    enabled = tuple(source.name for source in sources if source.is_builtin)
    return ToolRunner(sources, ToolSettings(enabled=enabled), Metrics())


def spec_of(*names: str) -> AgentSpec:
    return AgentSpec("main", "p", "m", "api", "", names, ",".join(names), "")


def tools_of(runner: ToolRunner, *names: str) -> ToolSet:
    workspace = FakeWorkspaces(lambda key: Path("/nowhere")).open(TURN.session_id, TURN.chat_key)
    tools = runner.bind(TURN, spec_of(*names), workspace, lambda event: None)
    assert tools is not None
    return tools.tools


def test_only_the_sets_used_last_are_kept() -> None:
    runner = runner_of(Family("all", tuple(tool(f"tool{n}") for n in range(10))))
    assert tools_of(runner, *runner.tools.names) is runner.tools
    first, second = tools_of(runner, "tool0"), tools_of(runner, "tool1")
    for n in range(2, 8):
        tools_of(runner, f"tool{n}")
    assert tools_of(runner, "tool0") is first  # eight are kept, and this one is now the newest
    tools_of(runner, "tool8")
    assert tools_of(runner, "tool0") is first
    again = tools_of(runner, "tool1")
    assert again is not second
    assert again == second


def test_a_turn_gets_the_named_tools_that_there_are() -> None:
    source = ChangingSource()
    source.offer(tool("one"), tool("two"))
    runner = runner_of(source)
    assert tools_of(runner, "two", "gone").names == ("two",)
    source.offer(tool("one"))
    assert tools_of(runner, "two", "gone").names == ()
    assert runner.bind(TURN, spec_of("one"), None, lambda event: None) is None


def test_other_families_are_enabled_whole_or_not_at_all() -> None:
    source = ChangingSource()
    runner = ToolRunner(
        [Family("a", (tool("one"),)), Family("b", (tool("two"),)), source], ToolSettings(("a",)), Metrics()
    )
    runner.use(ToolSettings(("b",)))
    assert list(runner.tools.names) == ["two"]
    with pytest.raises(ConfigError, match="nope"):
        runner.use(ToolSettings(("nope",)))
    source.offer(tool("three"))
    assert list(runner.tools.names) == ["three", "two"]


# -- what a handler gets ------------------------------------------------------------------------------------


def outputs(events: list[Event]) -> list[str]:
    assert all(isinstance(event, ToolOutput) and event.call_id == "c1" for event in events)
    return [event.text for event in events if isinstance(event, ToolOutput)]


async def run_one(handler: Handler, events: list[Event] | None = None, **spec: Any) -> ToolResult:
    tools = ToolSet([FunctionTool(ToolSpec("one", "", parameters({}), **spec), handler)])
    return await bound(tools, Path("/nonexistent"), events=events).run(ToolCall("c1", "one", ""))


async def test_a_handler_gets_ids_workspace_and_decision() -> None:
    seen: list[ToolContext] = []

    async def look(arguments: Arguments, context: ToolContext) -> str:
        seen.append(context)
        return ""

    runner = bound(ToolSet([tool("look", handler=look)]), Path("/files"))
    decision = Decision("approve", "telegram:1", 5.0)
    asked = (QuestionId("q_1"), TurnId("turn_1"), 1, "c1", QuestionKind.ANSWER, "?", 0.0, 9.0)
    await runner.run(ToolCall("c1", "look", ""), Question(*asked, decision=decision))
    [context] = seen
    assert (context.session_id, context.turn_id, context.call_id) == ("ses_1", "turn_1", "c1")
    assert context.workspace is runner.workspace
    assert context.folder == Path("/files")
    assert context.decision is decision


async def test_a_tools_own_time_limit_goes_before_the_configured_one() -> None:
    left: list[float] = []

    async def hang(arguments: Arguments, context: ToolContext) -> str:
        left.append(context.scope.remaining())
        await asyncio.Event().wait()
        return "never"

    result = await run_one(hang, timeout=timedelta(milliseconds=10))
    assert "did not come back within 0.01 seconds" in result.text
    assert 0 <= left[0] <= 0.01


async def test_output_is_shown_while_the_call_runs_and_joined_within_a_round_of_the_loop() -> None:
    events: list[Event] = []
    seen_inside: list[str] = []

    async def talk(arguments: Arguments, context: ToolContext) -> str:
        context.emit("one ")
        context.emit("two ")
        await asyncio.sleep(0)
        seen_inside.extend(outputs(events))
        context.emit("three \ud800")
        context.emit("")
        return "done"

    assert (await run_one(talk, events)).text == "done"
    assert seen_inside == ["one two "]
    assert outputs(events) == ["one two ", "three ?"]


async def test_output_is_bounded_and_says_so_once() -> None:
    events: list[Event] = []

    async def flood(arguments: Arguments, context: ToolContext) -> str:
        for _ in range(10):
            context.emit("ä" * MAX_OUTPUT_BYTES)
            await asyncio.sleep(0)
        return ""

    await run_one(flood, events)
    text = "".join(outputs(events))
    assert len(text.encode()) <= MAX_OUTPUT_BYTES + len(OUTPUT_CUT)
    assert text.endswith("ä" + OUTPUT_CUT)
    assert text.count(OUTPUT_CUT) == 1


async def test_single_characters_cost_events_too() -> None:
    events: list[Event] = []

    async def drip(arguments: Arguments, context: ToolContext) -> str:
        for _ in range(5000):
            context.emit(".")
            await asyncio.sleep(0)
        return ""

    await run_one(drip, events)
    assert 500 < len(events) < 1100


async def test_a_thread_can_emit_and_is_ignored_when_its_call_is_over() -> None:
    events: list[Event] = []
    scopes: list[CallScope] = []
    goes_on, ended = threading.Event(), threading.Event()

    def work(arguments: Arguments, context: ToolContext) -> str:
        scopes.append(context.scope)
        context.emit("early")
        goes_on.wait()
        assert context.scope.is_cancelled()
        assert context.scope.remaining() == 0
        context.emit("late")
        ended.set()
        return "never seen"

    result = await run_one(in_thread(work), events, timeout=timedelta(milliseconds=50))
    assert "did not come back" in result.text
    goes_on.set()
    assert await asyncio.to_thread(ended.wait, 5)
    await asyncio.sleep(0)
    assert outputs(events) == ["early"]


async def test_a_handler_that_swallows_its_cancellation_cannot_keep_the_turn() -> None:
    started = asyncio.Event()
    scopes: list[CallScope] = []

    async def stubborn(arguments: Arguments, context: ToolContext) -> str:
        scopes.append(context.scope)
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I go on"
        return "never"

    running = asyncio.create_task(run_one(stubborn))
    await started.wait()
    assert not scopes[0].is_cancelled()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert scopes[0].is_cancelled()


async def test_a_handler_that_cancels_itself_fails_and_does_not_stop_the_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def odd(arguments: Arguments, context: ToolContext) -> str:
        inner = asyncio.create_task(asyncio.Event().wait())
        inner.cancel()
        await inner
        return "never"

    with caplog.at_level(logging.ERROR, "talaria.tools"):
        result = await run_one(odd)
    assert result.outcome is ToolOutcome.ERROR
    assert "inside the gateway" in result.text
    assert len(caplog.records) == 1


async def test_a_handler_may_answer_at_its_time_limit() -> None:
    async def partial(arguments: Arguments, context: ToolContext) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "this far"
        return "never"

    result = await run_one(partial, timeout=timedelta(milliseconds=1))
    assert (result.text, result.outcome) == ("this far", ToolOutcome.OK)


async def test_an_unknown_name_of_any_length_is_cheap() -> None:
    tools = ToolSet([tool(f"tool_{n}") for n in range(200)])
    began = time.process_time()
    result = await call(tools, "t" * 5_000_000)
    assert time.process_time() - began < 1
    assert len(result.text) < 5000


# -- results of parts ---------------------------------------------------------------------------------------


def gives(*parts: Part) -> Handler:
    async def give(arguments: Arguments, context: ToolContext) -> Content:
        return parts

    return give


def picture(data: bytes) -> Image:
    shown = picture_part(data)
    assert shown is not None
    return shown


FILE = File("a.pdf", "inbox/a.pdf", "application/pdf", 9)


async def test_parts_are_kept_in_their_order() -> None:
    parts = (Text("before"), picture(png()), Text("after"), FILE)
    result = await run_one(gives(*parts))
    assert result == ToolResult("c1", "one", "before\n[image]\nafter\n[file inbox/a.pdf]", parts=parts)
    assert await run_one(gives(Text("one"), Text("two \ud800"))) == ToolResult("c1", "one", "one\ntwo ?")


@pytest.mark.parametrize(
    "image",
    [
        Image("https://example.com/a.png"),
        Image("data:text/plain,hello"),
        Image("data:image/png;base64,not base64"),
        Image("data:image/png;base64,AAAA"),
        Image("data:image/png;base64," + "A" * 10_000_000),
    ],
)
async def test_an_image_that_a_provider_would_refuse_is_replaced_by_a_note(image: Image) -> None:
    result = await run_one(gives(Text("look"), image))
    assert result.parts == ()
    assert result.text.startswith("look\n[1 of its images and files cannot be shown.")


async def test_an_image_is_named_by_its_bytes_and_keeps_its_detail() -> None:
    claimed = picture(png()).url.replace("image/png", "image/jpeg")
    result = await run_one(gives(Image(claimed, "low")))
    assert result.parts == (Image(picture(png()).url, "low"),)


async def test_images_and_files_are_counted_and_images_weighed_together() -> None:
    image, odd = picture(png()), File("a", "p" * 10_000, "text/plain", 9)
    result = await run_one(gives(*[image] * 10, *[FILE] * 25, odd))
    assert [type(part) for part in result.parts] == [Image] * MAX_IMAGES + [File] * MAX_FILES + [Text]
    assert "[8 of its images and files cannot be shown." in result.text
    heavy = picture(jpeg(comment=b"x" * 60_000) + b"\0" * (MAX_PICTURE_BYTES // 2))
    result = await run_one(gives(heavy, heavy, image))
    assert result.parts[:-1] == (heavy, image)


async def test_a_long_text_among_parts_is_capped_and_the_other_parts_stay(caller: ToolCaller) -> None:
    rows = "".join(f"row {n}\n" for n in range(10_000))
    image = picture(png())
    give = FunctionTool(ToolSpec("give", "", parameters({})), gives(Text("x"), image, Text(rows)))
    tools = builtin_tools(ToolSettings()).with_tools([give])
    result = await bound(tools, caller.folder).run(ToolCall("c1", "give", ""))
    text, shown = result.parts
    assert shown == image
    assert isinstance(text, Text)
    assert len(text.text.encode()) <= ToolSettings().max_result
    path = text.text.split(" and is in ")[1].split(":")[0]
    assert (caller.folder / path).read_text() == f"x\n{rows}"
