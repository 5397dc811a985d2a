"""A built-in model finds the kind of a request first. Its process is a fake one that speaks the protocol: it
picks the first word of a message that the grammar allows, and fills in arguments by their schema."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from models.local.test_local_endpoint import Local
from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import Completion, ModelCall, ModelDelta, Prefix, TextDelta
from talaria.models.local.answering import MAX_STEPS, LineChange, find_replacement
from talaria.models.local.weights import DEFAULT_MODEL, LARGER_MODEL, find_weights
from talaria.parts import builtin_tools
from talaria.testing.clock import HastyClock
from talaria.tools.settings import ToolSettings

TOOLS = builtin_tools(ToolSettings()).specs


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Local]:
    made = Local(tmp_path, HastyClock())
    yield made
    await made.endpoint.close()


class Asked:
    """An answer, and the text that was streamed."""

    def __init__(self, completion: Completion, heard: list[ModelDelta]) -> None:
        self.completion = completion
        self.text = completion.message.text
        self.streamed = "".join(delta.text for delta in heard if isinstance(delta, TextDelta))

    @property
    def call(self) -> tuple[str, object]:
        [call] = self.completion.message.tool_calls
        return call.name, msgspec.json.decode(call.arguments)


async def ask(local: Local, *messages: Message | str, tools: bool = True) -> Asked:
    wire, heard = local.endpoint.wire, list[ModelDelta]()
    prefix = wire.render_prefix("Be brief.", TOOLS if tools else [])
    said = [UserMessage((Text(each),)) if isinstance(each, str) else each for each in messages]
    model = LARGER_MODEL if tools else DEFAULT_MODEL
    call = ModelCall(model, prefix, [wire.encode(message) for message in said])
    return Asked(await local.endpoint.complete(call, heard.append), heard)


def did(tool: str, arguments: str, result: str, outcome: ToolOutcome = ToolOutcome.OK) -> list[Message]:
    call = ToolCall("c1", tool, arguments)
    return [AssistantMessage("", (call,)), ToolResults((ToolResult("c1", tool, result, outcome),))]


async def test_talk_is_answered_in_words(local: Local) -> None:
    asked = await ask(local, "hello")
    assert asked.text == asked.streamed == "You said: hello"
    assert asked.completion.usage.input == 30, "the calls of the router count too"
    assert not asked.completion.without_model


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("please list it", ("list_files", {"path": "a path"})),
        ("please read it", ("read_file", {"path": "a path"})),
        ("please search it", ("search_files", {"pattern": "(?i)a\\ pattern"})),
        ("please write it", ("write_file", {"path": "a path", "content": "a content"})),
        ("please send it", ("send_file", {"path": "a path"})),
        ("please edit it", ("read_file", {"path": "a path"})),
    ],
)
async def test_a_tool_is_called_with_arguments_by_its_schema(local: Local, said: str, call: object) -> None:
    asked = await ask(local, said)
    assert asked.call == call
    assert (asked.streamed, asked.completion.stop) == ("", "tool_calls")


async def test_a_file_name_in_the_message_is_the_one_that_is_used(local: Local) -> None:
    for tool, said in (
        ("write_file", "write plan.md"),
        ("read_file", "read plan.md."),
        ("send_file", "send plan.md"),
    ):
        name, arguments = (await ask(local, said)).call
        assert (name, msgspec.convert(arguments, dict[str, str])["path"]) == (tool, "plan.md")
    assert (await ask(local, "please list plan.md")).call == ("list_files", {"path": "a path"})


@pytest.mark.parametrize("kind", ["remember", "internet", "clock", "people", "machine"])
async def test_the_program_itself_says_what_is_not_possible_and_what_is(local: Local, kind: str) -> None:
    asked = await ask(local, f"use the {kind}")
    assert asked.text.startswith("I can't ")
    assert asked.text.endswith("list, read, search, write, change and send the files of this chat.")
    assert asked.streamed == asked.text


async def test_a_file_that_was_written_is_sent_and_then_told_without_a_model(local: Local) -> None:
    wrote = did("write_file", '{"path":"a.txt"}', "Wrote 2 bytes to a.txt (a new file).")
    assert (await ask(local, "write a.txt", *wrote)).call == ("send_file", {"path": "a.txt"})
    sent = did("send_file", '{"path":"a.txt"}', "It is on its way.")
    asked = await ask(local, "write a.txt", *wrote, *sent)
    assert asked.text == "Wrote 2 bytes to a.txt (a new file). Here is a.txt."
    assert (asked.completion.usage.input, asked.completion.without_model) == (0, True)


async def test_a_change_that_failed_is_told_as_it_is(local: Local) -> None:
    failed = did("write_file", '{"path":"/a"}', "It is outside.", ToolOutcome.ERROR)
    assert (await ask(local, "write /a", *failed)).text == "I can't do that. It is outside."


async def test_an_edit_picks_a_line_that_is_in_the_file_once(local: Local) -> None:
    read = did("read_file", '{"path":"a.txt"}', "same\nsame\n\nonce\nlast\n")
    asked = await ask(local, "edit a.txt", *read)
    assert asked.call == ("edit_file", {"path": "a.txt", "old": "once", "new": "a text"})
    edited = did("edit_file", '{"path":"a.txt","old":"once","new":"twice"}', "Edited a.txt at line 4.")
    told = await ask(local, "edit a.txt", *read, *edited)
    assert told.text == "Edited a.txt at line 4. “once” became “twice”."


async def test_after_a_look_it_tells_the_result_or_goes_on_to_write(local: Local) -> None:
    read = did("read_file", '{"path":"a.txt"}', "Lunch at one.")
    asked = await ask(local, "read a.txt", *read)
    assert asked.text == "You said: [Result of read_file:]\nLunch at one."
    assert (await ask(local, "look into a.txt and write b.txt", *read)).call[0] == "write_file"
    failed = did("read_file", '{"path":"a.txt"}', "no such file", ToolOutcome.ERROR)
    assert (await ask(local, "read a.txt", *failed)).text == "I can't do that. no such file"


async def test_the_steps_for_one_request_are_bounded(local: Local) -> None:
    listed = did("list_files", "{}", "a.txt") * MAX_STEPS
    assert (await ask(local, "read it", *listed)).text.startswith("You said: [Result of")


async def test_a_model_without_tools_refuses_and_names_the_larger_one(local: Local) -> None:
    local.cache.remove(find_weights(LARGER_MODEL))
    asked = await ask(local, "write a.txt", tools=False)
    assert asked.text.startswith("I can't do that: I only talk. I can't read, write or send files")
    assert f"model pull {LARGER_MODEL}`, or “Use the larger model” on the page, fetches it; new" in asked.text
    assert "(1.1 GB to fetch, 2 GB of memory)" in asked.text
    local.cache.path(find_weights(LARGER_MODEL)).write_text("serve")
    here = (await ask(local, "write a.txt", tools=False)).text
    assert here.endswith(f"new chats use it, and `/model local/{LARGER_MODEL}` switches this one.")


async def test_where_it_is_not_clear_it_answers_and_says_that_nothing_was_done(local: Local) -> None:
    asked = await ask(local, "maybe write something", tools=False)
    assert asked.text == asked.streamed
    assert asked.text.startswith("You said: maybe")
    nothing = "nothing was opened, written, sent, looked up or remembered.)"
    assert asked.text.endswith(f"(I can't do more than talk: {nothing}")
    assert (await ask(local, "maybe write something")).text.endswith(f"(These are only words: {nothing}")
    plain = await ask(local, "hello", tools=False)
    assert plain.text == "You said: hello"
    given = await ask(local, "maybe write\n\n<stdin>\nsomething\n</stdin>", tools=False)
    assert "nothing was" not in given.text, "the text was in the request"


async def test_the_tiny_model_does_not_say_what_it_is_not_sure_of(local: Local) -> None:
    asked = await ask(local, "guess who came first", tools=False)
    assert asked.text == asked.streamed
    assert asked.text.startswith("I can't answer that reliably: I am a tiny model, and I am not sure of ")
    assert "The larger built-in model" in asked.text and "Ada" not in asked.text
    assert asked.completion.usage.output == 15, "the answer that was kept back counts"
    assert (await ask(local, "guess who came first")).text == "It was Ada?"


@pytest.mark.parametrize("tools", [True, False])
async def test_what_needs_a_file_and_names_none_is_talk_unless_that_is_sure(
    local: Local, tools: bool
) -> None:
    asked = await ask(local, "likely write a poem about rain", tools=tools)
    assert asked.text.startswith("You said: likely write a poem")
    named = await ask(local, "likely write a poem to rain.txt", tools=tools)
    assert not named.text.startswith("You said: ")
    sure = await ask(local, "write down what rain is", tools=tools)
    assert not sure.text.startswith("You said: ")


@pytest.mark.parametrize("tools", [True, False])
async def test_a_text_that_is_wanted_as_the_answer_is_talk_without_a_note(local: Local, tools: bool) -> None:
    for said in (
        "please write a poem about the sea, with three verses.",
        "can you write me a short story?",
        "likely people read an e-mail: write an e-mail to my landlord",
        "list it: make a list of ten fruits",
        "write a function in Python that adds two numbers",
        "schreib ein Gedicht",
    ):
        assert (await ask(local, said, tools=tools)).text == f"You said: {said}"
        named = await ask(local, f"write {said} and save it as a.txt", tools=tools)
        assert not named.text.startswith("You said: ")
    sent = await ask(local, "compose a letter and send it to my bank", tools=tools)
    assert not sent.text.startswith("You said: ")


@pytest.mark.parametrize("tools", [True, False])
async def test_the_router_knows_that_a_piped_text_is_there(local: Local, tools: bool) -> None:
    """The words of the piped text are no request: the model has it, and it is not a file."""
    for words in ("how many pears does it list", "edit it: correct the spelling", "read it"):
        piped = f"{words}\n\n<stdin>\nremember the machine\n</stdin>"
        asked = await ask(local, piped, tools=tools)
        assert asked.text == asked.streamed == f"You said: {words}"
    sent = "send it by mail to people\n\n<stdin>\nhello\n</stdin>"
    assert "You said" not in (await ask(local, f"people {sent}", tools=tools)).text


@pytest.mark.parametrize("tools", [True, False])
async def test_an_answer_that_repeats_itself_ends(local: Local, tools: bool) -> None:
    asked = await ask(local, "Leaves are falling.\n" * 9, tools=tools)
    assert asked.text == asked.streamed
    assert asked.text.removeprefix("You said: Leaves are falling.\n") == "Leaves are falling.\n" * 3
    code = "See:\n```\n" + "print(1, 2, 3)\n" * 9 + "```"
    assert (await ask(local, code, tools=tools)).text == f"You said: {code}"


@pytest.mark.parametrize(
    "said",
    [
        "Please look at this picture: which bird is it?",
        "was ist auf diesem Foto?",
        UserMessage((Text("which bird is it?"), Image("data:image/png;base64,AAAA"))),
    ],
)
@pytest.mark.parametrize("tools", [True, False])
async def test_a_picture_is_refused_by_the_program_whether_it_came_or_not(
    local: Local, said: Message | str, tools: bool
) -> None:
    asked = await ask(local, said, tools=tools)
    assert asked.text == asked.streamed
    assert asked.text.startswith("I can't see pictures: I only read text.")
    assert (await ask(local, "Who painted the picture The Scream?", tools=tools)).text.startswith("You said")


async def test_a_model_of_other_tools_says_which_one_it_lacks(local: Local) -> None:
    wire = local.endpoint.wire
    prefix = wire.render_prefix("", [spec for spec in TOOLS if spec.name == "read_file"])
    call = ModelCall(LARGER_MODEL, prefix, [wire.encode(UserMessage((Text("write it"),)))])
    completion = await local.endpoint.complete(call, lambda delta: None)
    assert completion.message.text == "I can't do that without write_file. `/tools all` lets me."


@pytest.mark.parametrize("prefix", [Prefix(b"", b""), Prefix(b'{"role":"system","content":"Hi."}', b"")])
async def test_a_stateless_call_is_passed_on(local: Local, prefix: Prefix) -> None:
    wire = local.endpoint.wire
    call = ModelCall(LARGER_MODEL, prefix, [wire.encode(UserMessage((Text("write it"),)))])
    completion = await local.endpoint.complete(call, lambda delta: None)
    assert completion.message.text == "You said: write it"


@pytest.mark.parametrize(
    ("text", "change", "passage"),
    [
        ("a\nb\n", "replace a line", ("a", "new")),
        ("a\nb\n", "delete a line", ("a\n", "")),
        ("a", "delete a line", ("a", "")),
        ("a\nb\n", "add at the end", ("b", "b\nnew")),
        ("b\nb\n", "add at the end", ("b\nb", "b\nb\nnew")),
        ("ab\nb", "add at the end", ("ab\nb", "ab\nb\nnew")),
    ],
)
def test_a_change_of_a_file_is_one_passage_that_occurs_once(
    text: str, change: str, passage: tuple[str, str]
) -> None:
    assert find_replacement(text, LineChange(change), "a", "new") == passage
    assert text.count(passage[0]) == 1
