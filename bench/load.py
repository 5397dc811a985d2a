"""The clients: turns through the gateway's HTTP API, bare calls, and calls through the official SDK."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

_names = (f"bench-{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class Load:
    """The times of a batch of turns, measured by the client."""

    seconds: float
    latencies: list[float]

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies)


class Client:
    """A client of the gateway's HTTP API."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"}, connector=aiohttp.TCPConnector(limit=0)
        )

    async def close(self) -> None:
        await self._session.close()

    async def turn(self, name: str, text: str) -> float:
        """Run one durable turn to its end, and return its latency."""
        began = time.perf_counter()
        url = f"{self._url}/api/sessions/{name}/messages?wait=60"
        async with self._session.post(url, json={"text": text}) as answer:
            body = msgspec.json.decode(await answer.read())
            if answer.status != 200 or body["state"] != "done":
                raise SystemExit(f"a turn failed: {answer.status} {body}")
        return time.perf_counter() - began

    async def busy_agents(self) -> int:
        async with self._session.get(f"{self._url}/api/pool") as answer:
            return int(msgspec.json.decode(await answer.read())["busy"])

    async def accept(self, sessions: Iterable[str], messages: int, text: str = "How are you today?") -> None:
        """Send `messages` to each session, the sessions in parallel. Does not wait for the turns."""

        async def one(name: str) -> None:
            for _ in range(messages):
                url = f"{self._url}/api/sessions/{name}/messages"
                async with self._session.post(url, json={"text": text}) as answer:
                    body = await answer.read()
                    if answer.status != 202:
                        raise SystemExit(f"a message was not accepted: {answer.status} {body.decode()}")

        await asyncio.gather(*(one(name) for name in sessions))

    async def run(self, sessions: Iterable[str], turns: int, text: str = "How are you today?") -> Load:
        """Run `turns` in each session, the sessions in parallel."""

        async def one(name: str) -> list[float]:
            return [await self.turn(name, text) for _ in range(turns)]

        began = time.perf_counter()
        latencies = await asyncio.gather(*(one(name) for name in sessions))
        return Load(time.perf_counter() - began, [value for part in latencies for value in part])


def fresh_names(count: int) -> list[str]:
    return list(itertools.islice(_names, count))


def conversation(messages: int) -> list[dict[str, str]]:
    roles = itertools.cycle(("user", "assistant"))
    listed = [{"role": role, "content": "How are you today?"} for role in itertools.islice(roles, messages)]
    return [*listed, {"role": "user", "content": "How are you today?"}]


async def bare_call_cpu(url: str, calls: int) -> float:
    """Return the CPU seconds of one streamed call with aiohttp alone, without parsing."""
    body = msgspec.json.encode({"model": "scripted", "messages": conversation(2), "stream": True})
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def call() -> None:
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as answer:
                async for _ in answer.content.iter_any():
                    pass

        await call()
        began = time.process_time()
        for _ in range(calls):
            await call()
        return (time.process_time() - began) / calls


async def sdk_call_cpu(url: str, messages: int, calls: int) -> float:
    """Return the CPU seconds of one streamed call with the official SDK, for a conversation this long."""
    from openai import AsyncOpenAI  # noqa: PLC0415 - its import takes longer than most runs

    talk: Any = conversation(messages)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:

        async def call() -> None:
            stream = await client.chat.completions.create(model="scripted", messages=talk, stream=True)
            async for _ in stream:
                pass

        await call()
        began = time.process_time()
        for _ in range(calls):
            await call()
        return (time.process_time() - began) / calls
