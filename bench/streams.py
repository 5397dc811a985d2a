"""The cost of streaming: CPU for each piece of an answer and memory for each open stream.

Our clients and the official SDKs are measured, each in its own process. The server sends every piece in an
HTTP chunk of its own.
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
from talaria.core.specs import ModelCall, Prefix
from talaria.models.endpoint import Endpoint
from talaria.models.providers import WIRES
from talaria.models.settings import ProviderSettings

STREAMS = 200
AT_ONCE = 10
OPENING_PAUSE = 0.02  # seconds after each `AT_ONCE` openings
PAUSE = 0.25  # seconds between the pieces of one answer
SPARE = 40  # extra pieces, so that no answer ends while others still open
OURS = "openai-chat", "anthropic-messages"
SDKS = "openai", "anthropic"

Call = Callable[[str, Callable[[], None]], Coroutine[Any, Any, None]]
"""Makes one streamed call with this text, and calls back for each piece."""


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_us: float  # for a piece
    kilobytes: float  # for an open stream


def measure(kind: str, url: str, pieces: int) -> Cost:
    """Measure in a new process, so that one kind does not profit from the memory of another."""
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
    # A few at a time: memory that connecting needs for a moment does not belong to an open stream.
    async with _opened(call, pieces, OPENING_PAUSE) as streams:
        opened = await streams.begun
    # All at once, so that pieces come together: they share the wake-up of the loop, and the rest is the cost
    # of a piece.
    async with _opened(call, pieces, 0) as streams:
        begun, ended = await streams.begun, await streams.ended
    await close()
    cpu = (ended.cpu - begun.cpu) / (ended.heard - begun.heard)
    return Cost(cpu * 1e6, (opened.rss - before) / STREAMS / 1000)


@asynccontextmanager
async def _opened(call: Call, pieces: int, pause: float) -> AsyncIterator[_Streams]:
    streams = _Streams(call, pieces)
    await streams.open(STREAMS, pause)
    try:
        yield streams
    finally:
        await streams.close()


@dataclass(frozen=True, slots=True)
class _Measurement:
    """A measurement at the moment of the event. A waiting task would run some pieces later."""

    heard: int
    cpu: float
    rss: int


class _Streams:
    """Open streams. `begun` is set when each has its first piece, `ended` when one has `pieces` more."""

    def __init__(self, call: Call, pieces: int) -> None:
        self._call = call
        self._pieces = pieces
        self._tasks: list[asyncio.Task[None]] = []
        self._silent = 0
        self._heard = 0
        self.begun: asyncio.Future[_Measurement] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[_Measurement] = asyncio.get_running_loop().create_future()

    async def open(self, count: int, pause: float) -> None:
        """Open `count` streams, with a pause after each `AT_ONCE`."""
        self._silent = count
        for _ in range(count // AT_ONCE):
            self._tasks += [asyncio.create_task(self._run()) for _ in range(AT_ONCE)]
            await asyncio.sleep(pause)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _measure_now(self) -> _Measurement:
        return _Measurement(self._heard, time.process_time(), _rss())

    async def _run(self) -> None:
        count = since = 0

        def hear() -> None:
            nonlocal count, since
            count += 1
            self._heard += 1
            if count == 1:
                self._silent -= 1
                if not self._silent:
                    self.begun.set_result(self._measure_now())
            elif self.begun.done():
                since += 1
                if since == self._pieces and not self.ended.done():
                    self.ended.set_result(self._measure_now())

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
