"""What clients choose the size of costs time that grows no faster than its size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from support.complexity import assert_linear
from talaria.channels.http.chat_completions import (
    CompletionChunks,
    CompletionHead,
    CompletionRequest,
    whole_context,
)
from talaria.channels.http.file_api import find_range
from talaria.channels.http.login_api import login_cookies
from talaria.channels.http.messages_api import MessagesRequest
from talaria.channels.http.messages_api import whole_context as read_messages
from talaria.channels.http.request import Message, Request
from talaria.channels.http.turn_api import _encode_event
from talaria.core.events import Delta, Done
from talaria.core.files import RESULT_PATH, RESULTS, SentFile
from talaria.core.ids import TurnId
from talaria.core.limits import count_values
from talaria.core.messages import ToolOutcome, ToolResult
from talaria.core.turns import Step, StepKind, StepState
from talaria.operations.turns import StepView
from talaria.workspace.uploads import clean_name

BODIES: dict[str, tuple[bytes, bytes, bytes]] = {
    "texts": (b'["', b'","', b'"]'),
    "escapes": (b'["', b"\\\\", b'"]'),
    "prose": (b'{"text": "', b"words, and (more) words. ", b'"}'),
}


def body(shape: tuple[bytes, bytes, bytes], size: int) -> bytes:
    start, unit, end = shape
    return start + unit * (size // len(unit)) + end


@pytest.mark.parametrize("shape", BODIES.values(), ids=BODIES)
def test_counting_the_values_of_a_body_is_linear(shape: tuple[bytes, bytes, bytes]) -> None:
    assert_linear(lambda size: body(shape, size), lambda data: sum(count_values(data)))


def test_values_are_counted_outside_texts_only() -> None:
    for data, expected in [
        (b'{"a": [1, 2, {"b": "x, y"}], "c": "[{,"}', 6),
        (b'"' + b"\\\\" * 16_384 + b'",1', 1),  # the escape ends with a slice
        (b'"' + b"x" * 32_766 + b'\\",[",1', 1),  # the slice ends within an escape
        (b"[" * 70_000, 70_000),
    ]:
        assert sum(count_values(data)) == expected


def request(headers: list[tuple[bytes, bytes]], pieces: list[bytes] | None = None) -> Request:
    left = iter(pieces or [])
    count = len(pieces or [])
    seen = 0

    async def receive() -> Message:
        nonlocal seen
        seen += 1
        return {"type": "http.request", "body": next(left, b""), "more_body": seen < count}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    return Request(scope, receive, send)


@pytest.mark.parametrize("unit", ["a=b; ", "talaria_login_1=x; ", "talaria_login_1"])
def test_reading_cookies_is_linear(unit: str) -> None:
    def make(size: int) -> Request:
        return request([(b"host", b"x:1"), (b"cookie", (unit * (size // len(unit))).encode())])

    assert_linear(make, login_cookies)


def test_putting_a_body_together_is_linear() -> None:
    def make(size: int) -> Request:
        return request([(b"transfer-encoding", b"chunked")], [b"x" * 1000] * (size // 1000))

    assert_linear(make, lambda given: asyncio.run(given.body(1 << 30)))


MESSAGES: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "parts": lambda n: [{"role": "user", "content": [{"type": "text", "text": "a"}] * n}],
    "calls": lambda n: [
        {
            "role": "assistant",
            "tool_calls": [{"id": f"c{i}", "function": {"name": "f", "arguments": "{}"}} for i in range(n)],
        },
        *({"role": "tool", "tool_call_id": f"c{i}", "content": ""} for i in reversed(range(n))),
    ],
    "users": lambda n: [{"role": "user", "content": "a"}] * n,
}


@pytest.mark.parametrize("shape", MESSAGES.values(), ids=MESSAGES)
def test_reading_a_conversation_is_linear(shape: Callable[[int], list[dict[str, Any]]]) -> None:
    def make(size: int) -> CompletionRequest:
        return msgspec.convert({"messages": shape(size // 1000)}, CompletionRequest)

    assert_linear(make, lambda given: whole_context(given.messages))


ANTHROPIC_MESSAGES: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "parts": lambda n: [{"role": "user", "content": [{"type": "text", "text": "a"}] * n}],
    "texts": lambda n: [{"role": "assistant", "content": [{"type": "text", "text": "a" * 20}] * n}],
    "calls": lambda n: [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": f"c{i}", "name": "f", "input": {}} for i in range(n)],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": f"c{i}"} for i in reversed(range(n))],
        },
    ],
    "users": lambda n: [{"role": "user", "content": "a"}] * n,
}


@pytest.mark.parametrize("shape", ANTHROPIC_MESSAGES.values(), ids=ANTHROPIC_MESSAGES)
def test_reading_a_conversation_of_anthropics_clients_is_linear(
    shape: Callable[[int], list[dict[str, Any]]],
) -> None:
    def make(size: int) -> MessagesRequest:
        given = msgspec.json.encode({"messages": shape(size // 300)})
        return msgspec.json.decode(given, type=MessagesRequest)

    assert_linear(make, lambda given: read_messages(given.system, given.messages))


TEXTS = ["a", "\x00", "\\", '"', "😀", "\n", "\u2028"]


@pytest.mark.parametrize("text", ["\x00", "😀"])
def test_rendering_events_is_linear(text: str) -> None:
    def render_deltas(given: str) -> int:
        chunks = CompletionChunks(CompletionHead("id", 1, "m"), lambda: "m", with_usage=True)
        return sum(
            len(chunks.encode(Delta(given[start : start + 1000]))) for start in range(0, len(given), 1000)
        )

    assert_linear(lambda size: text * size, lambda given: sum(map(len, _encode_event(1, Done(given)))))
    assert_linear(lambda size: text * size, render_deltas)


NAMES = ["../", "\\", "\u202e", ".", "~ ", "ü", "a/b"]


@pytest.mark.parametrize("unit", NAMES)
def test_cleaning_the_name_of_an_upload_is_linear(unit: str) -> None:
    assert_linear(lambda size: unit * (size // len(unit)), clean_name)


@pytest.mark.parametrize("unit", ["9", "bytes=", "-", " ", "0-"])
def test_reading_a_range_is_linear(unit: str) -> None:
    assert_linear(lambda size: "bytes=" + unit * (size // len(unit)), lambda given: find_range(given, 10))


@pytest.mark.parametrize("unit", [f"{RESULTS}/", f"{RESULTS}/a", "a", ".talaria/", f"{RESULTS}/a.txt "])
def test_finding_the_results_that_a_log_names_is_linear(unit: str) -> None:
    assert_linear(
        lambda size: f"{RESULTS}/" + unit * (size // len(unit)), lambda body: len(RESULT_PATH.findall(body))
    )


FILE = SentFile("file_1", '"reply":"".txt', "text/plain", 1)


def test_a_long_reply_in_pieces_is_the_same_event() -> None:
    for text in TEXTS:
        reply = text * 100_000
        lines = b"".join(_encode_event(7, Done(reply, (FILE,)))).split(b"\n")
        assert lines[:2] == [b"id: 7", b"event: done"]
        assert lines[3:] == [b"", b""]
        told = msgspec.json.decode(lines[2].removeprefix(b"data: "))
        assert told == {"type": "done", "reply": reply, "files": [msgspec.to_builtins(FILE)]}


def test_views_of_a_step_are_linear() -> None:
    def make(size: int) -> Step:
        result = ToolResult("c", "n", "x" * size, ToolOutcome.OK)
        return Step(TurnId("t"), 1, StepKind.TOOL, "n", StepState.ENDED, "c", result=result)

    assert_linear(make, lambda step: msgspec.json.encode(StepView.of(step)))
