from __future__ import annotations

import asyncio
import threading

import pytest

from support.sim import run
from support.waiting import until
from talaria.core.slots import FairSlots, FairThreads


async def take(slots: FairSlots, owner: str, order: list[str]) -> None:
    async with slots.slot(owner):
        order.append(owner)
        await asyncio.sleep(0)


async def rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_waiters_of_one_owner_are_served_in_order_and_owners_take_turns() -> None:
    slots, order = FairSlots(lambda: 1, lambda: 1), list[str]()
    await slots.acquire("first")
    tasks = [asyncio.create_task(take(slots, owner, order)) for owner in ["busy"] * 100 + ["other"]]
    await rounds()
    assert slots.waiting == 101
    slots.release("first")
    await asyncio.gather(*tasks)
    assert order.index("other") == 1
    assert (slots.in_use, slots.waiting) == (0, 0)


async def test_one_owner_never_has_more_than_its_share() -> None:
    slots = FairSlots(lambda: 4, lambda: 2)
    for owner in ("a", "a", "b"):
        await slots.acquire(owner)
    third = asyncio.create_task(slots.acquire("a"))
    await rounds()
    assert not third.done()
    await slots.acquire("c")  # passes the one that waits for its share
    slots.release("b")
    await rounds()
    assert not third.done()
    slots.release("a")
    await third
    assert slots.in_use == 3


async def test_a_cancelled_wait_leaves_nothing_also_in_the_round_of_its_grant() -> None:
    slots = FairSlots(lambda: 1, lambda: 1)
    await slots.acquire("a")
    waiting, granted = (asyncio.create_task(slots.acquire("b")) for _ in range(2))
    await rounds()
    waiting.cancel()
    await rounds()
    assert (slots.in_use, slots.waiting) == (1, 1)
    slots.release("a")
    granted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await granted
    assert (slots.in_use, slots.waiting) == (0, 0)


async def test_a_raised_limit_counts_for_the_next_caller_and_those_before_it() -> None:
    most = 1
    slots = FairSlots(lambda: most, lambda: most)
    await slots.acquire("a")
    waiting = asyncio.create_task(slots.acquire("b"))
    await rounds()
    most = 3
    await slots.acquire("c")
    await waiting
    assert slots.in_use == 3


@pytest.mark.parametrize("seed", range(30))
def test_slots_are_never_exceeded_or_lost_in_any_order(seed: int) -> None:
    async def main() -> None:
        slots, used = FairSlots(lambda: 3, lambda: 2), dict.fromkeys("abc", 0)

        async def work(owner: str) -> None:
            async with slots.slot(owner):
                used[owner] += 1
                assert used[owner] <= 2
                assert sum(used.values()) <= 3
                await asyncio.sleep(0)
                used[owner] -= 1

        tasks = [asyncio.create_task(work("abc"[n % 3])) for n in range(30)]
        await asyncio.sleep(0)
        for task in tasks[::4]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (slots.in_use, slots.waiting) == (0, 0)

    run(seed, main)


async def test_a_thread_counts_until_its_function_has_returned() -> None:
    threads = FairThreads("test", lambda: 2)
    began, goes_on = threading.Event(), threading.Event()

    def block() -> None:
        began.set()
        goes_on.wait()

    try:
        left = asyncio.create_task(threads.run("a", block))
        await until(began.is_set, pause=0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert threads.in_use == 1
        queued = asyncio.create_task(threads.run("a", lambda: "second"))
        assert await threads.run("b", lambda: "other") == "other"
        assert not queued.done()
        goes_on.set()
        assert await queued == "second"
        await until(lambda: not threads.in_use, pause=0)
    finally:
        goes_on.set()
        threads.close()


async def test_what_a_function_raises_comes_out_and_frees_its_thread() -> None:
    threads = FairThreads("test", lambda: 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await threads.run("a", lambda: 1 / 0)
    threads.close()
    with pytest.raises(RuntimeError):
        await threads.run("a", lambda: None)
    assert threads.in_use == 0


async def test_cancelled_waiter_does_not_keep_its_owner_from_a_free_slot() -> None:
    slots = FairSlots(lambda: 1, lambda: 1)
    await slots.acquire("first")
    waiting = asyncio.create_task(slots.acquire("second"))
    await asyncio.sleep(0)
    waiting.cancel()
    slots.release("first")  # before the cancelled waiter runs
    with pytest.raises(StopIteration):  # it has the slot without waiting
        slots.acquire("second").send(None)
    await asyncio.wait((waiting,))
    assert (waiting.cancelled(), slots.in_use, slots.waiting) == (True, 1, 0)
    slots.release("second")
