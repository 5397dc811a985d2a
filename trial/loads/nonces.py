"""Crashes with a platform that takes nonces: no reply is ever shown twice. Many seeds in one process.

Telegram takes no nonces, so this runs against a platform in memory. A crash is simulated by cancelling all
tasks: committed rows stay, and nothing more is written.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from random import Random

import msgspec

from support.fake_outlet import FakeOutlet, OutletFault
from support.rig import inbound, start
from support.scripted_model import ScriptedModel
from talaria.core.delivery import OutgoingMessage
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from trial.report import Check, Figure, Progress

_FAULTS = (None, None, OutletFault.DELAY, OutletFault.LOSE, OutletFault.SWALLOW_ANSWER, OutletFault.CRASH)
_LIVES = 4


class Platform(FakeOutlet):
    """Waits a few rounds of the loop before and after it takes a message; a crash can come between."""

    def __init__(self, random: Random, *, takes_nonce: bool) -> None:
        super().__init__(takes_nonce=takes_nonce)
        self._random = random

    async def deliver(self, post: OutgoingMessage) -> str:
        await ticks(self._random.randrange(6))
        fault = self._random.choice(_FAULTS)
        if fault is not None:
            self.faults.append(fault)
        message_id = await super().deliver(post)
        await ticks(self._random.randrange(6))
        return message_id


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def explore(seed: int, folder: Path, *, takes_nonce: bool = True) -> tuple[int, int]:
    """Return how many replies were lost, and how many were shown more than once."""
    random, clock = Random(seed), FakeClock()
    platform = Platform(random, takes_nonce=takes_nonce)
    store, texts = MemoryStore(clock), list[str]()
    for life in range(_LIVES):
        async with start(store, folder, clock=clock, model=ScriptedModel(clock=clock)) as rig:
            rig.delivery.attach("test", platform)
            sending = asyncio.create_task(rig.delivery.run())
            for _ in range(0 if life == _LIVES - 1 else random.randint(1, 3)):
                texts.append(f"m{len(texts)}")
                await rig.turns.submit(msgspec.structs.replace(inbound(texts[-1]), address="room"))
                await ticks(random.randrange(40))
            while life == _LIVES - 1 and (await store.stats()).outbox + (await store.stats()).owed:
                clock.advance(1)
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    shown = [text.rpartition(" ")[2] for text in platform.texts("room")]
    lost = sum(text not in shown for text in texts)
    return lost, len(shown) - len(set(shown))


async def explore_many(seeds: int, progress: Progress) -> list[Figure]:
    lost = duplicated = without = 0
    with tempfile.TemporaryDirectory(prefix="talaria-chaos-") as folder:
        for seed in range(seeds):
            found = await explore(seed, Path(folder))
            lost, duplicated = lost + found[0], duplicated + found[1]
            without += (await explore(seed, Path(folder), takes_nonce=False))[1]
            progress.tell("crashes with nonces", seed + 1, seeds)
    return [
        Figure(f"{seeds} seeds of crashes, nonces taken: replies lost", lost, "", 0, Check.LOST),
        Figure("… replies shown twice", duplicated, "", 0, Check.DUPLICATED),
        Figure("… the same seeds without nonces: shown again, with the mark", without),
    ]
