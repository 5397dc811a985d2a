"""The seeded loop repeats a seed, shuffles, never waits, and finds races that the stock loop misses."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from support.sim import LeftBehind, SimClock, SimulationError, Stuck, run
from support.slow_store import SlowStore
from talaria.core.errors import StoreError
from talaria.core.ids import SessionId
from talaria.store.in_memory import MemoryStore

SEEDS = 200


async def interleaving() -> str:
    """Run four tasks of three steps each, and return the order of the steps."""
    taken: list[str] = []

    async def walk(name: str) -> None:
        for _ in range(3):
            taken.append(name)
            await asyncio.sleep(0)

    tasks = {asyncio.create_task(walk(name)) for name in "abcd"}
    await asyncio.wait(tasks)
    for task in {asyncio.create_task(walk(name)) for name in "xyz"}:
        task.cancel()
    await asyncio.sleep(1)
    return "".join(taken)


def test_the_same_seed_is_the_same_interleaving() -> None:
    assert [run(seed, interleaving) for seed in range(20)] == [run(seed, interleaving) for seed in range(20)]


def test_seeds_shuffle_what_is_ready() -> None:
    assert len({run(seed, interleaving) for seed in range(50)}) > 40


def test_time_jumps_and_costs_nothing() -> None:
    async def main() -> tuple[float, float, list[str]]:
        clock = SimClock()
        began, began_wall, woken = clock.elapsed(), clock.now(), []

        async def nap(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append(name)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(nap("week", 604_800))
            tasks.create_task(nap("minute", 60))
            tasks.create_task(nap("now", -1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.get_running_loop().create_future()
        return clock.elapsed() - began, clock.now() - began_wall, woken

    elapsed, wall, woken = run(1, main)
    assert elapsed == pytest.approx(604_810, abs=0.1)
    assert wall == pytest.approx(604_810, abs=0.1)
    assert woken == ["now", "minute", "week"]


def test_a_deadlock_tells_who_waits_where() -> None:
    async def main() -> None:
        first, second = asyncio.Lock(), asyncio.Lock()

        async def philosopher(left: asyncio.Lock, right: asyncio.Lock) -> None:
            async with left:
                await asyncio.sleep(1)
                async with right:
                    pass

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(philosopher(first, second), name="kant")
            tasks.create_task(philosopher(second, first), name="hume")

    with pytest.raises(Stuck) as stuck:
        run(1, main)
    assert "kant: philosopher (" in str(stuck.value)
    assert "hume: philosopher (" in str(stuck.value)
    assert "acquire" in str(stuck.value)


def test_a_run_that_goes_on_for_ever_is_stopped() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="still busy after 1000 steps"):
        run(1, main, max_steps=1000)


def test_tasks_that_are_left_behind_are_named_and_ended() -> None:
    ended = []

    async def forgotten() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    async def main() -> None:
        main.task = asyncio.create_task(forgotten(), name="forgotten")  # type: ignore[attr-defined]
        await asyncio.sleep(1)

    with pytest.raises(LeftBehind, match="forgotten: forgotten"):
        run(1, main)
    assert ended == [True]


def test_an_error_that_nobody_sees_is_seen() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(LeftBehind, match="division by zero"):
        run(1, main)


def test_with_a_tick_what_is_a_little_apart_happens_at_one_moment_in_any_order() -> None:
    async def main() -> tuple[str, float]:
        order = ""

        async def wait(name: str, seconds: float) -> None:
            nonlocal order
            await asyncio.sleep(seconds)
            order += name

        await asyncio.gather(wait("a", 0.001), wait("b", 0.009), wait("c", 0.011))
        return order, asyncio.get_running_loop().time()

    assert {run(seed, main) for seed in range(SEEDS)} == {("abc", 0.011)}
    assert {run(seed, main, tick=0.01) for seed in range(SEEDS)} == {("abc", 0.02), ("bac", 0.02)}


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(SimulationError, match="wants a thread"):
        run(1, main)


# -- a planted race ---------------------------------------------------------------------------------------


class ToyPool:
    """A pool with a race: other tasks run between finding an agent and pinning it."""

    def __init__(self) -> None:
        self.agents = {"session": True}
        self.pinned = 0

    async def use(self) -> None:
        if "session" in self.agents:
            await self.check_credential()
            self.pinned += 1
            assert "session" in self.agents, "the agent was evicted before it was pinned"
            await asyncio.sleep(0)
            self.pinned -= 1

    async def check_credential(self) -> None:
        await asyncio.sleep(0)

    async def evict(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        if not self.pinned:
            self.agents.clear()


async def planted() -> None:
    pool = ToyPool()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.use())
        tasks.create_task(pool.evict())


def finds_the_race(seed: int) -> bool:
    try:
        run(seed, planted)
    except ExceptionGroup as raised:
        return raised.subgroup(AssertionError) is not None
    return False


def test_a_pin_taken_after_an_await_is_found_where_the_stock_loop_misses_it() -> None:
    for _ in range(SEEDS):
        asyncio.run(planted())
    found = [seed for seed in range(SEEDS) if finds_the_race(seed)]
    assert found
    assert finds_the_race(found[0])


# -- the slow store ---------------------------------------------------------------------------------------


def test_a_slow_store_finishes_a_write_before_it_is_cancelled() -> None:
    async def main() -> None:
        store = SlowStore(MemoryStore(SimClock()), Random(1))
        writing = asyncio.create_task(store.close())
        await asyncio.sleep(0.001)
        writing.cancel()
        await asyncio.wait([writing])
        with pytest.raises(StoreError):
            await store.stats()

    for seed in range(20):
        run(seed, main)


def test_a_sick_store_fails_its_reads() -> None:
    async def main() -> None:
        store = SlowStore(MemoryStore(SimClock()), Random(1))
        assert await store.session(SessionId("ses_none")) is None
        store.failing = 1.0
        with pytest.raises(StoreError, match="sick"):
            await store.session(SessionId("ses_none"))

    run(1, main)
