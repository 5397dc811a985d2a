"""The channel contract, kept by Discord against the fake server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from channels.discord.discord_line import DiscordLine, discord_line, discord_outlet
from talaria.channels.discord.outlet import DiscordOutlet
from talaria.channels.live_message import REPEATED
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.testing.contracts import ChannelSuite, ChatOutletSuite, ChatPlatformSuite, SendTrouble
from talaria.testing.discord_platform import BOT_ID
from talaria.testing.discord_server import DiscordFault, DiscordFaultKind, DiscordServer

_FAULTS = {
    SendTrouble.SILENT: lambda: DiscordFault(DiscordFaultKind.CUT_AFTER),
    SendTrouble.LATER: lambda: DiscordFault(DiscordFaultKind.STATUS, status=429, retry_after=0.0),
    SendTrouble.NEVER: lambda: DiscordFault(DiscordFaultKind.STATUS, status=403, code=50007),
}


class DiscordTalk:
    person_id = "7"
    tells_deletions = True
    drops_repeats = True

    def __init__(self, line: DiscordLine) -> None:
        self._line = line
        self._group = line.server.platform.channel()

    def say(self, text: str) -> None:
        self._said = self._line.ada.says(text)

    def say_as_stranger(self, text: str) -> None:
        self._line.server.person(99, "Eve").says(text)

    def edit_last(self, text: str) -> None:
        self._line.ada.edits(self._said, text)

    def delete_last(self) -> None:
        self._line.ada.deletes(self._said)

    def send_file(self, name: str, data: bytes) -> None:
        self._line.ada.says("", file=(name, data))

    def say_in_group(self, text: str, *, is_addressed: bool = True) -> None:
        self._line.ada.says(f"<@{BOT_ID}> {text}" if is_addressed else text, self._group)

    def say_in_group_as_stranger(self, text: str) -> None:
        self._line.server.person(99, "Eve").says(f"<@{BOT_ID}> {text}", self._group)

    def shown_in_group(self) -> list[str]:
        return self._group.replies

    async def pass_time_until_shown_in_group(self, seen: int) -> None:
        await self._line.pass_time(lambda: len(self._group.replies) >= seen)

    def repeat_last(self) -> None:
        self._line.server.repeat(3)

    def unconfirmed(self) -> int:
        assert self._line.channel.position is not None
        known = self._line.channel.position.channels.get(self._line.chat.id)
        last = known.last if known else 0
        own = [each for each in self._line.chat.messages.values() if not each.by_bot]
        return sum(int(each.id) > last for each in own)

    def next_send(self, trouble: SendTrouble) -> None:
        self._line.server.fail("POST messages", _FAULTS[trouble]())

    def shown(self) -> list[str]:
        return self._line.chat.replies

    def is_marked(self, text: str) -> bool:
        return text.startswith(REPEATED)

    async def pass_time_until(self, seen: int) -> None:
        def is_seen() -> bool:
            whole = [text for text in self.shown() if not text.endswith("▌")]
            return len(whole) >= seen and not self.unconfirmed()

        await self._line.pass_time(is_seen)


class DiscordWall:
    drops_repeats = True

    def __init__(self, outlet: DiscordOutlet, server: DiscordServer) -> None:
        self.outlet = outlet
        self._server = server
        self._chat = server.platform.private(server.person(7))
        self.address = f"{self._chat.id}:::"

    def shown(self) -> list[str]:
        return self._chat.replies

    def files(self) -> list[tuple[str, bytes]]:
        return [(each.file_name, each.file) for each in self._chat.messages.values() if each.file is not None]

    def labels(self) -> list[str]:
        return [label for label, _ in list(self._chat.messages.values())[-1].buttons]

    def next_send(self, trouble: SendTrouble) -> None:
        self._server.fail("POST messages", _FAULTS[trouble]())


class TestDiscordOutlet(ChatOutletSuite):
    @pytest.fixture(autouse=True)
    async def platform(self, discord: DiscordServer) -> None:
        self.server = discord

    @asynccontextmanager
    async def open(self) -> AsyncIterator[DiscordWall]:
        async with discord_outlet(self.server) as outlet:
            yield DiscordWall(outlet, self.server)


class TestDiscord(ChannelSuite, ChatPlatformSuite):
    @pytest.fixture(autouse=True)
    async def platform(self, discord: DiscordServer) -> None:
        self.server = discord

    @asynccontextmanager
    async def open(self, folder: Path, store: Store, clock: FakeClock) -> AsyncIterator[DiscordTalk]:
        async with discord_line(folder, self.server, store=store, clock=clock, progress="off") as line:
            yield DiscordTalk(line)

    @asynccontextmanager
    async def open_platform(
        self, folder: Path, store: Store, clock: FakeClock, unknown: str = "pair"
    ) -> AsyncIterator[DiscordTalk]:
        async with discord_line(
            folder, self.server, store=store, clock=clock, progress="off", unknown=unknown
        ) as line:
            yield DiscordTalk(line)
