"""The prompt's keys and completions, and the lines of a pipe."""

import asyncio
import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from support.waiting import until
from talaria.console.chat import Interrupted, Screen, TerminalChat
from talaria.console.gateway_client import GatewayAddress, GatewayClient
from talaria.console.message_input import (
    CommandCompleter,
    PipedLines,
    TerminalPrompt,
)
from talaria.console.plain import PlainRenderer
from talaria.core.events import QuestionAsked
from talaria.core.ids import QuestionId
from talaria.core.questions import QuestionKind

ALT_ENTER, CTRL_C, CTRL_D = "\x1b\r", "\x03", "\x04"


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


def prompt(history: Path | None = None) -> TerminalPrompt:
    return TerminalPrompt(Console(file=StringIO()), history)


def chat_at(messages: TerminalPrompt | PipedLines) -> TerminalChat:
    """A chat that is not run: nothing is sent."""
    screen = Screen(messages=messages, renderer=lambda _: PlainRenderer(StringIO(), None), say=lambda _: None)
    return TerminalChat(GatewayClient(GatewayAddress("http://127.0.0.1:9", "")), "terminal", screen)


async def read(messages: TerminalPrompt | PipedLines) -> str | None:
    return await messages.read(chat_at(messages))


def completions(text: str) -> list[str]:
    found = CommandCompleter().get_completions(Document(text), CompleteEvent())
    return [completion.text for completion in found]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("/st", ["/status", "/steer", "/stop"]),
        ("/RES", ["/reset", "/resume"]),
        ("/title x", []),
        ("hello /st", []),
        ("", []),
        ("/nothing", []),
    ],
)
def test_commands_are_completed_by_name(written: str, found: list[str]) -> None:
    assert completions(written) == found


def test_completions_say_what_the_command_does() -> None:
    (found,) = CommandCompleter().get_completions(Document("/hel"), CompleteEvent())
    assert found.display_meta_text == "list the commands, or explain one"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("hello\r", "hello"),
        ("one\\\rtwo\r", "one\ntwo"),
        (f"one{ALT_ENTER}two\r", "one\ntwo"),
        ("\r \rhello\r", "hello"),
        (f"wrong{CTRL_C}right\r", "right"),
        (CTRL_D, None),
    ],
)
async def test_what_the_keys_do(keyboard: PipeInput, keys: str, text: str | None) -> None:
    keyboard.send_text(keys)
    assert await read(prompt()) == text


async def test_ctrl_c_at_an_empty_prompt_is_told(keyboard: PipeInput) -> None:
    keyboard.send_text(CTRL_C)
    with pytest.raises(Interrupted):
        await read(prompt())


APPROVAL = QuestionAsked(QuestionId("q_1"), QuestionKind.APPROVAL, "danger", (), "c", "danger")
ANSWER = QuestionAsked(QuestionId("q_2"), QuestionKind.ANSWER, "Which?", (), "c", "ask_user")


async def test_one_key_decides_an_approval_and_no_other_key_does_anything(keyboard: PipeInput) -> None:
    messages = prompt()
    chat = chat_at(messages)
    chat.questions.take(APPROVAL)
    keyboard.send_text("xw\rd")
    assert await messages.read(chat) == "d"


async def test_a_line_that_is_being_written_when_a_request_comes_decides_nothing(keyboard: PipeInput) -> None:
    messages = prompt()
    chat = chat_at(messages)
    keyboard.send_text("/")
    reading = asyncio.create_task(messages.read(chat))
    await until(lambda: messages.text == "/")
    chat.questions.take(APPROVAL)
    keyboard.send_text("ad\r")
    assert await reading == "/ad"


async def test_an_answer_is_not_kept_in_the_history(keyboard: PipeInput, tmp_path: Path) -> None:
    messages = prompt(tmp_path / "chat.history")
    chat = chat_at(messages)
    chat.questions.take(ANSWER)
    keyboard.send_text("secret\r")
    assert await messages.read(chat) == "secret"
    assert "secret" not in (tmp_path / "chat.history").read_text()


async def test_history_is_kept_for_this_user_only(keyboard: PipeInput, tmp_path: Path) -> None:
    path = tmp_path / "chat.history"
    path.touch(0o644)
    keyboard.send_text("remember me\r")
    await read(prompt(path))
    assert "remember me" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_home_that_cannot_be_written_costs_only_the_history(
    keyboard: PipeInput, tmp_path: Path
) -> None:
    keyboard.send_text("hello\r")
    assert await read(prompt(tmp_path / "missing" / "chat.history")) == "hello"


async def test_lines_of_a_pipe_are_messages_until_its_end() -> None:
    reading, writing = os.pipe()
    lines = PipedLines(reading)
    os.write(writing, b"one\ntw")
    assert await read(lines) == "one"
    os.write(writing, b"o\n\nlast \xff")
    os.close(writing)
    async with asyncio.timeout(5):
        assert [await read(lines) for _ in range(4)] == ["two", "", "last �", None]
    os.close(reading)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/model ", ["main", "openai/gpt-5", "fast"]),
        ("/model f", ["fast"]),
        ("/model x", []),
        ("/title f", []),
    ],
)
def test_models_are_completed_behind_their_command(text: str, found: list[str]) -> None:
    completer = CommandCompleter(["main", "openai/gpt-5", "fast"])
    completions = list(completer.get_completions(Document(text), CompleteEvent()))
    assert [completion.text for completion in completions] == found
    behind = len(text.partition(" ")[2])
    assert {completion.start_position for completion in completions} <= {-behind}, "it replaces what is typed"
