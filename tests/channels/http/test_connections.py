"""The table of connections: who is let in, who makes room, and what may be held."""

from __future__ import annotations

from typing import Any

import pytest

from talaria.channels.http.connections import ClientConnections, _address_group
from talaria.core.errors import Overloaded
from talaria.core.limits import Limits, LimitSettings
from talaria.core.units import Size


class Connection:
    """What the table knows of a connection."""

    def __init__(self, table: ClientConnections, address: str, idle_since: float | None = None) -> None:
        self.table: Any = table
        self.address = address
        self.idle_since = idle_since
        self.held_bytes = 0
        self.is_cut = False

    def enter(self) -> str | None:
        return self.table.admit(self)  # type: ignore[no-any-return]

    def cut(self) -> None:
        self.is_cut = True
        self.table.remove(self)


def make_table(connections: int = 4, per_address: int = 3, memory: int = 100) -> ClientConnections:
    settings = LimitSettings(
        connections=connections, connections_per_address=per_address, client_memory=Size(memory)
    )
    return ClientConnections(Limits(settings))


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
        ("2001:db8:1:3::1", "2001:db8:1:3::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("not:an address", "not:an address"),
    ],
)
def test_an_address_of_ipv6_stands_for_its_network(address: str, group: str) -> None:
    assert _address_group(address) == group


def test_over_the_limit_of_an_address_its_oldest_stranger_makes_room() -> None:
    table = make_table()
    first, second, third, fourth = (Connection(table, "a") for _ in range(4))
    assert [each.enter() for each in (first, second, third)] == [None] * 3
    table.note_trusted(first)  # type: ignore[arg-type]
    assert fourth.enter() is None
    assert [each.is_cut for each in (first, second, third, fourth)] == [False, True, False, False]


def test_over_the_limit_of_an_address_the_longest_idle_makes_room_and_a_busy_one_never() -> None:
    table = make_table()
    busy, late, early = (Connection(table, "a", since) for since in (None, 20.0, 10.0))
    for each in (busy, late, early):
        assert each.enter() is None
        table.note_trusted(each)  # type: ignore[arg-type]
    for victim in (early, late):
        fresh = Connection(table, "a")
        assert fresh.enter() is None
        assert victim.is_cut
        table.note_trusted(fresh)  # type: ignore[arg-type]
    refused = Connection(table, "a").enter()
    assert refused is not None
    assert "connections_per_address" in refused
    assert not busy.is_cut


def test_over_the_limit_of_all_the_address_with_the_most_strangers_makes_room() -> None:
    table = make_table(connections=4)
    many = [Connection(table, "many") for _ in range(3)]
    one = Connection(table, "one")
    for each in (one, *many):
        assert each.enter() is None
    assert Connection(table, "new").enter() is None
    assert [each.is_cut for each in many] == [True, False, False]
    assert not one.is_cut
    assert table.limits.readings()["connections"].refused == 1


def test_over_the_limit_of_all_a_known_idle_one_makes_room_behind_all_strangers() -> None:
    table = make_table(connections=2)
    idle, busy = Connection(table, "a", 5.0), Connection(table, "b")
    for each in (idle, busy):
        assert each.enter() is None
        table.note_trusted(each)  # type: ignore[arg-type]
    stranger = Connection(table, "c")
    assert stranger.enter() is None
    assert idle.is_cut
    assert Connection(table, "d").enter() is None
    assert stranger.is_cut
    assert not busy.is_cut


def test_a_connection_is_refused_when_all_others_are_busy() -> None:
    table = make_table(connections=1)
    busy = Connection(table, "a")
    assert busy.enter() is None
    table.note_trusted(busy)  # type: ignore[arg-type]
    hint = Connection(table, "b").enter()
    assert hint is not None
    assert "limits.connections" in hint
    busy.cut()
    assert Connection(table, "b").enter() is None


def test_the_room_of_the_system_counts_too() -> None:
    limits = Limits(LimitSettings(connections=50))
    assert ClientConnections(limits, 20).most == 20
    assert ClientConnections(limits, 200).most == 50


def test_the_last_twentieth_is_for_addresses_with_few_connections() -> None:
    table = make_table(connections=40, per_address=40)
    crowd = [Connection(table, "crowd") for _ in range(38)]
    assert [each.enter() for each in crowd] == [None] * 38
    assert not any(each.is_cut for each in crowd)
    others = [Connection(table, "other") for _ in range(2)]
    assert [each.enter() for each in others] == [None, None]
    assert not any(each.is_cut for each in crowd)
    assert Connection(table, "crowd").enter() is None
    assert crowd[0].is_cut


def test_bytes_are_held_until_they_are_released() -> None:
    table = make_table(memory=100)
    one, other, outside = (Connection(table, name) for name in ("a", "b", "c"))
    assert one.enter() is other.enter() is None

    def held() -> float | None:
        return table.limits.readings()["client_memory"].used

    table.hold_body(one, 60)  # type: ignore[arg-type]
    table.hold_body(outside, 60)  # type: ignore[arg-type]
    assert held() == 60, "one that is not in the table holds nothing"
    table.hold_body(other, 40)  # type: ignore[arg-type]
    with pytest.raises(Overloaded) as full:
        table.hold_body(other, 1)  # type: ignore[arg-type]
    assert full.value.retry_after == 5
    table.release(one, 1000)  # type: ignore[arg-type]
    assert held() == 41
    table.release(other, 1)  # type: ignore[arg-type]
    assert held() == 40
    table.remove(other)  # type: ignore[arg-type]
    table.remove(other)  # type: ignore[arg-type]
    assert held() == 0


def test_clients_that_do_not_read_make_room_the_slowest_first() -> None:
    table = make_table(memory=100)
    slow, slower, quick, sender = (Connection(table, name) for name in "abcd")
    for each in (slow, slower, quick, sender):
        assert each.enter() is None
    for each in (slow, slower, quick):
        table.hold_response(each, 30)  # type: ignore[arg-type]
    table.note_read(slow)  # type: ignore[arg-type]
    table.note_read(sender)  # type: ignore[arg-type]
    table.hold_body(sender, 20)  # type: ignore[arg-type]
    assert [each.is_cut for each in (slow, slower, quick)] == [False, True, False]
    table.hold_response(slow, 200)  # type: ignore[arg-type]
    assert [each.is_cut for each in (slow, slower, quick)] == [True, True, True], "at last this one"
    assert not sender.is_cut, "only clients with a response are cut"
