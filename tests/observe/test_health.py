from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from talaria.observe.health import Condition, Health, Phase, read_rss


def test_ready_only_between_recovery_and_drain() -> None:
    health = Health()
    assert health.condition() == Condition(False, Phase.STARTING, ("recovery has not finished",))

    health.enter(Phase.READY)
    assert health.condition() == Condition(True, Phase.READY)

    health.enter(Phase.DRAINING)
    assert health.condition() == Condition(False, Phase.DRAINING, ("the gateway is shutting down",))


@pytest.mark.parametrize(("old", "new"), list(product(Phase, Phase)))
def test_a_gateway_never_goes_back(old: Phase, new: Phase) -> None:
    order = [Phase.STARTING, Phase.READY, Phase.DRAINING]
    health = Health()
    health.enter(old)
    health.enter(new)

    assert health.phase is max(old, new, key=order.index)


def test_a_trouble_makes_it_unready_until_it_is_well_again() -> None:
    health, troubles = Health(), {"store": "the disk is full"}
    health.enter(Phase.READY)
    for name in ("store", "http"):
        health.watch(name, lambda name=name: troubles.get(name))  # type: ignore[misc]

    assert health.condition() == Condition(False, Phase.READY, ("store: the disk is full",))
    troubles.clear()
    assert health.condition().is_ready


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux only")
def test_resident_memory_is_read_from_the_system() -> None:
    before = read_rss()
    held = bytes(32 << 20).replace(b"\0", b"x")

    assert read_rss() - before > 16 << 20
    assert len(held) == 32 << 20
