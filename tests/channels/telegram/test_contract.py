"""The channel contract, kept by Telegram against the fake Bot API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from channels.telegram.line import Line, telegram, way_back
from talaria.channels.telegram.outlet import REPEATED, TelegramOutlet
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.testing.contracts import ChannelSuite, OutletSuite, SendTrouble
from talaria.testing.telegram_server import FaultKind, TelegramFault, TelegramServer

_FAULTS = {
    SendTrouble.SILENT: lambda: TelegramFault(FaultKind.CUT_AFTER),
    SendTrouble.LATER: lambda: TelegramFault(FaultKind.STATUS, status=429),
    SendTrouble.NEVER: lambda: TelegramFault(FaultKind.STATUS, status=403),
}


class TelegramTalk:
    takes_nonce = False

    def __init__(self, line: Line) -> None:
        self._line = line

    def say(self, text: str) -> None:
        self._line.ada.says(text)
        self._last = self._line.server.platform.queue[-1]

    def say_as_stranger(self, text: str) -> None:
        self._line.server.person(99).says(text)

    def repeat_last(self) -> None:
        self._line.server.platform.repeated.append(self._last)

    def unconfirmed(self) -> int:
        return len(self._line.server.platform.queue)

    def next_send(self, trouble: SendTrouble) -> None:
        self._line.server.fail("sendMessage", _FAULTS[trouble]())

    def shown(self) -> list[str]:
        return self._line.chat.replies

    def is_marked(self, text: str) -> bool:
        return text.startswith(REPEATED)

    async def pass_time_until(self, seen: int) -> None:
        def is_seen() -> bool:
            whole = [text for text in self.shown() if not text.endswith("▌")]
            return len(whole) >= seen and not self.unconfirmed()

        await self._line.pass_time(is_seen)


class TelegramWall:
    address = "7::"

    def __init__(self, outlet: TelegramOutlet, server: TelegramServer) -> None:
        self.outlet = outlet
        self._server = server

    def shown(self) -> list[str]:
        return self._server.platform.chats[7].replies

    def next_send(self, trouble: SendTrouble) -> None:
        self._server.fail("sendMessage", _FAULTS[trouble]())


class TestTelegramOutlet(OutletSuite):
    @pytest.fixture(autouse=True)
    async def platform(self, server: TelegramServer) -> None:
        self.server = server

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TelegramWall]:
        async with way_back(self.server) as outlet:
            yield TelegramWall(outlet, self.server)


class TestTelegram(ChannelSuite):
    @pytest.fixture(autouse=True)
    async def platform(self, server: TelegramServer) -> None:
        self.server = server

    @asynccontextmanager
    async def open(self, folder: Path, store: Store, clock: FakeClock) -> AsyncIterator[TelegramTalk]:
        async with telegram(folder, self.server, store=store, clock=clock, progress="off") as line:
            yield TelegramTalk(line)
