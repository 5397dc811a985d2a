"""The channel contract, kept by Telegram against the fake Bot API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from channels.telegram.line import Line, telegram, way_back
from talaria.channels.live_message import REPEATED
from talaria.channels.telegram.outlet import TelegramOutlet
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.testing.contracts import ChannelSuite, ChatOutletSuite, ChatPlatformSuite, SendTrouble
from talaria.testing.telegram_server import FaultKind, TelegramFault, TelegramServer

_FAULTS = {
    SendTrouble.SILENT: lambda: TelegramFault(FaultKind.CUT_AFTER),
    SendTrouble.LATER: lambda: TelegramFault(FaultKind.STATUS, status=429),
    SendTrouble.NEVER: lambda: TelegramFault(FaultKind.STATUS, status=403),
}


class TelegramTalk:
    person_id = "7"
    tells_deletions = False
    drops_repeats = False

    def __init__(self, line: Line) -> None:
        self._line = line
        self._group = line.server.platform.group(-100)

    def say(self, text: str) -> None:
        self._said = self._line.ada.says(text)
        self._last = self._line.server.platform.queue[-1]

    def say_as_stranger(self, text: str) -> None:
        self._line.server.person(99).says(text)

    def edit_last(self, text: str) -> None:
        self._line.ada.edits(self._said, text)

    def delete_last(self) -> None:
        raise AssertionError("Telegram tells bots of no deletions")

    def send_file(self, name: str, data: bytes) -> None:
        self._line.ada.sends("document", data, name=name)

    def say_in_group(self, text: str, *, is_addressed: bool = True) -> None:
        self._line.ada.says(f"@talaria_bot {text}" if is_addressed else text, self._group)

    def say_in_group_as_stranger(self, text: str) -> None:
        self._line.server.person(99).says(f"@talaria_bot {text}", self._group)

    def shown_in_group(self) -> list[str]:
        return self._group.replies

    async def pass_time_until_shown_in_group(self, seen: int) -> None:
        await self._line.pass_time(lambda: len(self._group.replies) >= seen and not self.unconfirmed())

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
    drops_repeats = False
    address = "7::"

    def __init__(self, outlet: TelegramOutlet, server: TelegramServer) -> None:
        self.outlet = outlet
        self._server = server

    def shown(self) -> list[str]:
        return self._server.platform.chats[7].replies

    def files(self) -> list[tuple[str, bytes]]:
        shown = self._server.platform.chats[7].messages.values()
        return [(each.file_name, each.file) for each in shown if each.file is not None]

    def labels(self) -> list[str]:
        return [label for label, _ in list(self._server.platform.chats[7].messages.values())[-1].buttons]

    def next_send(self, trouble: SendTrouble) -> None:
        self._server.fail("sendMessage", _FAULTS[trouble]())


class TestTelegramOutlet(ChatOutletSuite):
    @pytest.fixture(autouse=True)
    async def platform(self, server: TelegramServer) -> None:
        self.server = server

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TelegramWall]:
        async with way_back(self.server) as outlet:
            yield TelegramWall(outlet, self.server)


class TestTelegram(ChannelSuite, ChatPlatformSuite):
    @pytest.fixture(autouse=True)
    async def platform(self, server: TelegramServer) -> None:
        self.server = server

    @asynccontextmanager
    async def open(self, folder: Path, store: Store, clock: FakeClock) -> AsyncIterator[TelegramTalk]:
        async with telegram(folder, self.server, store=store, clock=clock, progress="off") as line:
            yield TelegramTalk(line)

    @asynccontextmanager
    async def open_platform(
        self, folder: Path, store: Store, clock: FakeClock, unknown: str = "pair"
    ) -> AsyncIterator[TelegramTalk]:
        async with telegram(
            folder, self.server, store=store, clock=clock, progress="off", unknown=unknown
        ) as line:
            yield TelegramTalk(line)
