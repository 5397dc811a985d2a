"""One answer cannot stall, fill or lie to the gateway."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from talaria.core.errors import AnswerMemoryFull, AnswerTooLarge, ModelError, ModelUnavailable
from talaria.core.limits import Limits, LimitSettings
from talaria.core.messages import Text, TokenUsage, UserMessage
from talaria.core.slots import SLICE_SECONDS
from talaria.core.specs import Completion, ModelCall, ModelDelta, Prefix
from talaria.core.units import Size
from talaria.models.answer_budget import SLICE_BYTES, AnswerBudget, AnswerMemory
from talaria.models.endpoint import Endpoint
from talaria.models.failures import ProviderErrors
from talaria.models.providers import WIRES
from talaria.models.settings import ProviderSettings
from talaria.testing.hostile_answers import find_attack, hostile_answers
from talaria.testing.model_server import APIS, ModelServer

MAX_NAME = 256

ERRORS = ProviderErrors("acme", "m")
FORMATS = [api.wire for api in APIS.values()]
ATTACKS = [(wire, name) for wire in FORMATS for name in hostile_answers(wire)]


def read(wire: str, data: bytes, limits: Limits | None = None) -> Completion:
    """Decode a body in slices. Raises `ModelError`; anything else is a defect."""
    memory = AnswerMemory(limits)
    budget = AnswerBudget(ERRORS, memory)
    answer = WIRES[wire].decoder("m", ERRORS, budget)
    try:
        for at in range(0, len(data), SLICE_BYTES):
            answer.feed(data[at : at + SLICE_BYTES])
            if answer.is_closed:
                break
        answer.end()
        return answer.completion()
    finally:
        budget.close()
        assert memory.held == 0


def limited(**values: Any) -> Limits:
    return Limits(LimitSettings(**values))


class HostileEndpoint:
    def __init__(self, server: ModelServer, endpoint: Endpoint, wire: str, limits: Limits) -> None:
        self.server = server
        self.limits = limits
        self._endpoint = endpoint
        self._wire = WIRES[wire]
        self.deltas: list[ModelDelta] = []

    async def ask(self, text: str, sink: Callable[[ModelDelta], None] | None = None) -> Completion:
        chunks = [self._wire.encode(UserMessage((Text(text),)))]
        call = ModelCall("m", Prefix(b"", b""), chunks)
        return await self._endpoint.complete(call, sink or self.deltas.append)

    async def fail(self, text: str) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await self.ask(text)
        assert self.limits.readings()["answer_memory"].used == 0
        return caught.value


@asynccontextmanager
async def world(wire: str = "openai-chat", **values: Any) -> AsyncIterator[HostileEndpoint]:
    limits = limited(**values)
    async with ModelServer(strict=False) as server:
        settings = ProviderSettings(server.base_url, first_token=timedelta(seconds=20))
        endpoint = Endpoint("acme", settings, WIRES[wire], memory=AnswerMemory(limits))
        try:
            yield HostileEndpoint(server, endpoint, wire, limits)
        finally:
            await endpoint.close()


@pytest.mark.parametrize(("wire", "name"), ATTACKS)
def test_every_attack_ends_in_an_answer_or_a_model_error(wire: str, name: str) -> None:
    body = find_attack(wire, name).whole(150_000)
    try:
        completion = read(wire, body)
    except ModelError as error:
        assert len(str(error)) < 800
    else:
        assert min(completion.usage.input, completion.usage.output) >= 0


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize(
    ("key", "limit", "name"),
    [
        ("answer_bytes", Size(100_000), "comments"),
        ("answer_text", Size(500), "text"),
        ("answer_text", Size(500), "thoughts"),
        ("answer_pieces", 300, "text"),
        ("answer_calls", 20, "calls"),
        ("call_arguments", Size(500), "call-arguments"),
        ("call_arguments", Size(500), "call-arguments-at-once"),
        ("answer_cpu", timedelta(microseconds=1), "text"),
    ],
)
async def test_an_answer_over_a_limit_is_cut_off_and_the_limit_is_named(
    wire: str, key: str, limit: object, name: str
) -> None:
    async with world(wire, **{key: limit}) as attacked:
        error = await attacked.fail(f"[[hostile {name} 400000]]")
        assert isinstance(error, AnswerTooLarge)
        assert f"limits.{key} = " in error.hint
        assert "acme" in error.user_text
        assert attacked.limits.readings()[key].refused == 1
        assert await attacked.server.until(lambda: not attacked.server.answering)


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("name", ["call-name", "event-of-values", "body-of-objects", "endless-line"])
async def test_an_answer_over_a_fixed_bound_is_cut_off(wire: str, name: str) -> None:
    async with world(wire) as attacked:
        error = await attacked.fail(f"[[hostile {name} 6000000]]")
        assert isinstance(error, AnswerTooLarge)
        assert len(str(error)) < 500


def test_the_longest_name_of_a_tool_is_taken() -> None:
    name = "n" * MAX_NAME
    attack = find_attack("openai-chat", "call-name")
    completion = read("openai-chat", attack.head + name.encode() + attack.tail)
    assert [call.name for call in completion.message.tool_calls] == [name]


async def test_the_memory_of_all_answers_is_bounded_and_given_back() -> None:
    async with world(answer_memory=Size(200_000)) as attacked:
        both = await asyncio.gather(
            *(attacked.ask("[[hostile call-arguments-at-once 150000]]") for _ in range(2)),
            return_exceptions=True,
        )
        [failed] = [outcome for outcome in both if isinstance(outcome, Exception)]
        assert isinstance(failed, AnswerMemoryFull)
        assert isinstance(failed, ModelUnavailable), "it is tried again"
        assert "limits.answer_memory" in failed.hint
        assert attacked.limits.readings()["answer_memory"].used == 0
        await attacked.ask("[[hostile call-arguments-at-once 150000]]")


async def test_other_tasks_run_while_an_answer_is_read() -> None:
    """Each piece takes longer than a slice may, so the loop is shared after each of them."""
    rounds, seen = 0, list[int]()

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    def sink(delta: ModelDelta) -> None:
        seen.append(rounds)
        threading.Event().wait(2 * SLICE_SECONDS)

    async with world() as attacked:
        counting = asyncio.create_task(count_rounds())
        await attacked.ask("[[words 70000]][[chunks 20]]", sink)  # 30 kB each, all sent at once
        counting.cancel()
    assert len(seen) == 20
    assert all(later > earlier for earlier, later in pairwise(seen))


# -- numbers of providers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("usage-huge", 5_000),
        ("usage-beyond-64-bits", 5_000),
        ("usage-negative", 0),
        ("usage-of-other-types", 0),
    ],
)
async def test_impossible_token_counts_are_clamped(
    wire: str, name: str, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "talaria.models")
    async with world(wire) as attacked:
        for _ in range(2):
            usage = (await attacked.ask(f"[[hostile {name} 0]]")).usage
            assert 0 <= usage.input <= most
            assert 0 <= usage.output <= most
    lies = [record for record in caplog.records if "impossible token counts" in record.message]
    assert len(lies) == (most > 0), "a lie is logged once"


async def test_possible_token_counts_are_believed(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as asked:
        usage = (await asked.ask(f"[[usage 1000 800 20 5]] {'x' * 500}")).usage
        assert usage == TokenUsage(1000, 800, 20, 5)
        hidden = (await asked.ask("[[usage 100 0 30000 29990]] hello")).usage
        assert hidden == TokenUsage(100, 0, 30_000, 29_990), "reasoning that is not shown"
        caplog.set_level(logging.WARNING, "talaria.models")
        beside = (await asked.ask("[[usage 100 0 20 300]] hello")).usage
        assert beside == TokenUsage(100, 0, 20, 20)
        assert not caplog.records, "reasoning that is counted beside the output is no lie"


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("name", ["endless-line", "body-of-values", "call-name", "text"])
async def test_an_answer_that_was_refused_leaves_no_bytes_behind(wire: str, name: str) -> None:
    async with world(wire, answer_text=Size(3_000)) as attacked:
        await attacked.fail(f"[[hostile {name} 600000]]")
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(3):
                await attacked.fail(f"[[hostile {name} 600000]]")
            attacked.deltas.clear()
            assert tracemalloc.get_traced_memory()[0] < 1_000_000, "kept until a garbage collection"
        finally:
            tracemalloc.stop()
            gc.enable()
