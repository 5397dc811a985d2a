"""What streaming costs: CPU for each piece of an answer and memory for each open stream, ours and the SDKs'.

Each kind runs in a process of its own against the same server, which sends every piece by itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from talaria.core.messages import Text, UserMessage
from talaria.core.models import ModelCall
from talaria.core.specs import Prefix
from talaria.models.endpoint import Endpoint
from talaria.models.providers import WIRES
from talaria.models.settings import ProviderSettings

STREAMS = 200
AT_ONCE = 10
BREATH = 0.02  # seconds between so many beginnings
PAUSE = 0.25  # seconds between the pieces of one answer
SPARE = 40  # pieces, so that no answer ends while others still begin
OURS = "openai-chat", "anthropic-messages"
SDKS = "openai", "anthropic"

Call = Callable[[str, Callable[[], None]], Coroutine[Any, Any, None]]
"""One streamed call with this text; tells of each piece."""


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_us: float  # for a piece
    kilobytes: float  # for an open stream


def measure(kind: str, url: str, pieces: int) -> Cost:
    """In a fresh process, so that what one kind leaves in memory is no gain for the next."""
    command = [sys.executable, "-m", "bench.streams", kind, url, str(pieces)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return Cost(**json.loads(done.stdout))


async def _measure(kind: str, url: str, pieces: int) -> Cost:
    call, close = await (_sdk(kind, url) if kind in SDKS else _own(kind, url))
    await asyncio.gather(
        *(call("[[chunks 3]] [[words 6]] [[chunk-delay 0.01]]", lambda: None) for _ in range(20))
    )
    gc.collect()
    before = _rss()
    # A few at a time, as people come: what connecting needs for a moment is no cost of an open stream.
    async with _opened(call, pieces, BREATH) as streams:
        opened = await streams.begun
    # All at once, so that their pieces come in step: waking up the loop is shared, and what is left is what
    # a piece costs.
    async with _opened(call, pieces, 0) as streams:
        begun, ended = await streams.begun, await streams.ended
    await close()
    cpu = (ended.cpu - begun.cpu) / (ended.heard - begun.heard)
    return Cost(cpu * 1e6, (opened.rss - before) / STREAMS / 1000)


@asynccontextmanager
async def _opened(call: Call, pieces: int, breath: float) -> AsyncIterator[_Streams]:
    streams = _Streams(call, pieces)
    await streams.open(STREAMS, breath)
    try:
        yield streams
    finally:
        await streams.close()


@dataclass(frozen=True, slots=True)
class _Look:
    """Taken when it happens: whoever waits for it may be told some pieces later."""

    heard: int
    cpu: float
    rss: int


class _Streams:
    """Calls under way. `begun` when each has had its first piece, `ended` when one has had all since then."""

    def __init__(self, call: Call, pieces: int) -> None:
        self._call = call
        self._pieces = pieces
        self._tasks: list[asyncio.Task[None]] = []
        self._silent = 0
        self._heard = 0
        self.begun: asyncio.Future[_Look] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[_Look] = asyncio.get_running_loop().create_future()

    async def open(self, count: int, breath: float) -> None:
        """So many seconds after each few of them."""
        self._silent = count
        for _ in range(count // AT_ONCE):
            self._tasks += [asyncio.create_task(self._run()) for _ in range(AT_ONCE)]
            await asyncio.sleep(breath)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _look(self) -> _Look:
        return _Look(self._heard, time.process_time(), _rss())

    async def _run(self) -> None:
        count = since = 0

        def hear() -> None:
            nonlocal count, since
            count += 1
            self._heard += 1
            if count == 1:
                self._silent -= 1
                if not self._silent:
                    self.begun.set_result(self._look())
            elif self.begun.done():
                since += 1
                if since == self._pieces and not self.ended.done():
                    self.ended.set_result(self._look())

        pieces = self._pieces + SPARE
        await self._call(f"[[chunks {pieces}]] [[words {pieces * 2}]] [[chunk-delay {PAUSE}]]", hear)


async def _own(kind: str, url: str) -> tuple[Call, Callable[[], Awaitable[None]]]:
    wire = WIRES[kind]
    endpoint = Endpoint("bench", ProviderSettings(f"{url}/v1", api_key="key"), wire)

    async def call(text: str, hear: Callable[[], None]) -> None:
        chunks = [wire.encode(UserMessage((Text(text),)))]
        await endpoint.complete(ModelCall("scripted", Prefix(b"", b""), chunks), lambda delta: hear())

    return call, endpoint.close


async def _sdk(kind: str, url: str) -> tuple[Call, Callable[[], Awaitable[None]]]:
    if kind == "openai":
        from openai import AsyncOpenAI  # noqa: PLC0415 - only where it is measured

        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="key")

        async def call(text: str, hear: Callable[[], None]) -> None:
            stream = await client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": text}], stream=True
            )
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    hear()

        return call, client.close

    from anthropic import AsyncAnthropic  # noqa: PLC0415 - as above

    claude = AsyncAnthropic(base_url=url, api_key="key")

    async def call_claude(text: str, hear: Callable[[], None]) -> None:
        stream = await claude.messages.create(
            model="scripted", max_tokens=1000, messages=[{"role": "user", "content": text}], stream=True
        )
        async for event in stream:
            if event.type == "content_block_delta":
                hear()

    return call_claude, claude.close


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    kind, url, pieces = sys.argv[1:]
    cost = uvloop.run(_measure(kind, url, int(pieces)))
    print(json.dumps({"cpu_us": cost.cpu_us, "kilobytes": cost.kilobytes}))


if __name__ == "__main__":
    main()
