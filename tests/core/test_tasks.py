"""Work that must be finished is finished, and its caller's cancellation comes after."""

from __future__ import annotations

import asyncio

import pytest

from talaria.core.tasks import (
    Tasks,
    call_from_thread,
    finish,
    finish_in_task,
    running,
    stop,
    wait_first,
    wait_future,
)


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


async def wait_for_ever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append("ended")


async def test_stop_returns_when_the_tasks_have_ended_and_drops_their_errors() -> None:
    tasks, ended = Tasks(), list[str]()
    tasks.start(wait_for_ever(ended), "one")
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError())
    await asyncio.sleep(0)
    await stop(*tasks, failed)
    assert (ended, len(tasks)) == (["ended"], 0)


async def test_leaving_the_block_with_an_error_stops_the_work() -> None:
    ended = list[str]()
    with pytest.raises(ValueError, match="in the block"):
        async with running(wait_for_ever(ended), wait_for_ever(ended), name="two"):
            await asyncio.sleep(0)
            raise ValueError("in the block")
    assert ended == ["ended", "ended"]


async def test_the_first_that_ends_stops_the_others() -> None:
    ended = list[str]()
    await wait_first(wait_for_ever(ended), asyncio.sleep(0))
    assert ended == ["ended"]


async def test_work_in_a_task_ends_before_its_callers_cancellation() -> None:
    may_end, done = asyncio.Event(), list[str]()

    async def work() -> None:
        await may_end.wait()
        done.append("done")

    caller = asyncio.create_task(finish_in_task(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    await asyncio.wait((caller,))
    assert caller.cancelled() and done == ["done"]


def test_a_call_from_a_thread_to_a_closed_loop_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    call_from_thread(loop, pytest.fail, "called")


async def test_waiting_for_a_future_ends_when_it_is_done() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(wait_future(future, 3600))
    await asyncio.sleep(0)
    future.set_result("done")
    await waiting


async def test_waiting_for_a_future_leaves_it_as_it_is_when_the_time_is_up() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    await wait_future(future, 0)
    assert not future.done()


async def test_a_cancelled_wait_leaves_the_future_as_it_is() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(wait_future(future, 3600))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not future.done()
