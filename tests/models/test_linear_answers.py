"""The cost of reading an answer and of writing a request grows with the bytes, whatever their shape."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.complexity import assert_linear, refused
from talaria.core.limits import Limits, LimitSettings
from talaria.core.messages import AssistantMessage, Message, Reasoning, Text, ToolCall, UserMessage
from talaria.core.specs import ModelCall, Prefix
from talaria.core.units import Size
from talaria.models.answer_budget import SLICE_BYTES, AnswerBudget, AnswerMemory
from talaria.models.discovery import read_models
from talaria.models.failures import ProviderErrors, read_error_body
from talaria.models.providers import WIRES
from talaria.testing.hostile_answers import find_attack

ERRORS = ProviderErrors("acme", "m")
ENDLESS = Size(1 << 40)
MIXED = ["text", "thoughts", "details", "call-arguments", "comments", "names", "empty-events", "blank-lines"]
UNLIMITED = Limits(
    LimitSettings(
        answer_bytes=ENDLESS,
        answer_text=ENDLESS,
        answer_pieces=1 << 40,
        answer_calls=1 << 40,
        call_arguments=ENDLESS,
        answer_memory=ENDLESS,
    )
)


def reader(wire: str, reads: int = SLICE_BYTES) -> Callable[[bytes], None]:
    """Return a function that reads an answer without any limit that could end it early."""

    def read(data: bytes) -> None:
        answer = WIRES[wire].decoder("m", ERRORS, AnswerBudget(ERRORS, AnswerMemory(UNLIMITED)))
        with refused("the answer was cut off"):
            for at in range(0, len(data), reads):
                answer.feed(data[at : at + reads])
            answer.end()
            answer.completion()

    return read


@pytest.mark.parametrize(
    ("wire", "name"),
    [
        ("openai-chat", "details"),
        ("openai-chat", "call-pieces"),
        ("openai-responses", "thought-parts"),
        ("anthropic-messages", "signatures"),
    ],
)
def test_reading_an_attack_is_linear(wire: str, name: str) -> None:
    assert_linear(find_attack(wire, name).whole, reader(wire))


@given(order=st.lists(st.sampled_from(MIXED), min_size=1, max_size=12), reads=st.integers(1, SLICE_BYTES))
@settings(max_examples=2, deadline=None, derandomize=True)
def test_reading_a_mix_of_attacks_is_linear(order: list[str], reads: int) -> None:
    units = [find_attack("openai-chat", name).unit for name in order]
    block = b"\n\n".join(unit * 5 for unit in units if isinstance(unit, bytes)) + b"\n\n"
    assert_linear(lambda size: block * (size // len(block)), reader("openai-chat", max(reads, 500)))


@pytest.mark.parametrize("wire", WIRES)
def test_writing_a_long_history_is_linear(wire: str) -> None:
    def make(size: int) -> list[Message]:
        thought = Reasoning("reasoning_content", "hm", '"hm"')
        call = ToolCall("c", "f", '{"x":1}')
        turn: list[Message] = [
            UserMessage((Text("hello " * 20),)),
            AssistantMessage("answer " * 20, (call,), (thought,), "m"),
        ]
        return turn * (size // 4000)

    def write(messages: list[Message]) -> None:
        wired = WIRES[wire]
        call = ModelCall("m", Prefix(b"{}", b"[]"), [wired.encode(message) for message in messages])
        b"".join(wired.body(call))

    assert_linear(make, write)


@pytest.mark.parametrize("unit", [b"[", b'{"error":', b'{"message":"', b"<", b"\\u0001", b"9", b" "])
def test_reading_an_error_is_linear_and_never_raises(unit: bytes) -> None:
    assert_linear(lambda size: unit * (size // len(unit)), read_error_body)


@pytest.mark.parametrize("unit", [b"0,", b"{},", b'{"id":"m","x":[0]},', b"[[],[]],"])
def test_reading_a_list_of_models_is_linear_and_bounded(unit: bytes) -> None:
    def make(size: int) -> bytes:
        return b'{"data":[' + unit * (size // len(unit)) + b"0]}"

    assert_linear(make, read_models, largest=1 << 17)
    with pytest.raises(msgspec.DecodeError, match="too many values"):
        read_models(make(1 << 21))
