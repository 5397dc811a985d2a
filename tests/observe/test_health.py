from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from talaria.observe.health import GatewayPhase, Health, Readiness, read_rss


def test_ready_only_between_recovery_and_drain() -> None:
    health = Health()
    assert health.readiness() == Readiness(False, GatewayPhase.STARTING, ("turns do not run yet",))

    health.enter(GatewayPhase.READY)
    assert health.readiness() == Readiness(True, GatewayPhase.READY)

    health.enter(GatewayPhase.DRAINING)
    assert health.readiness() == Readiness(False, GatewayPhase.DRAINING, ("the gateway is shutting down",))


@pytest.mark.parametrize(("old", "new"), list(product(GatewayPhase, GatewayPhase)))
def test_a_gateway_never_goes_back(old: GatewayPhase, new: GatewayPhase) -> None:
    order = [GatewayPhase.STARTING, GatewayPhase.READY, GatewayPhase.DRAINING]
    health = Health()
    health.enter(old)
    health.enter(new)

    assert health.phase is max(old, new, key=order.index)


def test_a_trouble_makes_it_unready_until_it_is_well_again() -> None:
    health, troubles = Health(), {"store": "the disk is full"}
    health.enter(GatewayPhase.READY)
    for name in ("store", "http"):
        health.watch(name, lambda name=name: troubles.get(name))  # type: ignore[misc]

    assert health.readiness() == Readiness(
        False, GatewayPhase.READY, ("store: the disk is full",), ("store",)
    )
    troubles.clear()
    assert health.readiness().is_ready


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux only")
def test_resident_memory_is_read_from_the_system() -> None:
    before = read_rss()
    held = bytes(32 << 20).replace(b"\0", b"x")

    assert read_rss() - before > 16 << 20
    assert len(held) == 32 << 20
