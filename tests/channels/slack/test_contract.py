"""The channel contract, kept by Slack against the fake server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from channels.slack.line import ADA, Line, slack, way_back
from talaria.channels.live_message import REPEATED
from talaria.channels.slack.outlet import SlackOutlet
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.testing.contracts import ChannelSuite, ChatOutletSuite, ChatPlatformSuite, SendTrouble
from talaria.testing.slack_server import SlackFault, SlackFaultKind, SlackServer

_FAULTS = {
    SendTrouble.SILENT: lambda: SlackFault(SlackFaultKind.CUT_AFTER),
    SendTrouble.LATER: lambda: SlackFault(SlackFaultKind.RATE_LIMIT),
    SendTrouble.NEVER: lambda: SlackFault(SlackFaultKind.ERROR, error="restricted_action"),
}


class SlackTalk:
    person_id = ADA
    tells_deletions = True
    drops_repeats = False

    def __init__(self, line: Line) -> None:
        self._line = line

    def say(self, text: str) -> None:
        self._said = self._line.ada.says(text)
        self._last = self._line.server.platform.log[-1]

    def say_as_stranger(self, text: str) -> None:
        self._line.server.person("U99X", "Mallory").says(text)

    def repeat_last(self) -> None:
        self._line.server.repeat(*self._last)

    def unconfirmed(self) -> int:
        return len(self._line.server.unacknowledged)

    def next_send(self, trouble: SendTrouble) -> None:
        self._line.server.fail("chat.postMessage", _FAULTS[trouble]())

    def shown(self) -> list[str]:
        return self._line.ada.dm.replies

    def is_marked(self, text: str) -> bool:
        return text.startswith(REPEATED)

    def edit_last(self, text: str) -> None:
        self._line.ada.edits(self._said, text)

    def delete_last(self) -> None:
        self._line.ada.deletes(self._said)

    def send_file(self, name: str, data: bytes) -> None:
        self._line.ada.sends(name, data)

    def say_in_group(self, text: str, *, is_addressed: bool = True) -> None:
        self._line.ada.says(f"@talaria {text}" if is_addressed else text, self._line.general)

    def say_in_group_as_stranger(self, text: str) -> None:
        self._line.server.person("U99X", "Mallory").says(f"@talaria {text}", self._line.general)

    def shown_in_group(self) -> list[str]:
        return self._line.general.replies

    async def pass_time_until_shown_in_group(self, seen: int) -> None:
        await self._line.pass_time(lambda: len(self.shown_in_group()) >= seen and not self.unconfirmed())

    async def pass_time_until(self, seen: int) -> None:
        def is_seen() -> bool:
            whole = [text for text in self.shown() if not text.endswith("▌")]
            return len(whole) >= seen and not self.unconfirmed()

        await self._line.pass_time(is_seen)


class SlackWall:
    drops_repeats = False

    def __init__(self, outlet: SlackOutlet, server: SlackServer) -> None:
        self.outlet = outlet
        self._server = server
        self.address = f"{server.person(ADA).dm.id}:"

    def shown(self) -> list[str]:
        return self._server.person(ADA).dm.replies

    def files(self) -> list[tuple[str, bytes]]:
        shown = self._server.person(ADA).dm.messages.values()
        return [(each.file_name, each.file) for each in shown if each.file is not None]

    def labels(self) -> list[str]:
        return [label for label, _ in list(self._server.person(ADA).dm.messages.values())[-1].buttons]

    def next_send(self, trouble: SendTrouble) -> None:
        self._server.fail("chat.postMessage", _FAULTS[trouble]())


class TestSlackOutlet(ChatOutletSuite):
    @pytest.fixture(autouse=True)
    async def platform(self, server: SlackServer) -> None:
        self.server = server

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SlackWall]:
        async with way_back(self.server) as outlet:
            yield SlackWall(outlet, self.server)


class TestSlack(ChannelSuite, ChatPlatformSuite):
    @pytest.fixture(autouse=True)
    async def platform(self, server: SlackServer) -> None:
        self.server = server

    @asynccontextmanager
    async def open(self, folder: Path, store: Store, clock: FakeClock) -> AsyncIterator[SlackTalk]:
        async with slack(folder, self.server, store=store, clock=clock, progress="off") as line:
            yield SlackTalk(line)

    @asynccontextmanager
    async def open_platform(
        self, folder: Path, store: Store, clock: FakeClock, unknown: str = "pair"
    ) -> AsyncIterator[SlackTalk]:
        async with slack(
            folder, self.server, store=store, clock=clock, progress="off", unknown=unknown
        ) as line:
            yield SlackTalk(line)
