"""Planted faults of leased roles, and of what gateways on one database do together."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_ROLES = "cluster/roles.py"
_DELIVERY = "turns/delivery.py"
_CHECKS = "cluster/member_checks.py"
_TESTS = "tests/cluster/test_roles.py::test"
_TOGETHER = Tests("tests/turns/test_delivery.py::test_another_gateway_sends_on_the_channel_that_it_has_open")
_JOINING = Tests("tests/cluster/test_joining.py")

ROLE_FAULTS = (
    Mutant(
        "role kept too long",
        "a gateway without the database polls on while another one has begun",
        (Edit(_ROLES, "self._roles.lease_seconds * 2 / 3 -", "self._roles.lease_seconds * 3 / 2 -"),),
        Tests(f"{_TESTS}_a_holder_without_the_database_stops_before_another_can_begin"),
    ),
    Mutant(
        "late answer counts",
        "a role counts from when the answer came, when others are about to take it",
        (Edit(_ROLES, "self._take(asked_at)", "self._take(self._clock.elapsed())"),),
        Tests(f"{_TESTS}_an_answer_that_comes_late_counts_from_its_request"),
    ),
    Mutant(
        "role taken back",
        "a renewal under way takes back the role that a draining gateway gives",
        (
            Edit(
                _ROLES,
                "async with asyncio.timeout(_GIVE_SECONDS), self._turn:",
                "async with asyncio.timeout(_GIVE_SECONDS):",
            ),
        ),
        Tests(f"{_TESTS}_a_request_under_way_takes_back_nothing_that_is_given"),
    ),
    Mutant(
        "role given too early",
        "a draining gateway gives a role while its work goes on",
        (
            Edit(
                _ROLES,
                "await (self.given.wait() if tenure.is_used else self.give())",
                "await self.give()",
            ),
        ),
        Tests(f"{_TESTS}_a_member_that_drains_gives_the_role_when_its_work_has_stopped"),
    ),
    Mutant(
        "every gateway polls",
        "gateways on one database poll the same bot against each other",
        (Edit("channels/telegram/part.py", 'settings.mode == "polling"', "False"),),
        Tests("tests/scenarios/test_roles_of_gateways.py"),
    ),
    Mutant(
        "nobody is told of a reply",
        "a reply waits for the next look of the gateway that has its channel open",
        (Edit(_DELIVERY, "is not None and channel not in self._outlets", "is not None and False"),),
        _TOGETHER,
    ),
    Mutant(
        "own clock for replies",
        "a gateway whose clock is wrong sends again what another one is sending",
        (Edit(_DELIVERY, "        if self._database_time is not None:\n", "        if False:\n"),),
        _TOGETHER,
    ),
    Mutant(
        "rows deleted by all",
        "every gateway of a database deletes old rows",
        (Edit("turns/lifecycle.py", " if self._is_in_charge() else {}", ""),),
        Tests(
            "tests/turns/test_retention.py"
            "::test_one_gateway_of_several_deletes_rows_and_each_deletes_its_own_files"
        ),
    ),
    Mutant(
        "gateway without a token",
        "a gateway that cannot prove itself serves a database beside others",
        (Edit(_CHECKS, "    if others and not token.is_set:\n", "    if False:\n"),),
        _JOINING,
    ),
    Mutant(
        "loopback for other machines",
        "a gateway joins others with an address that they cannot reach",
        (Edit(_CHECKS, "    if far is None or not is_loopback(url):\n", "    if True:\n"),),
        _JOINING,
    ),
)
