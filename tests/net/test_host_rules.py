"""Which hosts commands reach, and when a person is asked."""

from __future__ import annotations

import asyncio

import pytest

from support.waiting import until
from talaria.core.ids import SessionId
from talaria.net.addresses import AddressRefused, parse_host
from talaria.net.host_rules import (
    SHIPPED_HOSTS,
    HostAnswer,
    HostRequest,
    NetworkGate,
    NetworkSettings,
    is_listed,
    parse_rule,
    write_rule,
)

SESSION = SessionId("ses_1")


class Person:
    """An asker that answers when the test says so. It counts the questions."""

    def __init__(self) -> None:
        self.asked: list[HostRequest] = []
        self.answer: asyncio.Future[HostAnswer] = asyncio.get_running_loop().create_future()

    async def ask(self, request: HostRequest) -> HostAnswer:
        self.asked.append(request)
        if request.is_background:
            return HostAnswer(False, "A background process cannot wait.")
        return await asyncio.shield(self.answer)


def request(host: str, port: int = 443, *, is_background: bool = False) -> HostRequest:
    return HostRequest(SESSION, host, port, is_background)


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("pypi.org", 443, True),
        ("pypi.org", 80, True),
        ("pypi.org", 22, False),
        ("upload.pypi.org", 443, False),
        ("evil-pypi.org", 443, False),
        ("pypi.org.evil.example", 443, False),
        ("gist.github.com", 443, False),
        ("raw.githubusercontent.com", 443, False),
        ("someone.github.io", 443, False),
        ("proxy.golang.org", 443, False),
        ("odd.example", 8443, True),
        ("odd.example", 443, False),
        ("192.168.1.20", 8123, True),
        ("192.168.1.20", 80, False),
        ("xn--bcher-kva.example", 443, True),
    ],
)
def test_host_is_listed_by_its_exact_name_and_port(host: str, port: int, expected: bool) -> None:
    settings = NetworkSettings(
        allow=(*SHIPPED_HOSTS, "Odd.example.:8443", "bücher.example"), allow_private=("192.168.1.20:8123",)
    )
    assert is_listed(host, port, settings) is expected


@pytest.mark.parametrize(
    "entry", ["*.github.com", "https://pypi.org", "pypi.org/simple", "", "a:b", "a:70000"]
)
def test_rule_with_a_pattern_is_refused(entry: str) -> None:
    with pytest.raises(AddressRefused):
        parse_rule(entry)


@pytest.mark.parametrize(("host", "port"), [("a.example", 443), ("a.example", 8443), ("2606:4700::1", 99)])
def test_written_rule_admits_its_host(host: str, port: int) -> None:
    assert is_listed(host, port, NetworkSettings(allow=(write_rule(host, port),)))


def test_shipped_hosts_are_exact_names() -> None:
    assert all(parse_host(name) == name for name in SHIPPED_HOSTS)
    assert len(SHIPPED_HOSTS) == len({*SHIPPED_HOSTS})


@pytest.mark.parametrize(("commands", "expected"), [("off", False), ("open", True)])
async def test_mode_decides_without_a_question(commands: str, expected: bool) -> None:
    person = Person()
    gate = NetworkGate(lambda: NetworkSettings(commands=commands), person.ask)  # type: ignore[arg-type]
    assert (await gate.admit(request("unlisted.example"))).is_admitted is expected
    assert person.asked == []


async def test_unlisted_host_is_a_question_and_connections_share_it() -> None:
    person = Person()
    gate = NetworkGate(NetworkSettings, person.ask)
    assert (await gate.admit(request("pypi.org"))).is_admitted
    waiting = [asyncio.create_task(gate.admit(request("unlisted.example"))) for _ in range(5)]
    await until(lambda: person.asked, pause=0)
    person.answer.set_result(HostAnswer(True))
    assert all(answer.is_admitted for answer in await asyncio.gather(*waiting))
    assert len(person.asked) == 1


async def test_connection_that_gives_up_does_not_end_the_question_of_another() -> None:
    person = Person()
    gate = NetworkGate(NetworkSettings, person.ask)
    first, second = (asyncio.create_task(gate.admit(request("unlisted.example"))) for _ in range(2))
    await until(lambda: person.asked, pause=0)
    first.cancel()
    person.answer.set_result(HostAnswer(True))
    assert (await second).is_admitted


async def test_unanswered_question_refuses_and_holds_no_command_again() -> None:
    person = Person()
    gate = NetworkGate(NetworkSettings, person.ask, hold_seconds=0.01)
    refused = await gate.admit(request("unlisted.example"))
    assert not refused.is_admitted
    assert "has not answered" in refused.reason
    person.answer.set_result(HostAnswer(True))
    assert (await gate.admit(request("unlisted.example"))).is_admitted
    assert len(person.asked) == 2


async def test_background_process_is_refused_at_once() -> None:
    person = Person()
    gate = NetworkGate(NetworkSettings, person.ask)
    assert not (await gate.admit(request("unlisted.example", is_background=True))).is_admitted
    assert len(person.asked) == 1


async def test_without_anyone_to_ask_an_unlisted_host_is_refused() -> None:
    assert not (await NetworkGate(NetworkSettings).admit(request("unlisted.example"))).is_admitted
