"""The examples of the how-to pages run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from rig import start
from talaria.access.door import Door
from talaria.core.clock import SystemClock
from talaria.store.memory import MemoryStore
from talaria.store.memory_pairing import MemoryPairings

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-channel.md"


class Pager:
    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.rang = asyncio.Event()

    async def send(self, person: str, text: str) -> str:
        self.sent.append((person, text))
        self.rang.set()
        return str(len(self.sent))


async def test_the_channel_of_the_how_to_answers_those_who_may(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), names)
    clock, platform = SystemClock(), Pager()
    async with start(MemoryStore(clock), tmp_path) as rig:
        sending = asyncio.create_task(rig.delivery.run())
        rig.delivery.attach("pager", names["PagerOutlet"](platform))
        door = Door(MemoryPairings(clock), {"pager": ["ada"]}, clock)
        channel = names["PagerChannel"](door, rig.turns, platform)
        await channel.receive("1", "ada", "hello")
        await channel.receive("1", "ada", "hello")
        await platform.rang.wait()
        assert platform.sent == [("ada", "You said: hello")]
        await channel.receive("2", "eve", "hello")
        assert "pairing code" in platform.sent[1][1]
        assert len(platform.sent) == 2
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
