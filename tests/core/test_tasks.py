"""Work that must be finished is finished, and its caller's cancellation comes after."""

from __future__ import annotations

import asyncio

import pytest

from talaria.core.tasks import finish


class Steadfast(asyncio.Future[str]):
    """Refuses to be cancelled, as the store's answers do."""

    def cancel(self, msg: object = None) -> bool:
        return False


class Work:
    def __init__(self) -> None:
        self.first, self.second = Steadfast(), Steadfast()
        self.seen: list[str] = []

    async def run(self) -> str:
        self.seen.append(await self.first)
        try:
            self.seen.append(await self.second)
        except ValueError as error:
            self.seen.append(f"failed: {error}")
        return "done"

    async def call(self) -> str:
        return await finish(self.run())


async def test_it_gives_what_the_work_gives() -> None:
    work = Work()
    task = asyncio.create_task(work.call())
    work.first.set_result("a")
    await asyncio.sleep(0)
    work.second.set_result("b")
    assert await task == "done"
    assert work.seen == ["a", "b"]


async def test_the_work_sees_the_failures_of_what_it_awaits() -> None:
    work = Work()
    work.first.set_result("a")
    work.second.set_exception(ValueError("no"))
    assert await work.call() == "done"
    assert work.seen == ["a", "failed: no"]
    other = Work()
    other.first.set_exception(KeyError("lost"))
    with pytest.raises(KeyError):
        await other.call()


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_caller_leaves_when_the_work_has_ended(times: int) -> None:
    work = Work()
    task = asyncio.create_task(work.call())
    await asyncio.sleep(0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    work.first.set_result("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert work.seen == ["a"]
    assert not task.done()
    work.second.set_result("b")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.seen == ["a", "b"]


async def test_a_failure_after_a_cancellation_is_a_cancellation() -> None:
    work = Work()
    task = asyncio.create_task(work.call())
    await asyncio.sleep(0)
    task.cancel()
    work.first.set_exception(KeyError("lost"))
    with pytest.raises(asyncio.CancelledError):
        await task
