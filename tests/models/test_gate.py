"""The gate: what passes, what is turned away, and what an endpoint tells of itself."""

from __future__ import annotations

import asyncio

import pytest

from talaria.core.errors import EndpointResting, ModelError, ModelRefused, ModelUnavailable
from talaria.models.breaker import BreakerSettings
from talaria.models.faults import Faults
from talaria.models.gate import Gate
from talaria.observe.metrics import EndpointReading
from talaria.testing.clock import FakeClock

FAULTS = Faults("acme", "m")
LIMITS = BreakerSettings(threshold=2, first_rest=8.0)


async def fail(gate: Gate, error: ModelError) -> None:
    with pytest.raises(ModelError):
        async with gate.passing("s", FAULTS):
            raise error


def new_gate(permits: int = 4) -> tuple[Gate, FakeClock]:
    clock = FakeClock()
    return Gate(permits, clock, lambda: 1.0, LIMITS), clock


async def test_those_who_wait_for_a_permit_are_turned_away_when_the_breaker_opens() -> None:
    gate, _ = new_gate(permits=1)
    await fail(gate, ModelUnavailable("broken"))
    released = asyncio.Event()

    async def call() -> None:
        async with gate.passing("s", FAULTS):
            await released.wait()
            raise ModelUnavailable("broken")

    calls = [asyncio.create_task(call()) for _ in range(5)]
    while gate.reading().waiting < 4:
        await asyncio.sleep(0)
    released.set()
    first, *rest = await asyncio.gather(*calls, return_exceptions=True)
    assert type(first) is ModelUnavailable
    assert [type(error) for error in rest] == [EndpointResting] * 4
    assert gate.reading() == EndpointReading("open", 2, 8.0, 0, 0)


async def test_a_refusal_says_when_to_come_back_and_that_no_call_was_made() -> None:
    gate, clock = new_gate()
    for _ in range(2):
        await fail(gate, ModelUnavailable("broken", status=500))
    clock.advance(3.5)
    with pytest.raises(EndpointResting, match="has failed 2 times in a row") as caught:
        async with gate.passing("s", FAULTS):
            raise AssertionError("it passed")
    assert (caught.value.retry_after, "in 5 seconds" in caught.value.hint) == (4.5, True)


@pytest.mark.parametrize(
    "error", [ModelRefused("no", status=401), ModelUnavailable("slow down", status=429)], ids=str
)
async def test_an_answer_of_any_kind_ends_the_rest(error: ModelError) -> None:
    gate, clock = new_gate()
    for _ in range(2):
        await fail(gate, ModelUnavailable("broken"))
    clock.advance(8)
    await fail(gate, error)
    assert gate.reading().state == "closed"


async def test_a_long_answer_does_not_keep_the_others_out() -> None:
    gate, clock = new_gate()
    for _ in range(2):
        await fail(gate, ModelUnavailable("broken"))
    clock.advance(8)
    async with gate.passing("s", FAULTS) as began:
        assert gate.reading().state == "half_open"
        began()
        assert gate.reading().state == "closed"
        async with gate.passing("another", FAULTS):
            assert gate.reading().busy == 2
    assert gate.reading() == EndpointReading()


async def test_a_cancelled_probe_gives_its_permit_and_its_place_back() -> None:
    gate, clock = new_gate()
    for _ in range(2):
        await fail(gate, ModelUnavailable("broken"))
    clock.advance(8)
    with pytest.raises(asyncio.CancelledError):
        async with gate.passing("s", FAULTS):
            raise asyncio.CancelledError
    assert (gate.reading().busy, gate.is_resting) == (0, False)
