"""The public contract suites, run over small parts that a plug-in could bring."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import pytest

from talaria.access.authorizer import Actor, Authorized, Authorizer, ChatKind, Ingress
from talaria.agent.compaction.engine import ContextEngine, SummaryEngine
from talaria.channels.descriptor import Channel
from talaria.core.delivery import DeliveryDelayed, DeliveryRefused, DeliveryUnknown, OutgoingMessage
from talaria.core.errors import StoreError, ToolError
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text
from talaria.core.tools import Risk
from talaria.core.turns import Inbound
from talaria.gateway import Gateway
from talaria.store.store import Store
from talaria.testing.changing_tools import ChangingSource
from talaria.testing.clock import FakeClock
from talaria.testing.contracts import (
    ChannelSuite,
    ContextEngineSuite,
    SendTrouble,
    ToolSourceSuite,
    ToolSuite,
    open_channel,
)
from talaria.tools.function import typed_tool
from talaria.tools.tool import Tool, ToolContext, ToolSource
from talaria.turns.delivery import ShownTurn


async def note(text: Annotated[str, "A line."], context: ToolContext) -> str:
    """Add a line to the notes."""
    if "\n" in text:
        raise ToolError("A note is one line.", "Add each line by a call of its own.")
    return f"Noted in {context.folder.name}."


class TestNote(ToolSuite):
    good: ClassVar[dict[str, Any]] = {"text": "one"}
    bad = ({"text": "one\ntwo"},)

    def tool(self) -> Tool:
        return typed_tool(note, risk=Risk.FILES)


class TestChangingSource(ToolSourceSuite):
    def source(self) -> ToolSource:
        source = ChangingSource()
        source.offer(typed_tool(note))
        return source


class TestSummaryEngine(ContextEngineSuite):
    @pytest.fixture
    def engine(self) -> ContextEngine:
        return SummaryEngine()


class PigeonSettings(msgspec.Struct, frozen=True):
    allowed: tuple[str, ...] = ("ada",)


class Loft:
    """The platform: messages that wait, and letters that arrived."""

    def __init__(self) -> None:
        self.queue: deque[tuple[str, str, str]] = deque()
        self.shown: list[str] = []
        self.fates: deque[SendTrouble] = deque()
        self.arrived = asyncio.Event()

    def push(self, message: tuple[str, str, str]) -> None:
        self.queue.append(message)
        self.arrived.set()


class PigeonChannel:
    status = "ready"
    takes_nonce = False

    def __init__(self, gateway: Gateway, loft: Loft, settings: PigeonSettings) -> None:
        self._gateway, self._loft = gateway, loft
        self._authorizer = Authorizer(gateway.store.pairings, {"pigeon": settings.allowed}, gateway.clock)

    async def run(self) -> None:
        while True:
            self._loft.arrived.clear()
            while self._loft.queue:
                try:
                    await self._take(*self._loft.queue[0])
                    self._loft.queue.popleft()
                except StoreError:
                    await self._gateway.clock.sleep(1)
            await self._loft.arrived.wait()

    async def _take(self, key: str, person: str, text: str) -> None:
        verdict = await self._authorizer.check(
            Actor("pigeon", person, ChatKind.PRIVATE, person), Ingress.MESSAGE
        )
        if isinstance(verdict, Authorized):
            chat = ChatAddress("main", "pigeon", "dm", person).key()
            await self._gateway.turns.submit(
                Inbound(chat, verdict.sender, (Text(text),), key=key, address=person)
            )

    def split(self, reply: str, address: str) -> Iterator[str]:
        words = reply.split()
        for first in range(0, len(words), 500):
            yield " ".join(words[first : first + 500])

    async def deliver(self, post: OutgoingMessage) -> str:
        fate = self._loft.fates.popleft() if self._loft.fates else None
        if fate is SendTrouble.LATER:
            raise DeliveryDelayed("The wind is strong.", retry_after=1.0)
        if fate is SendTrouble.NEVER:
            raise DeliveryRefused("No such roof.")
        self._loft.shown.append(("(again) " if post.is_repeat else "") + post.body)
        if fate is SendTrouble.SILENT:
            raise DeliveryUnknown("The pigeon did not return.")
        return str(len(self._loft.shown))

    async def show(self, view: ShownTurn) -> None:
        pass


def pigeon(loft: Loft) -> Channel[PigeonSettings]:
    @asynccontextmanager
    async def opening(gateway: Gateway, settings: PigeonSettings) -> AsyncIterator[PigeonChannel]:
        channel = PigeonChannel(gateway, loft, settings)
        gateway.delivery.attach("pigeon", channel)
        running = asyncio.create_task(channel.run(), name="pigeon")
        try:
            yield channel
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await gateway.delivery.detach("pigeon")

    return Channel(name="pigeon", settings=PigeonSettings, open=opening)


class PigeonTalk:
    drops_repeats = False

    def __init__(self, loft: Loft, clock: FakeClock) -> None:
        self._loft, self._clock = loft, clock
        self._count = 0

    def say(self, text: str) -> None:
        self._count += 1
        self._last = (f"{id(self)}-{self._count}", "ada", text)
        self._loft.push(self._last)

    def say_as_stranger(self, text: str) -> None:
        self._loft.push(("x", "eve", text))

    def repeat_last(self) -> None:
        self._loft.push(self._last)

    def unconfirmed(self) -> int:
        return len(self._loft.queue)

    def next_send(self, trouble: SendTrouble) -> None:
        self._loft.fates.append(trouble)

    def shown(self) -> list[str]:
        return self._loft.shown

    def is_marked(self, text: str) -> bool:
        return text.startswith("(again) ")

    async def pass_time_until(self, seen: int) -> None:
        while len(self.shown()) < seen or self.unconfirmed():
            self._clock.advance(0.5)
            await self._clock.settle()


class TestPigeon(ChannelSuite):
    @pytest.fixture(autouse=True)
    def platform(self) -> None:
        self.loft = Loft()

    @asynccontextmanager
    async def open(self, folder: Path, store: Store, clock: FakeClock) -> AsyncIterator[Any]:
        async with open_channel(pigeon(self.loft), folder, store, clock):
            yield PigeonTalk(self.loft, clock)


def test_nothing_of_plugins_is_imported_without_any_and_pytest_never(tmp_path: Path) -> None:
    code = """
import sys
from talaria.cli.serve import parts_with_plugins
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.redaction import SecretRegistry
from talaria.parts import PARTS
home = Home.find(sys.argv[1], {})
assert parts_with_plugins(home, load(home.path, {}, PARTS), {}, SecretRegistry()) is PARTS
unwanted = {"talaria.plugins", "talaria.core.hooks", "talaria.agent.hooked", "aiohttp"} & set(sys.modules)
assert not unwanted, unwanted
import talaria.plugins
assert "pytest" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
