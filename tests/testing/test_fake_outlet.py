"""The fake outlet keeps the contract of the real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.fake_outlet import FakeOutlet, OutletFault
from talaria.testing.contracts import OutletSuite, SendTrouble

_FAULTS = {
    SendTrouble.LATER: OutletFault.DELAY,
    SendTrouble.NEVER: OutletFault.REFUSE,
    SendTrouble.SILENT: OutletFault.SWALLOW_ANSWER,
}


class FakeWall:
    address = "here"

    def __init__(self, outlet: FakeOutlet) -> None:
        self.outlet = outlet
        self.drops_repeats = outlet.takes_nonce

    def shown(self) -> list[str]:
        return self.outlet.texts(self.address)

    def next_send(self, trouble: SendTrouble) -> None:
        self.outlet.faults.append(_FAULTS[trouble])


class TestFakeOutlet(OutletSuite):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[FakeWall]:
        yield FakeWall(FakeOutlet())


class TestFakeOutletWithNonces(OutletSuite):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[FakeWall]:
        yield FakeWall(FakeOutlet(takes_nonce=True))
