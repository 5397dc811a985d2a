"""The contract of wire formats, over those that there are, with answers of the server that tests trust."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contracts.wire_suite import CALLS, TEXT, WireSuite
from talaria.core.messages import TokenUsage
from talaria.core.specs import CallDelta
from talaria.models.anthropic_messages import CACHE_MARK, AnthropicMessages
from talaria.models.endpoint import STEP_BYTES, _steps
from talaria.models.failures import ProviderErrors
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.providers import WIRES
from talaria.models.wire import count
from talaria.testing.model_api import ScriptedReply
from talaria.testing.model_server import APIS
from talaria.testing.script import ScriptedAnswer


class _OverTheWire(WireSuite):
    def events(self) -> list[bytes]:
        """With a thought in front."""
        answer = ScriptedAnswer(text=TEXT, thought="hm …", calls=CALLS)
        reply = ScriptedReply(answer, "x_1", "m", TokenUsage(10, 5, 7, 2))
        found, _ = APIS[f"/v1{self.wire.path}"].stream(reply)
        return [event + b"\n\n" for event in b"".join(found).split(b"\n\n") if event]


class TestChat(_OverTheWire):
    wire = OpenAIChat()
    own_thoughts = ("reasoning_content", "reasoning_details")


class TestResponses(_OverTheWire):
    wire = OpenAIResponses()


class TestAnthropic(_OverTheWire):
    wire = AnthropicMessages()
    own_thoughts = ("thinking",)

    def bare(self, body: bytes) -> bytes:
        return body.replace(CACHE_MARK, b"")


def test_every_format_is_here() -> None:
    tested = {kind.wire.name for kind in (TestChat, TestResponses, TestAnthropic)}
    assert tested == set(WIRES)


@pytest.mark.parametrize(
    ("value", "counted"),
    [
        (0, 0),
        (7, 7),
        (7.0, 7),
        (7.5, 0),
        (-1, 0),
        (True, 0),
        ("7", 0),
        (None, 0),
        (1 << 53, 1 << 53),
        ((1 << 53) + 1, 1 << 53),
        (10**300, 1 << 53),
    ],
)
def test_a_count_is_a_whole_number_from_zero_on(value: object, counted: int) -> None:
    assert count({"n": value}, "n") == counted
    assert count(None, "n") == count({"m": 1}, "n") == 0


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [1],
        [10, 20],
        [STEP_BYTES],
        [5, STEP_BYTES, 7],
        [5, 2 * STEP_BYTES + 1, 7, 7],
        [STEP_BYTES - 1, 1, 1],
        [STEP_BYTES // 2, STEP_BYTES // 2, 3],
        [STEP_BYTES, 5, STEP_BYTES],
    ],
    ids=str,
)
def test_a_body_is_sent_in_order_and_in_steps(sizes: list[int]) -> None:
    pieces = [bytes([n + 1]) * size for n, size in enumerate(sizes)]
    steps = [bytes(step) for step in _steps(pieces)]
    assert b"".join(steps) == b"".join(pieces)
    assert all(0 < len(step) < 2 * STEP_BYTES for step in steps)
    assert len(steps) <= 2 + 2 * sum(size // STEP_BYTES + 1 for size in sizes if size >= STEP_BYTES)


def _added(index: int, call_id: str) -> bytes:
    item = f'{{"type":"function_call","call_id":"{call_id}","name":"read","arguments":""}}'
    return f'data: {{"type":"response.output_item.added","output_index":{index},"item":{item}}}\n\n'.encode()


def _piece(index: int, call_id: str) -> bytes:
    call = f'{{"index":{index},"id":"{call_id}","function":{{"name":"read","arguments":""}}}}'
    return f'data: {{"choices":[{{"delta":{{"tool_calls":[{call}]}}}}]}}\n\n'.encode()


@pytest.mark.parametrize(("wire", "begin"), [("openai-responses", _added), ("openai-chat", _piece)])
def test_a_call_without_an_id_of_its_own_is_not_told(wire: str, begin: Callable[[int, str], bytes]) -> None:
    answer = WIRES[wire].decoder("m", ProviderErrors("acme", "m"))
    answer.tells_parts = True
    ids = ("a", "a", "", "x" * ((32 << 10) + 1), "y" * (32 << 10), "b")
    told = [delta for n, call_id in enumerate(ids) for delta in answer.feed(begin(n, call_id))]
    assert [(delta.index, delta.call_id) for delta in told if isinstance(delta, CallDelta)] == [
        (0, "a"),
        (4, "y" * (32 << 10)),
        (5, "b"),
    ]
