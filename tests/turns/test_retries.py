"""Which requests are retries of which: ages, numbers, and requests that are still being accepted."""

from __future__ import annotations

import asyncio

import pytest

from contracts.store_orders import accepting, new_clock
from talaria.core.ids import TurnId
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.turns.retries import MOST_REQUESTS, RETRY_SECONDS, ClientRequest, RecentRequests

TURN = TurnId("turn_1")


class Client:
    """A client that can leave."""

    def __init__(self) -> None:
        self.is_gone = False

    def request(self, digest: str = "d", *, is_retry: bool = False) -> ClientRequest:
        return ClientRequest(digest, lambda: self.is_gone, is_retry=is_retry)


@pytest.fixture
def clock() -> FakeClock:
    return new_clock()


@pytest.fixture
def requests(clock: FakeClock) -> RecentRequests:
    return RecentRequests(MemoryStore(clock), clock)


async def joins(requests: RecentRequests, digest: str = "d", *, is_retry: bool = False) -> TurnId | None:
    return await requests.joined(Client().request(digest, is_retry=is_retry))


def take(
    requests: RecentRequests, client: Client, turn_id: TurnId = TURN, digest: str = "d"
) -> ClientRequest:
    request = client.request(digest)
    requests.begin(request)
    requests.accepted(request, turn_id)
    return request


async def test_a_request_joins_by_its_number_or_by_the_broken_connection(requests: RecentRequests) -> None:
    client = Client()
    take(requests, client)
    assert await joins(requests) is None
    assert await joins(requests, is_retry=True) == TURN
    assert await joins(requests, "other", is_retry=True) is None
    client.is_gone = True
    assert await joins(requests) == TURN


async def test_an_answered_request_is_joined_by_a_number_only(requests: RecentRequests) -> None:
    request = take(requests, Client())
    requests.answered(request)
    requests.broken(request)
    assert await joins(requests) is None
    assert await joins(requests, is_retry=True) == TURN
    requests.unread(request)
    assert await joins(requests) == TURN


async def test_a_request_that_ended_without_its_answer_is_joined(requests: RecentRequests) -> None:
    requests.broken(take(requests, Client()))
    assert await joins(requests) == TURN


@pytest.mark.parametrize(("seconds", "is_joined"), [(RETRY_SECONDS, True), (RETRY_SECONDS + 1, False)])
async def test_a_turn_of_more_than_ten_minutes_is_not_joined(
    requests: RecentRequests, clock: FakeClock, seconds: float, is_joined: bool
) -> None:
    requests.broken(take(requests, Client()))
    clock.advance(seconds)
    for is_retry in (False, True):
        assert (await joins(requests, is_retry=is_retry) == TURN) is is_joined


async def test_old_requests_are_forgotten(requests: RecentRequests, clock: FakeClock) -> None:
    for n in range(100):
        take(requests, Client(), digest=f"old {n}")
    clock.advance(RETRY_SECONDS + 1)
    take(requests, Client())
    assert len(requests) == 1


async def test_the_number_of_requests_is_bounded(requests: RecentRequests) -> None:
    for n in range(MOST_REQUESTS + 100):
        take(requests, Client(), digest=str(n))
    assert len(requests) == MOST_REQUESTS
    assert await joins(requests, "99", is_retry=True) is None
    assert await joins(requests, "100", is_retry=True) == TURN


async def test_a_retry_waits_for_the_request_that_is_being_accepted(requests: RecentRequests) -> None:
    request = Client().request()
    requests.begin(request)
    waiting = [asyncio.create_task(joins(requests, is_retry=True)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    requests.accepted(request, TURN)
    assert await asyncio.gather(*waiting) == [TURN] * 3


async def test_a_retry_of_a_request_that_was_refused_is_a_request_of_its_own(
    requests: RecentRequests,
) -> None:
    request = Client().request()
    requests.begin(request)
    waiting = asyncio.create_task(joins(requests, is_retry=True))
    await asyncio.sleep(0)
    requests.accepted(request, None)
    assert await waiting is None
    assert len(requests) == 0


async def test_the_next_process_knows_them(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    first, second, third = [await store.accept(accepting(digest=digest)) for digest in ("a", "b", "c")]
    requests = RecentRequests(store, clock)
    await requests.load()
    for digest, accepted in (("a", first), ("b", second)):
        request = Client().request(digest, is_retry=True)
        assert await requests.joined(request) == accepted.turn.id
        requests.answered(request)
        if digest == "b":
            requests.unread(request)
    await requests.mark()
    clock.advance(1)
    later = RecentRequests(store, clock)
    await later.load()
    assert await joins(later, "a") is None
    assert await joins(later, "b") == second.turn.id
    assert await joins(later, "c") == third.turn.id
    clock.advance(RETRY_SECONDS)
    latest = RecentRequests(store, clock)
    await latest.load()
    assert len(latest) == 0
    await store.close()
