"""Short forms of `./dev chaos --only addresses` and `--only proxy`."""

from __future__ import annotations

import asyncio

from chaos.addresses import AddressRun
from chaos.proxy_attacks import ProxyAttackRun, all_proxy_attacks
from soak.report import Progress


def test_no_address_inside_is_ever_connected_to() -> None:
    run = AddressRun(200, Progress(is_quiet=True))
    figures = asyncio.run(run.run())
    assert run.reached == []
    assert [figure.name for figure in figures if not figure.is_reached] == []
    assert run.tried >= 200
    assert run.public  # the answers in between were taken, so the forms do get as far as the dialer


def test_the_long_run_has_at_least_500_forms_of_every_kind() -> None:
    cases = AddressRun(500, Progress(is_quiet=True)).cases()
    assert len({*cases}) >= 500
    assert {way for way, _ in cases} == {"connect", "get", "fetch", "redirect"}


def test_attacks_on_the_proxy_leave_it_working() -> None:
    run = ProxyAttackRun(all_proxy_attacks(noise=10), Progress(is_quiet=True))
    figures = asyncio.run(run.run())
    assert [figure.cells() for figure in figures if not figure.is_reached] == [], run.evidence
