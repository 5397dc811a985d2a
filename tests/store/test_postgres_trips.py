"""How many statements and round trips the orders of a turn take on PostgreSQL, begin and commit included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import msgspec
import pytest

from contracts.cluster_orders import HERE, THERE, member
from contracts.store_orders import LEASE, ME, accepting, ending, said, step
from talaria.core.cluster import Here
from talaria.core.ledger import Accepted, Began, Begin, Commit, UsageWrite
from talaria.core.messages import AssistantMessage, TokenUsage
from talaria.core.turns import StepKind, StepState
from talaria.store.postgres.connections import open_pipe
from talaria.store.postgres.link import PostgresLink
from talaria.store.sql import cluster, orders
from talaria.testing.clock import FakeClock

T = TypeVar("T")
USED = UsageWrite(1, "p", "m", TokenUsage(10, output=5), 7, "u")


class Counted:
    """Runs orders and counts what they take."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        self.taken: dict[str, tuple[int, int]] = {}

    def accept(self, name: str, *, begins: bool = False, here: Here | None = None, **more: str) -> Accepted:
        owner = ME if here is None else here.owner
        order = accepting(begins=said("hello") if begins else None, owner=owner, **more)  # type: ignore[arg-type]
        order = msgspec.structs.replace(order, here=here)
        return self._count(name, lambda: self._link.write(lambda tx: orders.accept(tx, order)))

    def join(self, *members: Here) -> None:
        for here in members:
            row = member(here.owner, here.place)
            self._link.write(partial(cluster.join, member=row, lease_seconds=LEASE))

    def begin(self, name: str, turn: Accepted) -> Began:
        order = Begin(turn.turn.id, ME, LEASE, said("hello"))
        return self._count(name, lambda: self._link.write(lambda tx: orders.begin(tx, order)))

    def commit(self, name: str, order: Commit) -> None:
        self._count(name, lambda: self._link.write(lambda tx: orders.commit(tx, order)))

    def _count(self, name: str, run: Callable[[], T]) -> T:
        pipe = self._link.pipe
        before = (pipe.statements, pipe.round_trips)
        result = run()
        self.taken[name] = (pipe.statements - before[0], pipe.round_trips - before[1])
        return result


# Statements and round trips. A change that adds one to a turn must say why.
TAKEN = {
    "first message of a chat": (13, 3),
    "message that begins its turn": (8, 2),
    "message that only waits": (6, 2),
    "begin": (8, 2),
    "commit of a step": (8, 3),
    "commit of an end": (12, 3),
    "commit of an end with a reply to send": (11, 4),
}


@pytest.fixture
def counted(postgres_url: str, clock: FakeClock) -> Iterator[Counted]:
    link = PostgresLink(lambda: open_pipe(postgres_url), clock)
    link.write(lambda tx: None)
    yield Counted(link)
    link.close()


def test_a_member_of_a_cluster_takes_no_more_for_a_chat_that_it_has(
    counted: Counted, clock: FakeClock
) -> None:
    counted.join(HERE, THERE)
    first = counted.accept("first message of a chat", begins=True, here=HERE)
    assert first.began is not None
    counted.accept("message that only waits", here=HERE)
    counted.accept("message for another member", begins=True, here=THERE)
    other = counted.accept("_", here=HERE, chat="agent:main:http:api:other")
    began = counted.begin("begin", other)
    counted.commit("_", ending(other, began))
    counted.accept("message that begins its turn", begins=True, here=HERE, chat=other.turn.chat_key)
    same = {name: count for name, count in counted.taken.items() if name in TAKEN}
    assert same == {name: TAKEN[name] for name in same} and len(same) == 4
    assert counted.taken["message for another member"] == (9, 4)


def test_orders_take_no_more_statements_and_round_trips(counted: Counted) -> None:
    first = counted.accept("first message of a chat", begins=True)
    assert first.began is not None
    place = (first.turn.session_id, first.began.fence, first.turn.id)
    counted.accept("message that only waits")
    counted.commit(
        "commit of a step", Commit(*place, (AssistantMessage("hi"),), steps=(step(1, StepState.PENDING),))
    )
    model = (step(2, StepState.ENDED, StepKind.MODEL),)
    end = ending(first, first.began, AssistantMessage("hi")).end
    counted.commit(
        "commit of an end", Commit(*place, (AssistantMessage("hi"),), steps=model, end=end, usage=(USED,))
    )
    other = counted.accept("message that begins its turn", begins=True)
    assert other.began is not None
    counted.commit("_", ending(other, other.began))
    third = counted.accept("_", address="a", chat="agent:main:http:api:third")
    began = counted.begin("begin", third)
    counted.commit("commit of an end with a reply to send", ending(third, began, AssistantMessage("hi")))
    taken = {name: count for name, count in counted.taken.items() if name != "_"}
    assert taken == TAKEN
